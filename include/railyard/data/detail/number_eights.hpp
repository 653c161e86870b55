// SPDX-License-Identifier: MIT
// Numbers out of text, eight at once, where the processor can. Data room.
#pragma once

#include "railyard/core/version.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)
/// Whether what is below can be called.
[[nodiscard]] inline bool has_number_eights() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

/// Says where some numbers are in a text, behind which 64 more characters can be read.
struct NumberPlaces {
  static constexpr std::size_t most = 64;
  using Pair = std::array<std::uint32_t, 2>;
  const char* text = nullptr;
  alignas(64) std::array<Pair, most> separators{};      ///< where the one before and the one behind each is
  alignas(64) std::array<std::uint32_t, most> ends{};   ///< behind their last characters
  alignas(64) std::array<std::uint32_t, most> sizes{};  ///< 0 for those that are fewer
};

/// Makes ends and sizes of the first separators.
[[gnu::target("avx512f")]] inline void find_sizes(NumberPlaces& places, std::size_t count) noexcept {
  for (std::size_t at = count; at < NumberPlaces::most; ++at) places.separators[at] = {0, 1};
  const __m512i every_second = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i one = _mm512_set1_epi32(1);
  for (std::size_t at = 0; at < NumberPlaces::most; at += 16) {
    const __m512i low = _mm512_load_si512(&places.separators[at]);
    const __m512i high = _mm512_load_si512(&places.separators[at + 8]);
    const __m512i before = _mm512_permutex2var_epi32(low, every_second, high);
    const __m512i ends = _mm512_permutex2var_epi32(low, _mm512_add_epi32(every_second, one), high);
    _mm512_store_si512(&places.ends[at], ends);
    _mm512_store_si512(&places.sizes[at], _mm512_sub_epi32(_mm512_sub_epi32(ends, before), one));
  }
}

// Four texts, each at the right end of 16 lanes. Of each lane there is a bit in a word, that is 16 bits of each text.
struct FourTexts {
  __m512i digits{};           // what is none became 0 if it is a point or a minus in front
  std::uint64_t points = 0;   // all
  std::uint64_t minuses = 0;  // in front
  std::uint64_t numerals = 0;
  std::uint64_t wrong = 0;  // any bit: what is no number
};

inline constexpr std::uint64_t first_lanes = 0x0001'0001'0001'0001;
inline constexpr std::uint64_t last_lanes = first_lanes << 15;

// Returns the first lane of each text of which there is no bit.
[[nodiscard]] [[gnu::always_inline]] constexpr std::uint64_t texts_without(std::uint64_t bits) noexcept {
  return (~(((bits & ~last_lanes) + ~last_lanes) | bits) & last_lanes) >> 15;
}
// Returns all lanes of each text of which there is a bit.
[[nodiscard]] [[gnu::always_inline]] constexpr std::uint64_t texts_with(std::uint64_t bits) noexcept {
  const std::uint64_t first = texts_without(bits) ^ first_lanes;
  return (first << 16) - first;
}
// Returns the lanes up to the point, with it.
[[nodiscard]] [[gnu::always_inline]] constexpr std::uint64_t up_to(std::uint64_t points) noexcept {
  const std::uint64_t with_bit = points | texts_without(points);
  return ((with_bit - first_lanes) & ~with_bit) | points;
}
// Returns any bit of each text that has two points.
[[nodiscard]] [[gnu::always_inline]] constexpr std::uint64_t second_points(std::uint64_t points) noexcept {
  const std::uint64_t with_bit = points | texts_without(points);
  return with_bit & (with_bit - first_lanes);
}

// front: which lanes have a number's first character.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline FourTexts
look_at_four(__m512i characters, std::uint64_t all, std::uint64_t front, bool has_points) noexcept {
  FourTexts four;
  if (has_points) four.points = _mm512_mask_cmpeq_epi8_mask(all, characters, _mm512_set1_epi8('.'));
  four.minuses = _mm512_mask_cmpeq_epi8_mask(front, characters, _mm512_set1_epi8('-'));
  four.numerals = all & ~(four.points | four.minuses);
  four.digits = _mm512_maskz_sub_epi8(four.numerals, characters, _mm512_set1_epi8('0'));
  four.wrong = _mm512_cmpgt_epu8_mask(four.digits, _mm512_set1_epi8(9));
  return four;
}

