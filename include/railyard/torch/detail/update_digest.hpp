// SPDX-License-Identifier: MIT
// Tells whether ranks that have weights of their own have updated them alike. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {

namespace detail {

// A worker's updates so far, which every backward pass compares. Of 16 bits, so that the sum of its square over a
// thousand ranks is exact in a double; what one comparison misses, the next ones find.
struct UpdateDigest {
  static constexpr std::string_view extension_name = "torch.updates";

  std::uint64_t value = 0;

  void add(std::span<const double> learning_rates) {
    value = hash_bytes(value + 1, learning_rates.data(), learning_rates.size_bytes()) & 0xFFFFU;
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1
