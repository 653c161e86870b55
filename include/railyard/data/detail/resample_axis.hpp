// SPDX-License-Identifier: MIT
// Which pixels count how much in a picture of another size. Data room.
// Source: https://github.com/python-pillow/Pillow, documentation, "Filters", BILINEAR.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
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

}  // namespace detail
}  // namespace railyard::inline v0_1
