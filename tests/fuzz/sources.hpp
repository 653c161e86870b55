// SPDX-License-Identifier: MIT
// What the targets share that give files to sources.
#pragma once

#include "railyard/core/block.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace fuzz {

namespace ry = railyard;

inline void require(bool condition) {
  if (!condition) std::abort();
}

/// Whether two samples are the same.
inline bool are_equal(const ry::Block& block, std::size_t row, const ry::Block& other, std::size_t other_row) {
  for (std::size_t column = 0; column < block.columns().size(); ++column) {
    const auto bytes = block[column].sample(row);
    const auto others = other[column].sample(other_row);
    if (!std::equal(bytes.begin(), bytes.end(), others.begin(), others.end())) return false;
  }
  return true;
}

/// Is a file of this process alone, since several may run at once; gone when the process ends in order.
struct InputFile {
  InputFile() : file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {}
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() { ::unlink(path.c_str()); }

  std::string path = std::to_string(::getpid());  // so short that a copy of it takes no memory
  int file;
};

/// Writes a file, always the same one, into the working directory, and returns its path. Where that is in memory, this
/// takes no disk.
inline const std::string& write_file(std::string_view bytes) {
  static const InputFile input;
  require(::pwrite(input.file, bytes.data(), bytes.size(), 0) == static_cast<::ssize_t>(bytes.size()));
  require(::ftruncate(input.file, static_cast<::off_t>(bytes.size())) == 0);
  return input.path;
}

}  // namespace fuzz
