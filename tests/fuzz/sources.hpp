// SPDX-License-Identifier: MIT
// What the targets share that give files to sources.
#pragma once

#include "railyard/core/block.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/mman.h>
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

/// Writes a file, always the same one, which is in memory alone, and returns its path.
inline std::string write_file(std::string_view bytes) {
  static const int file = ::memfd_create("fuzz_input", 0);
  require(::ftruncate(file, 0) == 0);
  require(::pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<::ssize_t>(bytes.size()));
  return "/proc/self/fd/" + std::to_string(file);
}

}  // namespace fuzz
