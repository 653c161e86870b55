// SPDX-License-Identifier: MIT
// Weighted means of pixels, four numbers at once, where the processor can. Data room.
#pragma once

#include "railyard/data/detail/resample_axis.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <smmintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)
/// Whether what is below can be called.
[[nodiscard]] inline bool has_resample_lanes() noexcept { return __builtin_cpu_supports("sse4.1") != 0; }

// Adds four bytes, times a weight.
[[nodiscard]] [[gnu::target("sse4.1"), gnu::always_inline]] inline __m128i add_lanes(__m128i sums,
                                                                                     const std::uint8_t* from,
                                                                                     __m128i weight) noexcept {
  std::int32_t four = 0;
  std::memcpy(&four, from, sizeof four);
  return _mm_add_epi32(sums, _mm_mullo_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)), weight));
}

// Does what ResampleAxis::to_byte() does.
[[nodiscard]] [[gnu::target("sse4.1"), gnu::always_inline]] inline std::int32_t bytes_of_lanes(__m128i sums) noexcept {
  const __m128i wide = _mm_srai_epi32(sums, ResampleAxis::precision_bits);
  const __m128i half = _mm_packus_epi32(wide, wide);
  return _mm_cvtsi128_si32(_mm_packus_epi16(half, half));
}

/// As resample_row(), for pixels of three or four bytes. One byte behind the row is read, and has no effect.
template <std::size_t channels>
[[gnu::target("sse4.1")]] void resample_row_by_lanes(const std::uint8_t* in, const ResampleAxis& axis,
                                                     std::uint8_t* out) noexcept {
  static_assert(channels == 3 || channels == 4);
  for (std::size_t place = 0; place < axis.size(); ++place, out += channels) {
    __m128i sums = _mm_set1_epi32(ResampleAxis::half);
    const std::uint8_t* pixel = in + axis.begin(place) * channels;
    const std::int32_t* weights = axis.weights(place);
    for (std::size_t at = 0; at < axis.count(place); ++at, pixel += channels) {
      sums = add_lanes(sums, pixel, _mm_set1_epi32(weights[at]));
    }
    const std::int32_t bytes = bytes_of_lanes(sums);
    std::memcpy(out, &bytes, channels);
  }
}

/// Writes a place's means of rows that follow each other, each of `width` bytes. Returns how many it has written: the
/// last three at most are missing.
[[gnu::target("sse4.1")]] inline std::size_t resample_columns_by_lanes(const std::uint8_t* rows, std::size_t width,
                                                                       const ResampleAxis& axis, std::size_t place,
                                                                       std::uint8_t* out) noexcept {
  const std::int32_t* weights = axis.weights(place);
  const std::size_t count = axis.count(place);
  std::size_t column = 0;
  for (; column + 4 <= width; column += 4) {
    __m128i sums = _mm_set1_epi32(ResampleAxis::half);
    const std::uint8_t* from = rows + column;
    for (std::size_t at = 0; at < count; ++at, from += width) {
      sums = add_lanes(sums, from, _mm_set1_epi32(weights[at]));
    }
    const std::int32_t bytes = bytes_of_lanes(sums);
    std::memcpy(out + column, &bytes, sizeof bytes);
  }
  return column;
}
#endif

}  // namespace detail
}  // namespace railyard::inline v0_1
