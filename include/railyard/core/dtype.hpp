// SPDX-License-Identifier: MIT
// Element types of buffers, and the two half types that C++20 lacks. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace railyard::inline v0_1 {

/// Names the type of one element.
enum class Dtype : std::uint8_t { f16, bf16, f32, f64, i8, u8, i32, i64, boolean };

/// Lists every dtype, for tests and tables.
inline constexpr std::array all_dtypes{Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64,    Dtype::i8,
                                       Dtype::u8,  Dtype::i32,  Dtype::i64, Dtype::boolean};

/// Returns the size of one element in bytes.
[[nodiscard]] constexpr std::size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f16:
    case Dtype::bf16:
      return 2;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::i8:
    case Dtype::u8:
    case Dtype::boolean:
      return 1;
  }
  return 0;
}

/// Returns the name as messages print it, such as "f32".
[[nodiscard]] constexpr std::string_view name_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f16:
      return "f16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::f32:
      return "f32";
    case Dtype::f64:
      return "f64";
    case Dtype::i8:
      return "i8";
    case Dtype::u8:
      return "u8";
    case Dtype::i32:
      return "i32";
    case Dtype::i64:
      return "i64";
    case Dtype::boolean:
      return "bool";
  }
  return "unknown";
}

namespace detail {

// Both conversions work on bits alone, so that -ffast-math in the user's file cannot change what NaN and infinity
// become.
[[nodiscard]] constexpr float float_of_half_bits(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  std::uint32_t exponent = (half >> 10U) & 0x1FU;
  std::uint32_t fraction = half & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13U));
  if (exponent == 0) {
    if (fraction == 0) return std::bit_cast<float>(sign);
    exponent = 1;
    while ((fraction & 0x400U) == 0) {
      fraction <<= 1U;
      --exponent;  // wraps below zero on purpose: the bias added next brings it back
    }
    fraction &= 0x3FFU;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (fraction << 13U));
}

[[nodiscard]] constexpr std::uint16_t half_bits_of_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);   // NaN
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to infinity
  const auto round = [](std::uint32_t kept, std::uint32_t lost, std::uint32_t half_way) {
    return lost > half_way || (lost == half_way && (kept & 1U) != 0) ? kept + 1 : kept;
  };
  if (magnitude < 0x38800000U) {                                           // subnormal in f16, or zero
    if (magnitude < 0x33000000U) return static_cast<std::uint16_t>(sign);  // below half of the smallest one
    const std::uint32_t shift = 126U - (magnitude >> 23U);
    const std::uint32_t fraction = (magnitude & 0x7FFFFFU) | 0x800000U;
    return static_cast<std::uint16_t>(sign |
                                      round(fraction >> shift, fraction & ((1U << shift) - 1U), 1U << (shift - 1U)));
  }
  const std::uint32_t rebased = magnitude - 0x38000000U;
  return static_cast<std::uint16_t>(sign | round(rebased >> 13U, rebased & 0x1FFFU, 0x1000U));
}

[[nodiscard]] constexpr std::uint16_t bfloat_bits_of_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace detail

/// Is an IEEE 754 binary16 number. Arithmetic happens in float; conversion rounds to nearest, ties to even.
struct Float16 {
  std::uint16_t bits = 0;

  constexpr Float16() noexcept = default;
  constexpr explicit Float16(float value) noexcept : bits(detail::half_bits_of_float(value)) {}
  [[nodiscard]] constexpr explicit operator float() const noexcept { return detail::float_of_half_bits(bits); }
  friend constexpr bool operator==(Float16, Float16) noexcept = default;
};

/// Is a bfloat16 number: the upper half of a float. Conversion rounds to nearest, ties to even.
struct BFloat16 {
  std::uint16_t bits = 0;

  constexpr BFloat16() noexcept = default;
  constexpr explicit BFloat16(float value) noexcept : bits(detail::bfloat_bits_of_float(value)) {}
  [[nodiscard]] constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
  friend constexpr bool operator==(BFloat16, BFloat16) noexcept = default;
};

namespace detail {

template <class T>
struct DtypeOf {};
template <>
struct DtypeOf<Float16> : std::integral_constant<Dtype, Dtype::f16> {};
template <>
struct DtypeOf<BFloat16> : std::integral_constant<Dtype, Dtype::bf16> {};
template <>
struct DtypeOf<float> : std::integral_constant<Dtype, Dtype::f32> {};
template <>
struct DtypeOf<double> : std::integral_constant<Dtype, Dtype::f64> {};
template <>
struct DtypeOf<bool> : std::integral_constant<Dtype, Dtype::boolean> {};
// By size and sign, because long and long long are different types of one size.
template <class T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool> &&
         (sizeof(T) == 8 || sizeof(T) == 4 ? std::is_signed_v<T> : sizeof(T) == 1)) struct DtypeOf<T>
    : std::integral_constant<Dtype, sizeof(T) == 8        ? Dtype::i64
                                    : sizeof(T) == 4      ? Dtype::i32
                                    : std::is_signed_v<T> ? Dtype::i8
                                                          : Dtype::u8> {
};

}  // namespace detail

/// Is satisfied by the C++ types that a buffer can hold.
template <class T>
concept Element = requires {
  detail::DtypeOf<T>::value;
};

/// Is the dtype of a C++ type: dtype_of<float> is Dtype::f32.
template <Element T>
inline constexpr Dtype dtype_of = detail::DtypeOf<T>::value;

/// Calls visitor with a value-initialised element of the C++ type behind dtype, and returns what it returns.
/// Example: visit_dtype(Dtype::f32, [](auto zero) { return sizeof zero; });
template <class Visitor>
constexpr decltype(auto) visit_dtype(Dtype dtype, Visitor&& visitor) {
  switch (dtype) {
    case Dtype::f16:
      return visitor(Float16{});
    case Dtype::bf16:
      return visitor(BFloat16{});
    case Dtype::f64:
      return visitor(double{});
    case Dtype::i8:
      return visitor(std::int8_t{});
    case Dtype::u8:
      return visitor(std::uint8_t{});
    case Dtype::i32:
      return visitor(std::int32_t{});
    case Dtype::i64:
      return visitor(std::int64_t{});
    case Dtype::boolean:
      return visitor(false);
    case Dtype::f32:
      break;
  }
  return visitor(float{});
}

}  // namespace railyard::inline v0_1
