// SPDX-License-Identifier: MIT
// Brings pictures to another size by a weighted mean of pixels, to the same bits as Pillow does. Data room.
// Source: https://github.com/python-pillow/Pillow, documentation, "Filters", BILINEAR.
#pragma once

#include "railyard/data/detail/resample_axis.hpp"
#include "railyard/data/detail/resample_lanes.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// One row. in: where the row begins.
template <std::size_t channels>
void resample_row(const std::uint8_t* in, const ResampleAxis& axis, std::uint8_t* out) {
  for (std::size_t place = 0; place < axis.size(); ++place) {
    std::array<std::int32_t, channels> sums;
    sums.fill(ResampleAxis::half);
    const std::uint8_t* pixel = in + axis.begin(place) * channels;
    const std::int32_t* weights = axis.weights(place);
    for (std::size_t at = 0; at < axis.count(place); ++at, pixel += channels) {
      for (std::size_t channel = 0; channel < channels; ++channel) sums[channel] += pixel[channel] * weights[at];
    }
    for (std::size_t channel = 0; channel < channels; ++channel) *out++ = ResampleAxis::to_byte(sums[channel]);
  }
}

using ResampleRow = void (*)(const std::uint8_t*, const ResampleAxis&, std::uint8_t*);

/// has_more: bytes of the picture follow after the row.
[[nodiscard]] inline ResampleRow resample_row_of(std::size_t channels, [[maybe_unused]] bool has_more) noexcept {
#if defined(__x86_64__)
  if (has_resample_lanes() && channels == 4) return &resample_row_by_lanes<4>;
  if (has_resample_lanes() && channels == 3 && has_more) return &resample_row_by_lanes<3>;
#endif
  constexpr std::array<ResampleRow, 4> by_channels{&resample_row<1>, &resample_row<2>, &resample_row<3>,
                                                   &resample_row<4>};
  return by_channels[channels - 1];
}

// Writes one row of the output. rows: the first row of those that it is a mean of.
inline void resample_columns(const std::uint8_t* rows, std::size_t width, const ResampleAxis& axis, std::size_t place,
                             std::uint8_t* out) noexcept {
  std::size_t column = 0;
#if defined(__x86_64__)
  if (has_resample_lanes()) column = resample_columns_by_lanes(rows, width, axis, place, out);
#endif
  for (; column < width; ++column) {
    std::int32_t sum = ResampleAxis::half;
    for (std::size_t at = 0; at < axis.count(place); ++at) sum += rows[at * width + column] * axis.weights(place)[at];
    out[column] = ResampleAxis::to_byte(sum);
  }
}

/// Returns the wanted part of pixels that are resampled, first along each row and then along the columns.
[[nodiscard]] inline std::vector<std::uint8_t> resample(const std::vector<std::uint8_t>& pixels, std::size_t channels,
                                                        const ResampleAxis& rows, const ResampleAxis& columns) {
  const std::size_t first_row = rows.is_same() ? rows.first() : rows.begin(0);
  const std::size_t last = rows.size() - 1;
  const std::size_t end_row = rows.is_same() ? first_row + rows.size() : rows.begin(last) + rows.count(last);
  const std::size_t width = columns.size() * channels;
  std::vector<std::uint8_t> across((end_row - first_row) * width);
  for (std::size_t row = first_row; row < end_row; ++row) {
    const std::uint8_t* in = pixels.data() + row * columns.in() * channels;
    std::uint8_t* out = across.data() + (row - first_row) * width;
    if (columns.is_same()) {
      std::copy_n(in + columns.first() * channels, width, out);
    } else {
      resample_row_of(channels, in + columns.in() * channels < pixels.data() + pixels.size())(in, columns, out);
    }
  }
  if (rows.is_same()) return across;
  std::vector<std::uint8_t> result(rows.size() * width);
  for (std::size_t place = 0; place < rows.size(); ++place) {
    const std::uint8_t* from = across.data() + (rows.begin(place) - first_row) * width;
    resample_columns(from, width, rows, place, result.data() + place * width);
  }
  return result;
}

/// Colours that cannot be seen must not show through where pixels are mixed.
inline void multiply_by_alpha(std::vector<std::uint8_t>& pixels, std::size_t channels) {
  for (std::size_t pixel = 0; pixel < pixels.size(); pixel += channels) {
    for (std::size_t channel = 0; channel + 1 < channels; ++channel) {
      const unsigned product = pixels[pixel + channel] * unsigned{pixels[pixel + channels - 1]} + 128;
      pixels[pixel + channel] = static_cast<std::uint8_t>(((product >> 8U) + product) >> 8U);
    }
  }
}
inline void divide_by_alpha(std::vector<std::uint8_t>& pixels, std::size_t channels) {
  for (std::size_t pixel = 0; pixel < pixels.size(); pixel += channels) {
    const unsigned alpha = pixels[pixel + channels - 1];
    if (alpha == 0) continue;
    for (std::size_t channel = 0; channel + 1 < channels; ++channel) {
      pixels[pixel + channel] = static_cast<std::uint8_t>(std::min(255 * pixels[pixel + channel] / alpha, 255U));
    }
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
