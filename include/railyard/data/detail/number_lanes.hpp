// SPDX-License-Identifier: MIT
// Numbers out of text, 16 characters at once, where the processor can; most of them take the same steps whatever their
// length and sign. Data room.
#pragma once

#include "railyard/data/detail/number_text.hpp"

#include <algorithm>
#include <array>
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

// What moves 16 characters to the right end of 16 lanes: lane j takes character j - 16 + size, and a lane that takes
// one before the text becomes 0. The lanes are read from the size on.
inline constexpr auto lane_orders = [] {
  std::array<signed char, 34> orders{};
  for (std::size_t at = 0; at < orders.size(); ++at) orders[at] = static_cast<signed char>(static_cast<int>(at) - 16);
  return orders;
}();

// What is added to that where a point is left out: characters up to it are taken from one further left. The lanes are
// read from the number of characters behind the one before the point on.
inline constexpr auto lane_steps = [] {
  std::array<signed char, 34> steps{};
  for (std::size_t at = 0; at < 17; ++at) steps[at] = -1;
  return steps;
}();

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline __m128i load_lanes(
    const void* from) noexcept {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

/// What numbers are read with: make one for many. Hidden from the compilers, which make constants anew for each number.
struct NumberLanes {
  __m128i zeros = same('0');
  __m128i nines = same(9);
  __m128i points = same('.');
  __m128i front = _mm_setr_epi8('-', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0');

 private:
  [[nodiscard]] static __m128i same(char lane) noexcept {
    __m128i lanes = _mm_set1_epi8(lane);
    asm("" : "+x"(lanes));
    return lanes;
  }
};

// Returns the values of 16 characters; that of a minus in front is 0. What is no digit becomes more than 9.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline __m128i digits_of_lanes(
    __m128i text, const NumberLanes& with) noexcept {
  return _mm_andnot_si128(_mm_cmpeq_epi8(text, with.front), _mm_sub_epi8(text, with.zeros));
}

// Returns numbers of four digits.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline __m128i fours_of_lanes(
    __m128i digits) noexcept {
  const __m128i twos = _mm_maddubs_epi16(digits, _mm_set1_epi16(1 * 256 + 10));
  return _mm_madd_epi16(twos, _mm_set1_epi32(1 * 65536 + 100));
}

// Puts numbers of eight digits together.
[[nodiscard]] constexpr std::uint64_t join_eights(std::uint64_t halves) noexcept {
  return (halves & 0xFFFFFFFFU) * 100'000'000 + (halves >> 32);
}

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool are_digits(
    __m128i digits, const NumberLanes& with) noexcept {
  const __m128i above_nine = _mm_subs_epu8(digits, with.nines);
  return _mm_testz_si128(above_nine, above_nine) != 0;
}

// Reads at most 21 characters: a minus or none, and at most 19 digits with a point or without; of more than 16
// characters, the point is before the last 16.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool read_plain_by_lanes(
    const char* text, std::size_t size, std::size_t sign, const NumberLanes& with, std::uint64_t& digits,
    int& power) noexcept {
  if (size - 1 > 20) return false;
  const std::size_t head = size > 16 ? size - 16 : size;
  const __m128i first = load_lanes(text);
  const auto points = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(first, with.points)));
  const auto point = static_cast<std::size_t>(std::countr_zero(points | std::uint32_t{1} << head));
  const std::size_t end = std::max(head, point + 1);  // as if there were one behind a number without a point
  const std::size_t behind = end - point;
  const __m128i order = _mm_add_epi8(load_lanes(lane_orders.data() + end), load_lanes(lane_steps.data() + behind));
  const __m128i lanes = _mm_shuffle_epi8(digits_of_lanes(first, with), order);
  if (end < sign + 2 || !are_digits(lanes, with)) return false;
  power = 1 - static_cast<int>(behind);
  __m128i fours = fours_of_lanes(lanes);
  const __m128i to_eights = _mm_set1_epi32(1 * 65536 + 10000);
  if (size <= 16) {
    fours = _mm_madd_epi16(_mm_packus_epi32(fours, fours), to_eights);
    digits = join_eights(static_cast<std::uint64_t>(_mm_cvtsi128_si64(fours)));
    return true;
  }
  const __m128i last = _mm_sub_epi8(load_lanes(text + head), with.zeros);
  fours = _mm_madd_epi16(_mm_packus_epi32(fours, fours_of_lanes(last)), to_eights);
  digits = join_eights(static_cast<std::uint64_t>(_mm_cvtsi128_si64(fours)));
  if (digits > 999 || !are_digits(last, with)) return false;
  digits = digits * powers_of_ten[16] + join_eights(static_cast<std::uint64_t>(_mm_extract_epi64(fours, 1)));
  if (point < head) power -= 16;
  return true;
}

/// Reads most numbers, as parse_short() would; false where that or parse_number() is needed.
template <class Float>
requires std::is_floating_point_v<Float>
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool parse_by_lanes(const char* text,
                                                                                              std::size_t size,
                                                                                              const NumberLanes& with,
                                                                                              Float& value) noexcept {
  const bool is_negative = *text == '-';
  std::uint64_t digits = 0;
  int power = 0;
  // As most programs write an exponent: e, a sign and two digits.
  if (size > 4 && (text[size - 4] | 0x20) == 'e') {
    const auto tens = static_cast<unsigned>(text[size - 2] - '0');
    const auto ones = static_cast<unsigned>(text[size - 1] - '0');
    const char sign = text[size - 3];
    if (tens > 9 || ones > 9 || (sign != '-' && sign != '+')) return false;
    if (!read_plain_by_lanes(text, size - 4, is_negative, with, digits, power)) return false;
    const int exponent = static_cast<int>(tens * 10 + ones);
    power += sign == '-' ? -exponent : exponent;
  } else if (!read_plain_by_lanes(text, size, is_negative, with, digits, power)) {
    return false;
  }
  if (!scale_digits(digits, power, value)) return false;
  using Bits = typename FloatFacts<Float>::Bits;  // signs are at random, and a branch would be mispredicted
  value = std::bit_cast<Float>(std::bit_cast<Bits>(value) | static_cast<Bits>(is_negative) << (sizeof(Bits) * 8 - 1));
  return true;
}

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool parse_by_lanes(
    const char* text, std::size_t size, const NumberLanes& with, std::int64_t& value) noexcept {
  const bool is_negative = *text == '-';
  if (size - 1 > 15 || size == is_negative) return false;
  const __m128i lanes =
      _mm_shuffle_epi8(digits_of_lanes(load_lanes(text), with), load_lanes(lane_orders.data() + size));
  if (!are_digits(lanes, with)) return false;
  __m128i fours = fours_of_lanes(lanes);
  fours = _mm_madd_epi16(_mm_packus_epi32(fours, fours), _mm_set1_epi32(1 * 65536 + 10000));
  const std::uint64_t digits = join_eights(static_cast<std::uint64_t>(_mm_cvtsi128_si64(fours)));
  const auto sign = -static_cast<std::int64_t>(is_negative);
  value = (static_cast<std::int64_t>(digits) ^ sign) - sign;
  return true;
}
#endif

}  // namespace detail
}  // namespace railyard::inline v0_1
