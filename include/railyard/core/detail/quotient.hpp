// SPDX-License-Identifier: MIT
// What metrics of nothing are. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <limits>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns part / whole; of nothing at all NaN, without the sign that processors give it and that is printed.
[[nodiscard]] inline double quotient(double part, double whole) noexcept {
  return part == 0 && whole == 0 ? std::numeric_limits<double>::quiet_NaN() : part / whole;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
