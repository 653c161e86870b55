// SPDX-License-Identifier: MIT
// Numbers out of text, 16 characters at once, where the processor can; most of them take the same steps whatever their
// length and sign. Data room.
#pragma once

#include "railyard/data/detail/number_text.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <smmintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)
/// Whether parse_by_lanes() can be called.
[[nodiscard]] inline bool has_number_lanes() noexcept {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi2") != 0;
}

// Reads the first `size` of 16 characters, of which the one at `point` is left out. point + 1 == size == 17 for all 16.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool read_lanes(
    __m128i text, std::size_t size, std::size_t point, std::uint64_t& value) noexcept {
  const __m128i lanes = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  // To the right end; what is before the point one further. Lanes that take a character before the text become 0.
  __m128i from = _mm_add_epi8(lanes, _mm_set1_epi8(static_cast<char>(size - 16)));
  from = _mm_add_epi8(from, _mm_cmpgt_epi8(_mm_set1_epi8(static_cast<char>(point + 1)), from));
  const __m128i digits = _mm_shuffle_epi8(_mm_sub_epi8(text, _mm_set1_epi8('0')), from);
  const __m128i above_nine = _mm_subs_epu8(digits, _mm_set1_epi8(9));
  const __m128i twos = _mm_maddubs_epi16(digits, _mm_set1_epi16(1 * 256 + 10));
  const __m128i fours = _mm_madd_epi16(twos, _mm_set1_epi32(1 * 65536 + 100));
  const __m128i eights = _mm_madd_epi16(_mm_packus_epi32(fours, fours), _mm_set1_epi32(1 * 65536 + 10000));
  const auto halves = static_cast<std::uint64_t>(_mm_cvtsi128_si64(eights));
  value = (halves & 0xFFFFFFFFU) * 100'000'000 + (halves >> 32);
  return _mm_testz_si128(above_nine, above_nine) != 0;
}

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline __m128i load_lanes(
    const char* text) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(text));
}

// Reads at most 19 digits, with a point or without; of more than 16 characters, the point is before the last 16.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool read_plain_by_lanes(
    const char* text, std::size_t size, std::uint64_t& digits, int& power) noexcept {
  if (size - 1 > 19) return false;
  const std::size_t head = size > 16 ? size - 16 : size;
  const __m128i first = load_lanes(text);
  const auto points = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(first, _mm_set1_epi8('.'))));
  const auto point = static_cast<std::size_t>(std::countr_zero(points | std::uint32_t{1} << head));
  const std::size_t end = std::max(head, point + 1);  // as if there were one behind a number without a point
  if (end < 2 || !read_lanes(first, end, point, digits)) return false;
  power = -static_cast<int>(end - point - 1);
  if (size <= 16) return true;
  std::uint64_t last = 0;
  if (digits > 999 || !read_lanes(load_lanes(text + head), 17, 16, last)) return false;
  digits = digits * powers_of_ten[16] + last;
  if (point < head) power -= 16;
  return true;
}

/// Reads most numbers, as parse_short() would; false where that or parse_number() is needed.
template <class Float>
requires std::is_floating_point_v<Float>
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool parse_by_lanes(const char* text,
                                                                                              std::size_t size,
                                                                                              Float& value) noexcept {
  const bool is_negative = *text == '-';
  text += is_negative;
  size -= is_negative;
  std::uint64_t digits = 0;
  int power = 0;
  // As most programs write an exponent: e, a sign and two digits.
  if (size > 4 && (text[size - 4] | 0x20) == 'e') {
    const auto tens = static_cast<unsigned>(text[size - 2] - '0');
    const auto ones = static_cast<unsigned>(text[size - 1] - '0');
    const char sign = text[size - 3];
    if (tens > 9 || ones > 9 || (sign != '-' && sign != '+')) return false;
    if (!read_plain_by_lanes(text, size - 4, digits, power)) return false;
    const int exponent = static_cast<int>(tens * 10 + ones);
    power += sign == '-' ? -exponent : exponent;
  } else if (!read_plain_by_lanes(text, size, digits, power)) {
    return false;
  }
  if (!scale_digits(digits, power, value)) return false;
  using Bits = typename FloatFacts<Float>::Bits;  // signs are at random, and a branch would be mispredicted
  value = std::bit_cast<Float>(std::bit_cast<Bits>(value) | static_cast<Bits>(is_negative) << (sizeof(Bits) * 8 - 1));
  return true;
}

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool parse_by_lanes(
    const char* text, std::size_t size, std::int64_t& value) noexcept {
  const bool is_negative = *text == '-';
  text += is_negative;
  size -= is_negative;
  std::uint64_t digits = 0;
  if (size - 1 > 15 || !read_lanes(load_lanes(text), size + 1, size, digits)) return false;
  const auto sign = -static_cast<std::int64_t>(is_negative);
  value = (static_cast<std::int64_t>(digits) ^ sign) - sign;
  return true;
}
#endif

}  // namespace detail
}  // namespace railyard::inline v0_1
