// SPDX-License-Identifier: MIT
// A file of a checkpoint to read from. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/crc32c.hpp"
#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/checkpoint/part_bytes.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Says that a checkpoint is no longer one, since its program keeps newer ones.
class RemovedError : public DataError {
 public:
  explicit RemovedError(const std::filesystem::path& file)
      : DataError{compose("{}: it has just been removed; take a newer checkpoint", file.string())} {}
};

/// Is a plain file that is open for reading, or what would be one in memory. A file is read by calls and not mapped:
/// one that somebody cuts short would end the program by a signal.
class InputFile {
 public:
  /// Opens the file `name` in a directory, which may lie in folders below it. Symbolic links below the directory are
  /// not followed: they could lead out of it. Throws: DataError if it is not there or no plain file; Error if it may be
  /// whole, but cannot be opened.
  [[nodiscard]] static std::shared_ptr<const InputFile> open(
      const std::filesystem::path& directory, std::string_view name,
      const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
    Descriptor at = open_or_throw(*files, AT_FDCWD, directory.string(), O_PATH | O_DIRECTORY, directory);
    const std::filesystem::path path = directory / name;
    for (auto slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/')) {
      at = open_or_throw(*files, at.get(), std::string{name.substr(0, slash)}, O_PATH | O_DIRECTORY | O_NOFOLLOW, path);
      name.remove_prefix(slash + 1);
    }
    // Without O_NONBLOCK the opening of a pipe would wait for its writer.
    return std::make_shared<const InputFile>(
        path, open_or_throw(*files, at.get(), std::string{name}, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, path), files);
  }

  /// Takes over an open file.
  InputFile(std::filesystem::path path, Descriptor file, std::shared_ptr<Files> files = std::make_shared<Files>())
      : path_(std::move(path)), files_(std::move(files)), file_(std::move(file)) {
    struct stat status {};
    if (uninterrupted([&] { return files_->status_of(file_.get(), status); }) != 0) throw_system(path_.string(), errno);
    if (!S_ISREG(status.st_mode)) throw_damaged(path_, "it is no plain file");
    size_ = static_cast<std::uint64_t>(status.st_size);
  }

  /// Takes for a file what a function reads, of so many bytes. path: what messages call it.
  InputFile(std::filesystem::path path, ReadPart part)
      : path_(std::move(path)), part_(std::move(part)), size_(part_.size) {}

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Reads the bytes from begin on. Throws: DataError if there are fewer.
  void read(std::uint64_t begin, std::span<std::byte> to) const {
    if (!file_.is_open()) {
      if (begin <= size_ && to.size() <= size_ - begin) return part_.read(begin, to);
      throw_damaged(path_, compose("it ends at byte {}, in the middle of what was asked for", size_));
    }
    const std::size_t got = read_some(*files_, file_.get(), begin, to);
    if (got == to.size()) return;
    if (errno != 0) throw_damaged(path_, compose("it cannot be read: {}", explain_errno(errno)));
    throw_damaged(path_, compose("it ends at byte {}, in the middle of what was asked for", begin + got));
  }

  /// Reads all of it, which must not be more than max_size bytes.
  [[nodiscard]] std::string text(std::uint64_t max_size) const {
    if (size_ > max_size) throw_damaged(path_, compose("its {} bytes are more than such a file can have", size_));
    std::string text(static_cast<std::size_t>(size_), '\0');
    read(0, std::as_writable_bytes(std::span{text}));
    return text;
  }

  [[nodiscard]] std::uint32_t checksum() const {
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(size_, std::uint64_t{1} << 20U)));
    Crc32c sum;
    for (std::uint64_t done = 0; done < size_; done += buffer.size()) {
      const auto part =
          std::span{buffer}.first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size_ - done)));
      read(done, part);
      sum.add(part);
    }
    return sum.value();
  }

 private:
  static Descriptor open_or_throw(Files& files, int directory, const std::string& name, int flags,
                                  const std::filesystem::path& path) {
    const int fd = uninterrupted([&] { return files.open_at(directory, name.c_str(), flags); });
    if (fd >= 0) return adopt(fd, path.string());
    if (errno == ENOENT) throw_damaged(path, "it is missing");
    if (errno == ELOOP || errno == ENOTDIR || errno == ENXIO)
      throw_damaged(path, "it is no plain file in plain folders");
    if (errno == EIO) throw_damaged(path, compose("the disk cannot read it: {}", explain_errno(errno)));
    throw_system(path.string(), errno);
  }

  std::filesystem::path path_;
  std::shared_ptr<Files> files_{};  // of the open file
  Descriptor file_{};
  ReadPart part_{};  // without a file
  std::uint64_t size_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
