// SPDX-License-Identifier: MIT
// Tells NaN and infinity by their bits, because -ffast-math in the user's file takes the meaning from comparisons with
// them. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <bit>
#include <cstdint>

namespace railyard::inline v0_1 {
namespace detail {

/// The bits without the sign: of infinity infinity_bits, of NaN more, of numbers fewer.
[[nodiscard]] constexpr std::uint64_t magnitude_bits(double value) noexcept {
  return std::bit_cast<std::uint64_t>(value) & ~(std::uint64_t{1} << 63U);
}
inline constexpr std::uint64_t infinity_bits = 0x7FF0'0000'0000'0000U;
[[nodiscard]] constexpr bool has_nan_bits(double value) noexcept { return magnitude_bits(value) > infinity_bits; }
[[nodiscard]] constexpr bool has_infinity_bits(double value) noexcept { return magnitude_bits(value) == infinity_bits; }

}  // namespace detail
}  // namespace railyard::inline v0_1
