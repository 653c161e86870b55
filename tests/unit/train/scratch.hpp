// SPDX-License-Identifier: MIT
// What the tests of this room share: a folder that goes away, what is in it, and faults of the disk.
#pragma once

#include "support/temporary_folder.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/resource.h>

using Scratch = TemporaryFolder;

/// Lets no file of this process grow beyond a size, for as long as it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t size) {
    former_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &former_);
    rlimit limit = former_;
    limit.rlim_cur = size;
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error{"setrlimit failed"};
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &former_);
    std::signal(SIGXFSZ, former_handler_);
  }

 private:
  rlimit former_{};
  void (*former_handler_)(int) = nullptr;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

inline std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::ifstream file{path};
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}