// Takes every second of eight texts: 16 characters each, from a distance before their ends on.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m512i
load_every_second(const char* text, const std::uint32_t* ends, std::size_t distance) noexcept {
  constexpr __mmask16 all_words = 0xFFFF;  // GCC 12 warns about its own code in the functions without a mask
  const auto* const first = reinterpret_cast<const __m128i*>(text + ends[0] - distance);
  const auto* const second = reinterpret_cast<const __m128i*>(text + ends[2] - distance);
  const auto* const third = reinterpret_cast<const __m128i*>(text + ends[4] - distance);
  const auto* const fourth = reinterpret_cast<const __m128i*>(text + ends[6] - distance);
  const __m512i two =
      _mm512_maskz_inserti32x4(all_words, _mm512_castsi128_si512(_mm_loadu_si128(first)), _mm_loadu_si128(second), 1);
  const __m512i three = _mm512_maskz_inserti32x4(all_words, two, _mm_loadu_si128(third), 2);
  return _mm512_maskz_inserti32x4(all_words, three, _mm_loadu_si128(fourth), 3);
}

// Eight numbers, in order.
struct EightNumbers {
  __m512i digits{};     // all of them, without the point, as integers
  __m512i fractions{};  // how many of them are behind the point
  __mmask8 negative = 0;
  __mmask8 wrong = 0;
};

// Puts the 16 bits of each text in the order of the numbers.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m128i
in_order(std::uint64_t even, std::uint64_t odd) noexcept {
  return _mm_unpacklo_epi16(_mm_cvtsi64_si128(static_cast<long long>(even)),
                            _mm_cvtsi64_si128(static_cast<long long>(odd)));
}
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __mmask8 any_of(
    std::uint64_t even, std::uint64_t odd) noexcept {
  const __m128i bits = in_order(even, odd);
  return _mm_test_epi16_mask(bits, bits);
}

// Returns numbers of four digits each.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m512i
fours_of(__m512i digits) noexcept {
  const __m512i twos = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(1 * 256 + 10));
  return _mm512_madd_epi16(twos, _mm512_set1_epi32(1 * 65536 + 100));
}
// Returns numbers of 16 digits.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m512i
sixteens_of(__m512i even, __m512i odd) noexcept {
  constexpr __mmask8 all_longs = 0xFF;
  const __m512i fours = _mm512_packus_epi32(fours_of(even), fours_of(odd));
  const __m512i eights = _mm512_madd_epi16(fours, _mm512_set1_epi32(1 * 65536 + 10000));
  return _mm512_add_epi64(_mm512_maskz_mul_epu32(all_longs, eights, _mm512_set1_epi64(100'000'000)),
                          _mm512_maskz_srli_epi64(all_longs, eights, 32));
}

// Says of every second of eight texts how long it is, in each of its lanes.
struct SizesOfFours {
  __m512i even;
  __m512i odd;
};
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline SizesOfFours
spread(__m256i sizes) noexcept {
  constexpr __mmask16 all_words = 0xFFFF;
  const __m512i all = _mm512_castsi256_si512(sizes);
  const __m512i even = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
  const __m512i odd = _mm512_set_epi32(7, 7, 7, 7, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1);
  const __m512i first_byte = _mm512_setzero_si512();
  return {_mm512_shuffle_epi8(_mm512_maskz_permutexvar_epi32(all_words, even, all), first_byte),
          _mm512_shuffle_epi8(_mm512_maskz_permutexvar_epi32(all_words, odd, all), first_byte)};
}

// Returns which lanes have characters of texts that end so many lanes before the last one.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline std::uint64_t
lanes_of(__m512i sizes, char before_last) noexcept {
  const __m512i from_last =
      _mm512_set_epi64(0x0001020304050607, 0x08090A0B0C0D0E0F, 0x0001020304050607, 0x08090A0B0C0D0E0F,
                       0x0001020304050607, 0x08090A0B0C0D0E0F, 0x0001020304050607, 0x08090A0B0C0D0E0F);
  return _mm512_cmpgt_epu8_mask(sizes, _mm512_add_epi8(from_last, _mm512_set1_epi8(before_last)));
}
[[nodiscard]] [[gnu::always_inline]] constexpr std::uint64_t first_of_each(std::uint64_t all) noexcept {
  return all & ~((all << 1) & ~first_lanes);
}

