// SPDX-License-Identifier: MIT
// What the streams of all kinds of compressed files have in common. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Hands out the compressed bytes of a file piece by piece.
class CompressedInput {
 public:
  explicit CompressedInput(const std::string& path) : path_(path), file_(path), piece_(std::size_t{64} << 10) {}

  /// Returns the next piece, which is empty at the end.
  [[nodiscard]] std::string_view next() {
    const std::size_t got = file_.read(piece_.data(), piece_.size());
    read_ += got;
    return {piece_.data(), got};
  }
  /// left: bytes of the last piece that were not taken.
  [[noreturn]] void fail(std::string_view what, std::size_t left) const {
    throw DataError{compose("{}: byte {} of the compressed file: {}", path_, read_ - left, what)};
  }

 private:
  std::string path_;
  FileBytes file_;
  std::vector<char> piece_;
  std::uint64_t read_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
