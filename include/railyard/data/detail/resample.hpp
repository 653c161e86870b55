// SPDX-License-Identifier: MIT
// Brings pictures to another size by a weighted mean of pixels, to the same bits as Pillow does. Data room.
// Source: https://github.com/python-pillow/Pillow, documentation, "Filters", BILINEAR.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says for each of some neighbouring places of the output which places of the input count how much.
class ResampleAxis {
 public:
  /// in, full: places before and after; those from first are wanted, count of them.
  ResampleAxis(std::size_t in, std::size_t full, std::size_t first, std::size_t count)
      : in_(in), is_same_(in == full), first_(first) {
    const double scale = static_cast<double>(in) / static_cast<double>(full);
    const double reach = std::max(scale, 1.0);  // of the triangle to each side
    most_ = static_cast<std::size_t>(std::ceil(reach)) * 2 + 1;
    begins_.resize(count);
    counts_.resize(count);
    weights_.resize(count * most_);
    for (std::size_t place = 0; place < count; ++place) {
      set(place, (static_cast<double>(first + place) + 0.5) * scale, reach);
    }
  }

  [[nodiscard]] std::size_t in() const noexcept { return in_; }
  [[nodiscard]] std::size_t size() const noexcept { return begins_.size(); }
  /// Whether every place of the output is one of the input.
  [[nodiscard]] bool is_same() const noexcept { return is_same_; }
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] std::size_t begin(std::size_t place) const noexcept { return begins_[place]; }
  [[nodiscard]] std::size_t count(std::size_t place) const noexcept { return counts_[place]; }
  [[nodiscard]] const std::int32_t* weights(std::size_t place) const noexcept { return &weights_[place * most_]; }

  static constexpr int precision_bits = 22;  // a sum of weighted bytes fits into 32 bits
  [[nodiscard]] static std::uint8_t to_byte(std::int32_t sum) noexcept {
    return static_cast<std::uint8_t>(std::clamp(sum >> precision_bits, 0, 255));
  }
  static constexpr std::int32_t half = 1 << (precision_bits - 1);

 private:
  void set(std::size_t place, double center, double reach) {
    const auto begin = static_cast<std::size_t>(std::max(center - reach + 0.5, 0.0));
    const std::size_t end = std::min(static_cast<std::size_t>(center + reach + 0.5), in_);
    begins_[place] = begin;
    counts_[place] = end - begin;
    std::vector<double> exact;
    double sum = 0;
    for (std::size_t at = begin; at < end; ++at) {
      const double distance = std::abs((static_cast<double>(at) - center + 0.5) * (1.0 / reach));
      exact.push_back(std::max(1.0 - distance, 0.0));
      sum += exact.back();
    }
    for (std::size_t at = 0; at < exact.size(); ++at) {
      weights_[place * most_ + at] = static_cast<std::int32_t>(0.5 + exact[at] / sum * (1 << precision_bits));
    }
  }

  std::size_t in_;
  bool is_same_;
  std::size_t first_;
  std::size_t most_ = 0;
  std::vector<std::size_t> begins_{};
  std::vector<std::size_t> counts_{};
  std::vector<std::int32_t> weights_{};
};

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

/// Returns the wanted part of pixels that are resampled, first along each row and then along the columns.
[[nodiscard]] inline std::vector<std::uint8_t> resample(const std::vector<std::uint8_t>& pixels, std::size_t channels,
                                                        const ResampleAxis& rows, const ResampleAxis& columns) {
  using Row = void (*)(const std::uint8_t*, const ResampleAxis&, std::uint8_t*);
  constexpr std::array<Row, 4> by_channels{&resample_row<1>, &resample_row<2>, &resample_row<3>, &resample_row<4>};
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
      by_channels[channels - 1](in, columns, out);
    }
  }
  if (rows.is_same()) return across;
  std::vector<std::uint8_t> result(rows.size() * width);
  std::vector<std::int32_t> sums(width);
  for (std::size_t place = 0; place < rows.size(); ++place) {
    std::fill(sums.begin(), sums.end(), ResampleAxis::half);
    for (std::size_t at = 0; at < rows.count(place); ++at) {
      const std::uint8_t* row = across.data() + (rows.begin(place) + at - first_row) * width;
      const std::int32_t weight = rows.weights(place)[at];
      for (std::size_t column = 0; column < width; ++column) sums[column] += row[column] * weight;
    }
    std::transform(sums.begin(), sums.end(), result.data() + place * width, &ResampleAxis::to_byte);
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
