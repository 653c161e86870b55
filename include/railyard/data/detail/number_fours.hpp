// SPDX-License-Identifier: MIT
// Numbers out of text, four at once, where the processor can. Data room.
#pragma once

#include "railyard/data/detail/number_text.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)
/// Whether read_by_fours() can be called.
[[nodiscard]] inline bool has_number_fours() noexcept {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

// What it takes: four times 16 bytes are handled at once, and of each of them there is a bit in a word.
inline constexpr std::uint64_t first_of_fours = 0x0001'0001'0001'0001;

// 16 bits each.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m128i fields_of(
    std::uint64_t bits) noexcept {
  return _mm_cvtepu16_epi32(_mm_cvtsi64_si128(static_cast<long long>(bits)));
}

/// Reads numbers that are a minus or none and digits with a point or without, 15 characters together.
/// begins, sizes: of their texts. count: at most 64; of the last count % 4 none is read, and nothing is written.
/// Returns a bit for each number: whether it must be read by other means, and what was written is void.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,bmi,bmi2")]] inline std::uint64_t
read_by_fours(const char* text, const std::uint32_t* begins, const std::uint32_t* sizes, std::size_t count,
              double* values) noexcept {
  constexpr std::uint32_t most = 15;
  // Of the functions that take a mask, as GCC 12 warns about its own code in the others.
  constexpr __mmask16 all_words = 0xFFFF;
  constexpr __mmask8 all_longs = 0xFF;
  const __m512i lanes =
      _mm512_maskz_broadcast_i32x4(all_words, _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m512i to_end = _mm512_sub_epi8(lanes, _mm512_set1_epi8(16));
  // Takes the first, second, third or fourth of four words to all bytes of as many lanes.
  const __m512i own = _mm512_set_epi64(0x0C0C0C0C0C0C0C0C, 0x0C0C0C0C0C0C0C0C, 0x0808080808080808, 0x0808080808080808,
                                       0x0404040404040404, 0x0404040404040404, 0, 0);
  const __m512i evens = _mm512_set_epi64(0, 0, 0, 0, 6, 4, 2, 0);
  const __m512d low_powers = _mm512_set_pd(1e7, 1e6, 1e5, 1e4, 1e3, 1e2, 1e1, 1e0);
  const __m512d high_powers = _mm512_set_pd(1e15, 1e14, 1e13, 1e12, 1e11, 1e10, 1e9, 1e8);
  const __m128i ones = _mm_set1_epi32(1);
  const auto load = [&](std::size_t at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + begins[at]));
  };
  // In two steps, so that a processor has more fours in work at once.
  alignas(64) std::array<char, 16 * 64> all_digits;
  std::array<std::uint64_t, 16> all_points;
  std::array<std::uint64_t, 16> all_minuses;
  std::array<std::uint64_t, 16> all_wrong;
  const std::size_t fours_count = count / 4;
  for (std::size_t four = 0; four < fours_count; ++four) {
    const std::size_t at = 4 * four;
    __m512i texts = _mm512_maskz_inserti32x4(all_words, _mm512_castsi128_si512(load(at)), load(at + 1), 1);
    texts = _mm512_maskz_inserti32x4(all_words, _mm512_maskz_inserti32x4(all_words, texts, load(at + 2), 2),
                                     load(at + 3), 3);
    const __m128i size =
        _mm_min_epu32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sizes + at)), _mm_set1_epi32(most));
    // Which characters are a number's, and of those points and minuses, and of those that count the first points; a
    // number without one has it behind its end.
    const std::uint64_t all =
        _mm512_cmplt_epu8_mask(lanes, _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(all_words, size), own));
    const std::uint64_t points = _mm512_mask_cmpeq_epi8_mask(all, texts, _mm512_set1_epi8('.'));
    const std::uint64_t minuses = _mm512_mask_cmpeq_epi8_mask(all & first_of_fours, texts, _mm512_set1_epi8('-'));
    const std::uint64_t ends = points | (all + first_of_fours);
    const std::uint64_t point = ends & ~(ends - first_of_fours);
    const __m512i digits = _mm512_maskz_sub_epi8(all & ~(points | minuses), texts, _mm512_set1_epi8('0'));
    _mm512_store_si512(&all_digits[64 * four], digits);
    all_points[four] = point;
    all_minuses[four] = minuses;
    all_wrong[four] = _mm512_cmpgt_epu8_mask(digits, _mm512_set1_epi8(9)) | (points & ~point);
  }
  std::uint64_t unread = 0;
  for (std::size_t four = 0; four < fours_count; ++four) {
    const std::size_t at = 4 * four;
    const __m128i size = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sizes + at));
    const std::uint64_t point = all_points[four];
    // Digits before the point move to its place, and then all to the right end.
    const __m512i apart = _mm512_load_si512(&all_digits[64 * four]);
    __m512i digits = _mm512_mask_blend_epi8((point << 1) - first_of_fours, apart, _mm512_bslli_epi128(apart, 1));
    const __m128i whole = _mm_sub_epi32(_mm_set1_epi32(31), _mm_lzcnt_epi32(fields_of(point)));
    const __m128i end = _mm_sub_epi32(size, _mm_cmpeq_epi32(whole, size));
    const __m128i negative = fields_of(all_minuses[four]);
    const __m128i wrong = fields_of(all_wrong[four]);
    digits = _mm512_shuffle_epi8(
        digits, _mm512_add_epi8(to_end, _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(all_words, end), own)));
    unsigned is_unread = _mm_cmpgt_epu32_mask(_mm_sub_epi32(size, ones), _mm_set1_epi32(most - 1));
    is_unread |= _mm_cmplt_epu32_mask(end, _mm_add_epi32(negative, _mm_set1_epi32(2)));
    is_unread |= _mm_test_epi32_mask(wrong, wrong);
    unread |= std::uint64_t{is_unread} << at;
    const __m512i twos = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(1 * 256 + 10));
    const __m512i fours = _mm512_madd_epi16(twos, _mm512_set1_epi32(1 * 65536 + 100));
    const __m512i eights = _mm512_madd_epi16(_mm512_packus_epi32(fours, fours), _mm512_set1_epi32(1 * 65536 + 10000));
    const __m512i sums = _mm512_add_epi64(_mm512_maskz_mul_epu32(all_longs, eights, _mm512_set1_epi64(100'000'000)),
                                          _mm512_maskz_srli_epi64(all_longs, eights, 32));
    const __m256i value =
        _mm512_maskz_extracti64x4_epi64(all_longs, _mm512_maskz_permutexvar_epi64(all_longs, evens, sums), 0);
    const __m128i power = _mm_sub_epi32(_mm_sub_epi32(end, whole), ones);
    const __m512i places = _mm512_castsi256_si512(_mm256_cvtepu32_epi64(power));
    const __m256d divisor =
        _mm512_maskz_extractf64x4_pd(all_longs, _mm512_permutex2var_pd(low_powers, places, high_powers), 0);
    // Both are exact, so that the one operation rounds once.
    const __m256d quotient = _mm256_div_pd(_mm256_cvtepi64_pd(value), divisor);
    const __m256i sign = _mm256_slli_epi64(_mm256_cvtepu32_epi64(negative), 63);
    _mm256_storeu_pd(values + at, _mm256_or_pd(quotient, _mm256_castsi256_pd(sign)));
  }
  return unread | (count < 64 ? ~std::uint64_t{0} << 4 * fours_count : 0);
}
#endif

}  // namespace detail
}  // namespace railyard::inline v0_1