// Looks at four texts of at most 16 characters each; digits before the point move to its place.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline FourTexts
look_at_short_four(const char* text, const std::uint32_t* ends, __m512i sizes, bool has_points) noexcept {
  const std::uint64_t all = lanes_of(sizes, 0);
  FourTexts four = look_at_four(load_every_second(text, ends, 16), all, first_of_each(all), has_points);
  if (!has_points) return four;
  four.wrong |= second_points(four.points);
  four.digits = _mm512_mask_blend_epi8(up_to(four.points), four.digits, _mm512_bslli_epi128(four.digits, 1));
  return four;
}

// Reads eight numbers of at most 16 characters. As many can be read before each end.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline EightNumbers
read_short_eight(const char* text, const std::uint32_t* ends, __m256i sizes, bool has_points) noexcept {
  constexpr __mmask8 all_longs = 0xFF;
  const SizesOfFours lanes = spread(sizes);
  const FourTexts even = look_at_short_four(text, ends, lanes.even, has_points);
  const FourTexts odd = look_at_short_four(text, ends + 1, lanes.odd, has_points);
  EightNumbers eight;
  eight.digits = sixteens_of(even.digits, odd.digits);
  eight.negative = any_of(even.minuses, odd.minuses);
  eight.wrong = static_cast<__mmask8>(any_of(even.wrong, odd.wrong) | ~any_of(even.numerals, odd.numerals));
  if (!has_points) return eight;
  const __m512i points = _mm512_maskz_cvtepu16_epi64(all_longs, in_order(even.points, odd.points));
  eight.fractions = _mm512_and_si512(
      _mm512_sub_epi64(_mm512_maskz_lzcnt_epi64(all_longs, points), _mm512_set1_epi64(48)), _mm512_set1_epi64(15));
  return eight;
}

// Four texts of at most 20 characters each: the last 16 and those before, which are at the right end of 16 lanes.
struct FourLongTexts {
  FourTexts last;
  FourTexts first;
};

