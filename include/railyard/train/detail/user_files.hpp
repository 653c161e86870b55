// SPDX-License-Identifier: MIT
// What the user has a rank add to its checkpoints: files, and directories with all that is in them. Train room.
#pragma once

#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/file_image.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Looks at the files each time it is asked for their images, and reads them when the images are filled.
class UserFiles {
 public:
  [[nodiscard]] bool empty() const noexcept { return sources_.empty(); }

  /// The source may come to be later. Throws: ConfigError for a name that is taken or cannot be one, and for a source
  /// that is a directory.
  void add_file(std::string name, std::filesystem::path source) {
    check_name(name);
    if (is_directory(source)) {
      refuse(name, compose("{} is a directory: add it with add_directory()", source.string()));
    }
    sources_.push_back({std::move(name), std::move(source), false});
  }

  /// The same of a directory, in which only plain files and directories may be. Throws: ConfigError as above, for a
  /// source that is there and no directory, and for what can be in no checkpoint.
  void add_directory(std::string name, std::filesystem::path source) {
    check_name(name);
    Source added{std::move(name), std::move(source), true};
    std::error_code code;
    const bool is_there = std::filesystem::exists(added.path, code);
    if (is_there && !is_directory(added.path)) {
      refuse(added.name, compose("{} is no directory: add it with add_file()", added.path.string()));
    }
    if (is_there) {
      std::vector<FileImage> images;
      add_images(added, images);
    }
    sources_.push_back(std::move(added));
  }

  /// Adds an image for each file that is there now. Throws: ConfigError that names the file or directory which is not
  /// there, or can be in no checkpoint. Filling throws: DataError if a file has gone or changed its kind meanwhile.
  void add_images(std::vector<FileImage>& images) const {
    for (const Source& source : sources_) add_images(source, images);
  }

 private:
  struct Source {
    std::string name{};
    std::filesystem::path path{};
    bool is_directory = false;
  };

  // What a message to the supervisor can hold beside all else.
  static constexpr std::size_t most_name_bytes = std::size_t{512} << 10U;

  [[noreturn]] static void refuse(std::string_view name, std::string_view why) {
    throw ConfigError{compose("\"{}\" cannot be added to checkpoints: {}", printable(name), why)};
  }

  [[nodiscard]] static bool is_directory(const std::filesystem::path& path) {
    std::error_code code;
    return std::filesystem::is_directory(path, code);
  }

  void check_name(const std::string& name) const {
    if (const auto fault = fault_of_path(std::string{user_folder} + name); !fault.empty()) {
      refuse(name, compose("{}: give another name", fault));
    }
    for (const Source& other : sources_) {
      if (other.name == name) refuse(name, "there is a file of this name already: give another name");
      if ((name + "/").starts_with(other.name + "/") || (other.name + "/").starts_with(name + "/")) {
        refuse(name, compose("of this and \"{}\" one would lie in the other: give another name", other.name));
      }
    }
  }

  static void add_images(const Source& source, std::vector<FileImage>& images) {
    std::error_code code;
    if (!source.is_directory) {
      const auto size = std::filesystem::file_size(source.path, code);
      if (code) fail_to_read(source.path, code.message());
      images.push_back(image_of(source.name, source.path, size, 0));
      return;
    }
    std::size_t name_bytes = 0;
    for (const std::string& name : names_in(source)) {
      const std::filesystem::path path = source.path / name;
      const auto size = std::filesystem::file_size(path, code);
      if (code == std::errc::no_such_file_or_directory) continue;  // removed since
      if (code) fail_to_read(path, code.message());
      images.push_back(image_of(compose("{}/{}", source.name, name), path, size, O_NOFOLLOW));
      name_bytes += images.back().name.size() + sizeof(std::uint64_t) * 3;
    }
    if (name_bytes <= most_name_bytes) return;
    refuse(source.name, compose("{} has too many files: pack them into one, and add that", source.path.string()));
  }

  // Of all plain files below, relative to the directory, in order.
  [[nodiscard]] static std::vector<std::string> names_in(const Source& source) {
    namespace fs = std::filesystem;
    std::vector<std::string> names;
    std::vector<fs::path> folders{fs::path{}};
    while (!folders.empty()) {
      const fs::path folder = std::move(folders.back());
      folders.pop_back();
      std::error_code code;
      const fs::path path = folder.empty() ? source.path : source.path / folder;
      fs::directory_iterator entry{path, code};
      if (code == std::errc::no_such_file_or_directory && !folder.empty()) continue;  // removed since
      for (; !code && entry != fs::directory_iterator{}; entry.increment(code)) {
        const fs::path name = folder / entry->path().filename();
        std::error_code ignored;  // what is removed meanwhile is of no kind
        const fs::file_status status = entry->symlink_status(ignored);
        if (status.type() == fs::file_type::not_found) continue;
        check_entry(source, name.string(), status);
        if (status.type() == fs::file_type::directory) {
          folders.push_back(name);
        } else {
          names.push_back(name.string());
        }
      }
      if (code) fail_to_read(path, code.message());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  static void check_entry(const Source& source, const std::string& name, const std::filesystem::file_status& status) {
    const std::string path = printable((source.path / name).string());
    if (status.type() == std::filesystem::file_type::symlink) {
      refuse(source.name,
             compose("{} is a link, which may lead out of the directory: put what it leads to there", path));
    }
    if (status.type() != std::filesystem::file_type::regular &&
        status.type() != std::filesystem::file_type::directory) {
      refuse(source.name, compose("{} is neither a plain file nor a directory: keep it elsewhere", path));
    }
    const auto fault = fault_of_path(compose("{}{}/{}", user_folder, source.name, name));
    if (!fault.empty()) refuse(source.name, compose("{}: of its name, {}: give it another one", path, fault));
  }

  [[noreturn]] static void fail_to_read(const std::filesystem::path& path, std::string_view why) {
    throw ConfigError{compose("{}, which is to be in checkpoints, cannot be read: {}", path.string(), why)};
  }

  [[nodiscard]] static FileImage image_of(std::string_view name, const std::filesystem::path& path, std::size_t size,
                                          int flags) {
    return {.name = compose("{}{}", user_folder, name), .size = size, .fill = [path, size, flags](std::byte* to) {
              const auto fail = [&path](std::string_view why) {
                throw DataError{
                    compose("{}, which is to be in the checkpoint, has changed meanwhile: {}", path.string(), why)};
              };
              // Without O_NONBLOCK the opening of a pipe would wait for its writer.
              const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags)};
              if (!file.is_open()) fail(explain_errno(errno));
              struct stat status {};
              if (::fstat(file.get(), &status) != 0) fail(explain_errno(errno));
              if (!S_ISREG(status.st_mode)) fail("it is no plain file any more");
              if (read_at(file.get(), 0, to, size) == size) return;
              fail(errno != 0 ? explain_errno(errno) : "it has become shorter");
            }};
  }

  std::vector<Source> sources_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
