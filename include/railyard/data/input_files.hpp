// SPDX-License-Identifier: MIT
// The files that a source reads: by path, by a list, or by a pattern. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <glob.h>

namespace railyard::inline v0_1 {

/// Names files: each is a path, or a pattern with *, ? or [...] for those that match, sorted. Looks at none of them
/// before expand().
class InputFiles {
 public:
  InputFiles(std::string path) : paths_{std::move(path)} {}
  InputFiles(const char* path) : paths_{path} {}
  InputFiles(const std::filesystem::path& path) : paths_{path.string()} {}
  InputFiles(std::vector<std::string> paths) : paths_(std::move(paths)) {}
  InputFiles(std::initializer_list<std::string> paths) : paths_(paths) {}

  /// As messages show them.
  [[nodiscard]] std::string describe() const {
    if (paths_.empty()) return "no files";
    return paths_.size() == 1 ? paths_.front() : detail::compose("{} and {} more", paths_.front(), paths_.size() - 1);
  }

  /// Returns the paths of all files. Throws: DataError if there are none, or a pattern matches none.
  [[nodiscard]] std::vector<std::string> expand() const {
    if (paths_.empty()) throw ConfigError{"a source was given no files: name at least one"};
    std::vector<std::string> files;
    for (const std::string& path : paths_) {
      std::error_code no_error;
      // A file may have such characters in its name.
      if (path.find_first_of("*?[") == std::string::npos || std::filesystem::exists(path, no_error)) {
        files.push_back(path);
      } else {
        add_matches(path, files);
      }
    }
    return files;
  }

 private:
  static void add_matches(const std::string& pattern, std::vector<std::string>& files) {
    glob_t found{};
    const int error = ::glob(pattern.c_str(), 0, nullptr, &found);
    for (std::size_t at = 0; error == 0 && at < found.gl_pathc; ++at) files.emplace_back(found.gl_pathv[at]);
    ::globfree(&found);
    if (error == 0) return;
    std::error_code no_error;
    throw DataError{detail::compose("no file matches \"{}\" (working directory {})", pattern,
                                    std::filesystem::current_path(no_error).string())};
  }

  std::vector<std::string> paths_;
};

/// Names files that are compressed, and knows how to read them: ry::gzip() and ry::zstd() make it.
struct CompressedFiles {
  InputFiles files;
  detail::OpenBytes open = nullptr;
};

}  // namespace railyard::inline v0_1