[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline FourLongTexts
look_at_long_four(const char* text, const std::uint32_t* ends, __m512i sizes, bool has_points) noexcept {
  const std::uint64_t in_last = lanes_of(sizes, 0);
  const std::uint64_t in_first = lanes_of(sizes, 16);
  const std::uint64_t front = first_of_each(in_last) & ~(in_first >> 15 & first_lanes);
  FourTexts last = look_at_four(load_every_second(text, ends, 16), in_last, front, has_points);
  FourTexts first = look_at_four(load_every_second(text, ends, 32), in_first, first_of_each(in_first), has_points);
  last.wrong |= first.wrong;
  last.numerals |= first.numerals;
  last.minuses |= first.minuses;
  if (!has_points) return {last, first};
  const std::uint64_t all_before = texts_with(last.points);
  last.wrong |= second_points(last.points) | second_points(first.points) | (all_before & first.points);
  last.digits =
      _mm512_mask_blend_epi8(up_to(last.points), last.digits, _mm512_alignr_epi8(last.digits, first.digits, 15));
  first.digits =
      _mm512_mask_blend_epi8(up_to(first.points) | all_before, first.digits, _mm512_bslli_epi128(first.digits, 1));
  return {last, first};
}

// Reads eight numbers of at most 20 characters. 32 can be read before each end.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline EightNumbers
read_long_eight(const char* text, const std::uint32_t* ends, __m256i sizes, bool has_points) noexcept {
  constexpr __mmask8 all_longs = 0xFF;
  const SizesOfFours lanes = spread(sizes);
  const FourLongTexts even = look_at_long_four(text, ends, lanes.even, has_points);
  const FourLongTexts odd = look_at_long_four(text, ends + 1, lanes.odd, has_points);
  EightNumbers eight;
  eight.negative = any_of(even.last.minuses, odd.last.minuses);
  eight.wrong =
      static_cast<__mmask8>(any_of(even.last.wrong, odd.last.wrong) | ~any_of(even.last.numerals, odd.last.numerals));
  // Of the first 16 lanes the last four have digits. With so few, all digits make less than 2^63.
  const __m512i firsts =
      _mm512_maskz_unpackhi_epi64(all_longs, _mm512_maskz_srli_epi64(all_longs, fours_of(even.first.digits), 32),
                                  _mm512_maskz_srli_epi64(all_longs, fours_of(odd.first.digits), 32));
  eight.wrong = static_cast<__mmask8>(eight.wrong | _mm512_cmpgt_epi64_mask(firsts, _mm512_set1_epi64(921)));
  eight.digits = _mm512_add_epi64(_mm512_mullo_epi64(firsts, _mm512_set1_epi64(10'000'000'000'000'000)),
                                  sixteens_of(even.last.digits, odd.last.digits));
  if (!has_points) return eight;
  const __m128i in_first = in_order(even.first.points, odd.first.points);
  const __m128i in_last = in_order(even.last.points, odd.last.points);
  const __m256i points = _mm256_set_m128i(_mm_unpackhi_epi16(in_first, in_last), _mm_unpacklo_epi16(in_first, in_last));
  const __m512i zeros = _mm512_maskz_lzcnt_epi64(all_longs, _mm512_maskz_cvtepu32_epi64(all_longs, points));
  eight.fractions = _mm512_and_si512(_mm512_sub_epi64(zeros, _mm512_set1_epi64(32)), _mm512_set1_epi64(31));
  return eight;
}

inline constexpr auto exact_tens = [] {
  std::array<double, 24> tens{};
  double ten_to = 1;
  for (std::size_t power = 0; power < 23; ++power, ten_to *= 10) tens[power] = ten_to;
  return tens;
}();
inline constexpr auto inverse_tens = [] {
  std::array<double, 24> inverses{};
  for (std::size_t power = 0; power < 23; ++power) inverses[power] = 1 / exact_tens[power];
  return inverses;
}();

// Returns elements of a table of 16, or of 24.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m512d
look_up_16(const double* table, __m512i places) noexcept {
  return _mm512_permutex2var_pd(_mm512_loadu_pd(table), places, _mm512_loadu_pd(table + 8));
}
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m512d
look_up_24(const double* table, __m512i places) noexcept {
  const __mmask8 is_high = _mm512_cmpgt_epi64_mask(places, _mm512_set1_epi64(15));
  return _mm512_mask_permutexvar_pd(look_up_16(table, places), is_high, places, _mm512_loadu_pd(table + 16));
}

[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m512d
with_signs(__m512d values, __mmask8 negative) noexcept {
  const __m512i bits = _mm512_castpd_si512(values);
  return _mm512_castsi512_pd(
      _mm512_mask_or_epi64(bits, negative, bits, _mm512_set1_epi64(std::numeric_limits<std::int64_t>::min())));
}

// Eight doubles, and which of them are to be read by other means.
struct EightDoubles {
  __m512d values{};
  __mmask8 unread = 0;
};

// Of digits of at most 16 characters with a point. Digits and power are exact, so that the one operation rounds once.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline EightDoubles
short_doubles(const EightNumbers& eight) noexcept {
  const __m512d digits = _mm512_cvtepi64_pd(eight.digits);
  return {with_signs(_mm512_div_pd(digits, look_up_16(exact_tens.data(), eight.fractions)), eight.negative),
          eight.wrong};
}

// Rounds digits x 10^power, where both the power and its inverse are exact, if they are: a quotient is corrected by
// what the remainder and those of the digits that a double has no room for make of it. Where that is near to a half of
// what doubles can tell apart, it does not say how to round.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline EightDoubles
long_doubles(const EightNumbers& eight, __m512i exponents) noexcept {
  constexpr __mmask8 all_longs = 0xFF;
  const __m512i zero = _mm512_setzero_si512();
  const __m512d high = _mm512_cvtepi64_pd(eight.digits);
  const __m512d low = _mm512_cvtepi64_pd(_mm512_sub_epi64(eight.digits, _mm512_cvtpd_epi64(high)));
  const __m512i power = _mm512_sub_epi64(exponents, eight.fractions);
  const __m512i up = _mm512_maskz_max_epi64(all_longs, power, zero);
  const __m512i down = _mm512_maskz_max_epi64(all_longs, _mm512_sub_epi64(zero, power), zero);
  const __m512i most = _mm512_set1_epi64(22);
  const __mmask8 is_far =
      static_cast<__mmask8>(_mm512_cmpgt_epi64_mask(up, most) | _mm512_cmpgt_epi64_mask(down, most));
  const __mmask8 is_inexact =
      _mm512_mask_cmp_pd_mask(_mm512_cmpgt_epi64_mask(up, zero), low, _mm512_setzero_pd(), _CMP_NEQ_OQ);
  const __m512d divisor = look_up_24(exact_tens.data(), down);
  const __m512d dividend = _mm512_mul_pd(high, look_up_24(exact_tens.data(), up));
  const __m512d quotient = _mm512_div_pd(dividend, divisor);
  const __m512d rest = _mm512_add_pd(_mm512_fnmadd_pd(quotient, divisor, dividend), low);
  const __m512d correction = _mm512_mul_pd(rest, look_up_24(inverse_tens.data(), down));
  // It is known better than by this.
  const __m512d value = _mm512_fmadd_pd(correction, _mm512_set1_pd(1 + 0x1p-45), quotient);
  const __m512d other = _mm512_fmadd_pd(correction, _mm512_set1_pd(1 - 0x1p-45), quotient);
  const __mmask8 is_uncertain = _mm512_cmp_pd_mask(value, other, _CMP_NEQ_UQ);
  return {with_signs(value, eight.negative), static_cast<__mmask8>(eight.wrong | is_far | is_inexact | is_uncertain)};
}

// What numbers say behind an e, and where they would be without that.
struct NumberExponents {
  alignas(64) std::array<std::int32_t, NumberPlaces::most> exponents{};
  std::uint64_t wrong = 0;
};

// Takes what most programs write off the ends of numbers: e, a sign and two digits.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]] inline void take_exponents(
    NumberPlaces& places, NumberExponents& to) noexcept {
  alignas(64) std::array<std::uint32_t, NumberPlaces::most> words;
  for (std::size_t at = 0; at < NumberPlaces::most; ++at) {
    std::memcpy(&words[at], places.text + places.ends[at] - 4, sizeof(std::uint32_t));
  }
  const __m512i byte = _mm512_set1_epi32(0xFF);
  const __m512i zero = _mm512_set1_epi32('0');
  for (std::size_t at = 0; at < NumberPlaces::most; at += 16) {
    constexpr __mmask16 all_words = 0xFFFF;
    const __m512i word = _mm512_load_si512(&words[at]);
    const __m512i sizes = _mm512_load_si512(&places.sizes[at]);
    const __m512i letter = _mm512_and_si512(_mm512_or_si512(word, _mm512_set1_epi32(0x20)), byte);
    const __mmask16 has_one = _mm512_mask_cmpeq_epi32_mask(_mm512_cmpgt_epu32_mask(sizes, _mm512_set1_epi32(4)), letter,
                                                           _mm512_set1_epi32('e'));
    const __m512i sign = _mm512_and_si512(_mm512_maskz_srli_epi32(all_words, word, 8), byte);
    const __m512i tens = _mm512_sub_epi32(_mm512_and_si512(_mm512_maskz_srli_epi32(all_words, word, 16), byte), zero);
    const __m512i ones = _mm512_sub_epi32(_mm512_maskz_srli_epi32(all_words, word, 24), zero);
    const __mmask16 is_negative = _mm512_mask_cmpeq_epi32_mask(has_one, sign, _mm512_set1_epi32('-'));
    const __mmask16 is_signed =
        static_cast<__mmask16>(is_negative | _mm512_cmpeq_epi32_mask(sign, _mm512_set1_epi32('+')));
    const __m512i most = _mm512_maskz_max_epu32(all_words, tens, ones);
    const __mmask16 is_wrong =
        static_cast<__mmask16>(has_one & (~is_signed | _mm512_cmpgt_epu32_mask(most, _mm512_set1_epi32(9))));
    const __m512i exponent = _mm512_maskz_add_epi32(has_one, _mm512_mullo_epi32(tens, _mm512_set1_epi32(10)), ones);
    _mm512_store_si512(&to.exponents[at],
                       _mm512_mask_sub_epi32(exponent, is_negative, _mm512_setzero_si512(), exponent));
    const __m512i four = _mm512_set1_epi32(4);
    const __m512i ends = _mm512_load_si512(&places.ends[at]);
    _mm512_store_si512(&places.sizes[at], _mm512_mask_sub_epi32(sizes, has_one, sizes, four));
    _mm512_store_si512(&places.ends[at], _mm512_mask_sub_epi32(ends, has_one, ends, four));
    to.wrong |= std::uint64_t{is_wrong} << at;
  }
}

// Makes numbers of no size, which none is, of those before which too little of the text lies.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline void keep_within_text(
    NumberPlaces& places) noexcept {
  const __m512i least = _mm512_set1_epi32(36);
  for (std::size_t at = 0; at < NumberPlaces::most; at += 16) {
    constexpr __mmask16 all_words = 0xFFFF;
    const __m512i ends = _mm512_load_si512(&places.ends[at]);
    const __mmask16 is_within = _mm512_cmpge_epu32_mask(ends, least);
    _mm512_store_si512(&places.sizes[at], _mm512_maskz_loadu_epi32(is_within, &places.sizes[at]));
    _mm512_store_si512(&places.ends[at], _mm512_maskz_max_epu32(all_words, ends, least));
  }
}

// The sizes of eight numbers: 0, which none has, of those that have more characters than that.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd"), gnu::always_inline]] inline __m256i
sizes_up_to(int most, const std::uint32_t* sizes) noexcept {
  const __m256i all = _mm256_load_si256(reinterpret_cast<const __m256i*>(sizes));
  return _mm256_maskz_mov_epi32(_mm256_cmple_epu32_mask(all, _mm256_set1_epi32(most)), all);
}

[[nodiscard]] constexpr __mmask8 first_of_eight(std::size_t count) noexcept {
  return static_cast<__mmask8>(count >= 8 ? 0xFF : (1U << count) - 1);
}

/// Reads numbers that are a minus or none and digits with a point or without, 16 characters together; if is_long, 20,
/// and e, a sign and two digits behind them. What is 32 characters or fewer from where the text begins is not read.
/// values: has room for count. Changes the places.
/// Returns a bit for each number: whether it must be read by other means, and what was written is void.
template <bool is_long>
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]] std::uint64_t read_by_eights(
    NumberPlaces& places, std::size_t count, double* values) noexcept {
  keep_within_text(places);
  NumberExponents exponents;
  if constexpr (is_long) {
    take_exponents(places, exponents);
    keep_within_text(places);
  }
  std::uint64_t unread = exponents.wrong;
  for (std::size_t at = 0; at < count; at += 8) {
    EightDoubles eight;
    const std::uint32_t* const ends = &places.ends[at];
    const __m256i sizes = sizes_up_to(is_long ? 20 : 16, &places.sizes[at]);
    if constexpr (is_long) {
      const auto* const own = reinterpret_cast<const __m256i*>(&exponents.exponents[at]);
      // Those of a column are alike: without their exponents they are all short, or hardly any are.
      const bool are_short = _mm256_cmpgt_epu32_mask(sizes, _mm256_set1_epi32(16)) == 0;
      eight = long_doubles(are_short ? read_short_eight(places.text, ends, sizes, true)
                                     : read_long_eight(places.text, ends, sizes, true),
                           _mm512_maskz_cvtepi32_epi64(0xFF, _mm256_load_si256(own)));
    } else {
      eight = short_doubles(read_short_eight(places.text, ends, sizes, true));
    }
    _mm512_mask_storeu_pd(values + at, first_of_eight(count - at), eight.values);
    unread |= std::uint64_t{eight.unread} << at;
  }
  return unread & (count < 64 ? (std::uint64_t{1} << count) - 1 : ~std::uint64_t{0});
}

/// Does the same with integers: a minus or none and digits.
template <bool is_long>
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]] std::uint64_t read_by_eights(
    NumberPlaces& places, std::size_t count, std::int64_t* values) noexcept {
  keep_within_text(places);
  std::uint64_t unread = 0;
  for (std::size_t at = 0; at < count; at += 8) {
    const std::uint32_t* const ends = &places.ends[at];
    const __m256i sizes = sizes_up_to(is_long ? 20 : 16, &places.sizes[at]);
    const EightNumbers eight =
        is_long ? read_long_eight(places.text, ends, sizes, false) : read_short_eight(places.text, ends, sizes, false);
    const __m512i signed_digits =
        _mm512_mask_sub_epi64(eight.digits, eight.negative, _mm512_setzero_si512(), eight.digits);
    _mm512_mask_storeu_epi64(values + at, first_of_eight(count - at), signed_digits);
    unread |= std::uint64_t{eight.wrong} << at;
  }
  return unread & (count < 64 ? (std::uint64_t{1} << count) - 1 : ~std::uint64_t{0});
}
#endif

}  // namespace detail
}  // namespace railyard::inline v0_1
