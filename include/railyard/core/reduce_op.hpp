// SPDX-License-Identifier: MIT
// How elements of all ranks become one. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <array>
#include <cstdint>
#include <string_view>

namespace railyard::inline v0_1 {

/// Names a reduction. average is the sum divided by the number of ranks and exists for floating-point dtypes only (an
/// average of integers would have to round). On bool, sum and max are "any", product and min are "all".
/// Half types are summed in f32; integers wrap like unsigned ones.
enum class ReduceOp : std::uint8_t { sum, average, min, max, product };

/// Lists every reduction, for tests and tables.
inline constexpr std::array all_reduce_ops{ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                                           ReduceOp::product};

/// Returns the name as messages print it.
[[nodiscard]] constexpr std::string_view name_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

}  // namespace railyard::inline v0_1
