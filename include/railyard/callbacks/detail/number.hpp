// SPDX-License-Identifier: MIT
// Numbers as people read them, also where the compiler assumes that there is no NaN. Callbacks room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/value.hpp"

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

namespace railyard::inline v0_1 {
namespace detail {

/// Tells by the exponent's bits, because -ffast-math makes std::isfinite(NaN) true.
[[nodiscard]] inline bool is_finite(double value) noexcept {
  constexpr std::uint64_t exponent = 0x7FF0'0000'0000'0000U;
  return (std::bit_cast<std::uint64_t>(value) & exponent) != exponent;
}

/// Returns "nan", "inf" or "-inf" for what is not finite.
[[nodiscard]] inline std::string non_finite_text(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  if ((bits & 0x000F'FFFF'FFFF'FFFFU) != 0) return "nan";
  return (bits >> 63U) != 0 ? "-inf" : "inf";
}

/// Returns a metric as a progress line shows it: four significant digits, text as it is.
[[nodiscard]] inline std::string short_text(const Value& value) {
  return value.visit([](const auto& held) -> std::string {
    using Held = std::remove_cvref_t<decltype(held)>;
    if constexpr (std::is_same_v<Held, double>) {
      return is_finite(held) ? compose("{:.4g}", held) : non_finite_text(held);
    } else {
      return compose("{}", held);
    }
  });
}

}  // namespace detail
}  // namespace railyard::inline v0_1
