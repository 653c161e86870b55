// SPDX-License-Identifier: MIT
// Memory that operations need for a while, kept for the next one. Collectives room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <memory>

namespace railyard::inline v0_1 {
namespace detail {

/// Grows to the largest that was asked for.
class Scratch {
 public:
  /// Returns that many bytes at least; what was there before may be gone.
  [[nodiscard]] std::byte* take(std::size_t size_bytes) {
    if (size_bytes_ < size_bytes) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(size_bytes);
      size_bytes_ = size_bytes;
    }
    return bytes_.get();
  }

 private:
  std::unique_ptr<std::byte[]> bytes_{};
  std::size_t size_bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
