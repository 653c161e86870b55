// SPDX-License-Identifier: MIT
// Tells whether ranks that have weights of their own have updated them alike. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"

#include "railyard/core/detail/digest.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {

namespace detail {

// A short digest of a worker's updates so far, which every backward pass compares: what one comparison misses, the next
// ones find.
struct UpdateDigest {
  static constexpr std::string_view extension_name = "torch.updates";

  std::uint64_t value = 0;

  void add(std::span<const double> learning_rates) {
    value = short_digest(digest_of(std::as_bytes(learning_rates), value + 1));
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1
