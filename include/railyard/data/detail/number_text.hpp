// SPDX-License-Identifier: MIT
// Numbers out of text, exactly rounded, the same in every locale, and several times as fast as the standard functions
// where they are as short as numbers in files are. Data room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace railyard::inline v0_1 {
namespace detail {

/// So many bytes behind a text must be readable for the functions of this header that take pointers.
inline constexpr std::size_t text_padding = 64;

__extension__ typedef unsigned __int128 Wide;

[[nodiscard]] inline std::uint64_t load_eight(const char* text) noexcept {
  std::uint64_t word;
  std::memcpy(&word, text, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

[[nodiscard]] constexpr bool are_digits(std::uint64_t eight) noexcept {
  return (((eight & 0xF0F0F0F0F0F0F0F0U) | (((eight + 0x0606060606060606U) & 0xF0F0F0F0F0F0F0F0U) >> 4)) ==
          0x3333333333333333U);
}

// Adds neighbours: to numbers of two digits, of four, of eight.
[[nodiscard]] constexpr std::uint64_t value_of_digits(std::uint64_t eight) noexcept {
  eight = (eight & 0x0F0F0F0F0F0F0F0FU) * (10 * 256 + 1) >> 8;
  eight = (eight & 0x00FF00FF00FF00FFU) * (100 * 65536 + 1) >> 16;
  return (eight & 0x0000FFFF0000FFFFU) * (std::uint64_t{10000} * 4294967296U + 1) >> 32;
}

// The first `count` of eight characters, 1 to 8, with zeros in front.
[[nodiscard]] constexpr std::uint64_t first_of(std::uint64_t eight, std::size_t count) noexcept {
  const std::size_t shift = 64 - 8 * count;
  return (eight << shift) | (0x3030303030303030U & ((std::uint64_t{1} << shift) - 1));
}

inline constexpr std::array<std::uint64_t, 20> powers_of_ten = [] {
  std::array<std::uint64_t, 20> powers{1};
  for (std::size_t at = 1; at < powers.size(); ++at) powers[at] = powers[at - 1] * 10;
  return powers;
}();

/// Appends the `count` characters, at most 19 with those before, to value; false if one is no digit.
[[nodiscard]] [[gnu::always_inline]] inline bool append_digits(const char* text, std::size_t count,
                                                               std::uint64_t& value) noexcept {
  while (count > 8) {
    const std::uint64_t eight = load_eight(text);
    if (!are_digits(eight)) return false;
    value = value * 100'000'000 + value_of_digits(eight);
    text += 8;
    count -= 8;
  }
  const std::uint64_t rest = first_of(load_eight(text), count);
  if (!are_digits(rest)) return false;
  value = value * powers_of_ten[count] + value_of_digits(rest);
  return true;
}

/// Returns the text without blanks around it, and without a plus in front.
[[nodiscard]] inline std::string_view trimmed_number(std::string_view text) noexcept {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  text = text.substr(first, text.find_last_not_of(" \t") - first + 1);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

/// Says why a text is no number of a type.
enum class NumberFault : std::uint8_t { none, not_a_number, too_large };

/// Reads the number that the whole text spells, blanks around it aside. Any length, and nothing behind it is read.
template <class Integer>
requires std::is_integral_v<Integer>
[[nodiscard]] NumberFault parse_number(std::string_view text, Integer& value) noexcept {
  text = trimmed_number(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return NumberFault::not_a_number;
  if (error == std::errc{}) return NumberFault::none;
  return error == std::errc::result_out_of_range ? NumberFault::too_large : NumberFault::not_a_number;
}

// Tells a number that is too near to zero for its type from one that is too large, given that it is one of them.
[[nodiscard]] inline bool is_tiny(std::string_view number, std::size_t exponent_at) noexcept {
  const std::string_view digits = number.substr(0, exponent_at);
  std::string_view power = number.substr(std::min(exponent_at + 1, number.size()));
  if (power.starts_with('+')) power.remove_prefix(1);
  std::int64_t exponent = 0;
  if (std::from_chars(power.data(), power.data() + power.size(), exponent).ec == std::errc::result_out_of_range) {
    return power.starts_with('-');
  }
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<std::int64_t>(std::min(digits.find_first_of("123456789"), digits.size()));
  return exponent < first - point;  // the first digit that counts stands behind the point
}

template <class Float>
requires std::is_floating_point_v<Float>
[[nodiscard]] NumberFault parse_number(std::string_view text, Float& value) noexcept {
  text = trimmed_number(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return NumberFault::not_a_number;
  if (error == std::errc{}) return NumberFault::none;
  if (error != std::errc::result_out_of_range) return NumberFault::not_a_number;
  if (!is_tiny(text, std::min(text.find_first_of("eE"), text.size()))) return NumberFault::too_large;
  double near_zero = 0;
  if constexpr (!std::is_same_v<Float, double>) {
    if (parse_number(text, near_zero) != NumberFault::none) near_zero = 0;
  }
  value = static_cast<Float>(near_zero);
  return NumberFault::none;
}

/// Reads an integer that is nothing but a sign and at most 18 digits; false where parse_number() is needed.
[[nodiscard]] inline bool parse_short(const char* text, std::size_t size, std::int64_t& value) noexcept {
  const bool is_negative = *text == '-';
  text += is_negative;
  size -= is_negative;
  std::uint64_t digits = 0;
  if (size - 1 > 17 || !append_digits(text, size, digits)) return false;
  value = is_negative ? -static_cast<std::int64_t>(digits) : static_cast<std::int64_t>(digits);
  return true;
}

inline constexpr std::array<std::uint64_t, 28> powers_of_five = [] {
  std::array<std::uint64_t, 28> powers{1};
  for (std::size_t at = 1; at < powers.size(); ++at) powers[at] = powers[at - 1] * 5;
  return powers;
}();

// How far each can be shifted to the left. As a table, because on some processors it takes long to find out.
inline constexpr auto shifts_of_fives = [] {
  std::array<std::int8_t, powers_of_five.size()> shifts{};
  for (std::size_t at = 0; at < shifts.size(); ++at) {
    shifts[at] = static_cast<std::int8_t>(std::countl_zero(powers_of_five[at]));
  }
  return shifts;
}();

template <class Float>
struct FloatFacts {
  static constexpr int digits = std::numeric_limits<Float>::digits;
  // Up to here digits are exact. Of doubles not up to 2^53, which is amid the numbers of 16 digits: the branch would be
  // mispredicted.
  static constexpr std::uint64_t most_exact_digits = digits == 53 ? 1'000'000'000'000'000 : std::uint64_t{1} << digits;
  static constexpr int most_exact_power = digits == 53 ? 22 : 10;  // 10 to this power is exact
  using Bits = std::conditional_t<digits == 53, std::uint64_t, std::uint32_t>;
  static constexpr auto powers = [] {
    std::array<Float, static_cast<std::size_t>(most_exact_power) + 1> all{1};
    for (std::size_t at = 1; at < all.size(); ++at) all[at] = all[at - 1] * 10;
    return all;
  }();
};

struct Division {
  std::uint64_t quotient = 0;
  std::uint64_t remainder = 0;
};

// Divides high * 2^64 + low; high < divisor. The compilers call a function for what is one instruction.
[[nodiscard]] inline Division divide_wide(std::uint64_t high, std::uint64_t low, std::uint64_t divisor) noexcept {
  Division result;
#if defined(__x86_64__)
  asm("divq %[divisor]"
      : "=a"(result.quotient), "=d"(result.remainder)
      : "a"(low), "d"(high), [divisor] "r"(divisor)
      : "cc");
#else
  const Wide dividend = static_cast<Wide>(high) << 64 | low;
  result.quotient = static_cast<std::uint64_t>(dividend / divisor);
  result.remainder = static_cast<std::uint64_t>(dividend % divisor);
#endif
  return result;
}

/// Returns digits / 10^power, rounded once, to nearest and even. digits: not 0. power: 0 to 27.
/// A quotient of 63 bits or more and whether there is a remainder decide how to round; no table of long reciprocals.
template <class Float>
[[nodiscard]] [[gnu::always_inline]] inline Float divide_by_power(std::uint64_t digits, int power) noexcept {
  using Facts = FloatFacts<Float>;
  const std::uint64_t five = powers_of_five[static_cast<std::size_t>(power)];
  const int up = std::countl_zero(digits);
  const int down = shifts_of_fives[static_cast<std::size_t>(power)];
  const std::uint64_t divisor = five << down;
  const auto [quotient, remainder] = divide_wide((digits << up) >> 1, digits << up << 63, divisor);
  const int dropped = 63 + static_cast<int>(quotient >> 63) - Facts::digits;
  const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
  const std::uint64_t rest = quotient & (2 * half - 1);
  std::uint64_t kept = quotient >> dropped;
  // Up if there is more than a half, or a half and what is kept is odd. It is at random, and a branch would be
  // mispredicted.
  const std::uint64_t is_up_at_half = (kept & 1U) | static_cast<std::uint64_t>(remainder != 0);
  kept += static_cast<std::uint64_t>(rest + is_up_at_half > half);
  const int exponent = dropped - 63 - up + down - power;
  using Bits = typename Facts::Bits;
  constexpr int bias = std::numeric_limits<Float>::max_exponent - 1;
  const auto scale = std::bit_cast<Float>(static_cast<Bits>(static_cast<Bits>(exponent + bias) << (Facts::digits - 1)));
  return static_cast<Float>(static_cast<std::int64_t>(kept)) * scale;  // both are exact, and so is the product
}

// Puts digits x 10^power together; false where the standard function must.
template <class Float>
[[nodiscard]] [[gnu::always_inline]] inline bool scale_digits(std::uint64_t digits, int power, Float& value) noexcept {
  using Facts = FloatFacts<Float>;
  if (digits <= Facts::most_exact_digits) {
    // Both are exact, so that the one operation rounds once.
    if (power < 0 && power >= -Facts::most_exact_power) {
      value = static_cast<Float>(static_cast<std::int64_t>(digits)) / Facts::powers[static_cast<std::size_t>(-power)];
      return true;
    }
    if (power >= 0 && power <= Facts::most_exact_power) {
      value = static_cast<Float>(static_cast<std::int64_t>(digits)) * Facts::powers[static_cast<std::size_t>(power)];
      return true;
    }
  }
  if (power > 0 || power < -27 || digits == 0) return false;
  value = divide_by_power<Float>(digits, -power);
  return true;
}

// Reads e, a sign and at most three digits behind a number.
[[nodiscard]] inline bool append_exponent(const char* text, const char* end, int& power) noexcept {
  if ((*text | 0x20) != 'e') return false;
  ++text;
  const bool is_negative = text < end && *text == '-';
  if (text < end && (*text == '-' || *text == '+')) ++text;
  std::uint64_t exponent = 0;
  const auto size = static_cast<std::size_t>(end - text);
  if (size - 1 > 2 || !append_digits(text, size, exponent)) return false;
  power += is_negative ? -static_cast<int>(exponent) : static_cast<int>(exponent);
  return true;
}

// Reads digits, a point and digits, at most 7 and 18 of them, 19 together. Takes words instead of a look at each
// character: where numbers differ in length, a loop over them costs more in wrong predictions than in work.
[[nodiscard]] [[gnu::always_inline]] inline bool parse_plain(const char* text, std::size_t size, std::uint64_t& digits,
                                                             int& power) noexcept {
  const std::uint64_t eight = load_eight(text);
  const std::uint64_t others = eight ^ 0x2E2E2E2E2E2E2E2EU;  // zero where the point is
  const std::uint64_t zeros = (others - 0x0101010101010101U) & ~others & 0x8080808080808080U;
  const auto whole = static_cast<std::size_t>(std::countr_zero(zeros)) / 8;
  const std::size_t fraction = size - whole - 1;
  if (whole - 1 > 6 || fraction - 1 > 17 || whole + fraction > 19) return false;
  const std::uint64_t first = first_of(eight, whole);
  digits = value_of_digits(first);
  power = -static_cast<int>(fraction);
  return are_digits(first) && append_digits(text + whole + 1, fraction, digits);
}

// Reads the same of any shape, and an exponent.
[[nodiscard]] inline bool parse_any(const char* text, std::size_t size, std::uint64_t& digits, int& power) noexcept {
  if (size > 27) return false;
  const char* const end = text + size;
  const auto append = [&] {
    const char* const begin = text;
    for (; text < end && static_cast<unsigned char>(*text - '0') < 10; ++text) {
      digits = digits * 10 + static_cast<unsigned char>(*text - '0');
    }
    return text - begin;
  };
  digits = 0;
  power = 0;
  auto num_digits = append();
  if (text < end && *text == '.') {
    ++text;
    const auto fraction = append();
    num_digits += fraction;
    power = -static_cast<int>(fraction);
  }
  if (num_digits < 1 || num_digits > 19) return false;
  return text == end || append_exponent(text, end, power);
}

/// Reads a number that has at most 19 digits and no large exponent; false where parse_number() is needed.
template <class Float>
requires std::is_floating_point_v<Float>
[[nodiscard]] bool parse_short(const char* text, std::size_t size, Float& value) noexcept {
  if (size == 0) return false;  // what lies behind may be a minus
  const bool is_negative = *text == '-';
  text += is_negative;
  size -= is_negative;
  std::uint64_t digits = 0;
  int power = 0;
  int exponent = 0;
  // As most programs write an exponent: e, a sign and two digits.
  const std::size_t mantissa = size > 4 && (text[size - 4] | 0x20) == 'e' ? size - 4 : size;
  const bool is_plain = parse_plain(text, mantissa, digits, power) &&
                        (mantissa == size || append_exponent(text + mantissa, text + size, exponent));
  if (!is_plain && !parse_any(text, size, digits, power)) return false;
  if (is_plain) power += exponent;
  if (!scale_digits(digits, power, value)) return false;
  if (is_negative) value = -value;
  return true;
}

/// Reads "true" or "false" as they are, in capitals, or with a capital first letter.
[[nodiscard]] inline std::optional<bool> parse_boolean(std::string_view text) noexcept {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
