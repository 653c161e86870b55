// SPDX-License-Identifier: MIT
// Preprocessors that shift and scale each column of numbers by what they have learned about it. Data room.
#pragma once

#include "railyard/data/column_scaler.hpp"
#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/moments.hpp"
#include "railyard/data/detail/numbers.hpp"
#include "railyard/data/detail/quantile_sketch.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Chooses the columns of numbers to scale: those named, or all but some.
struct ScalerOptions {
  std::vector<std::string> columns{};
  std::vector<std::string> except{};
};

namespace detail {

/// Returns what to divide by where values are so far apart: 1 where they are not.
[[nodiscard]] inline double divisor_of(double spread) noexcept {
  return spread < 10 * std::numeric_limits<double>::epsilon() ? 1 : spread;
}

/// Returns how far a value is from a center, in units of a number; also where the distance itself is too large for one.
[[nodiscard]] inline double distance_in(double unit, double value, double center) noexcept {
  const double distance = value - center;
  return has_infinity_bits(distance) ? value / unit - center / unit : distance / unit;
}
/// Says that features cannot be scaled which are farther apart than the largest number.
[[noreturn]] inline void refuse_apart(std::string_view who) {
  throw DataError{compose("{} met numbers too far apart to subtract: scale them down first", who)};
}

/// Collects the smallest and the largest value.
class Extremes {
 public:
  void add(std::span<const double> values) noexcept {
    for (const double value : values) {
      smallest_ = std::min(smallest_, value);
      largest_ = std::max(largest_, value);
    }
    count_ += values.size();
  }
  void merge(const Extremes& other) noexcept {
    smallest_ = std::min(smallest_, other.smallest_);
    largest_ = std::max(largest_, other.largest_);
    count_ += other.count_;
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] double smallest() const noexcept { return smallest_; }
  [[nodiscard]] double largest() const noexcept { return largest_; }
  static void fields(auto& archive, auto& self) { archive(self.count_, self.smallest_, self.largest_); }

 private:
  std::uint64_t count_ = 0;
  double smallest_ = std::numeric_limits<double>::max();
  double largest_ = std::numeric_limits<double>::lowest();
};

}  // namespace detail

/// Subtracts the mean and divides by the standard deviation (of the samples themselves: divided by n).
class StandardRule {
 public:
  static constexpr std::string_view name = "StandardScaler";
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    bool centers = true;  ///< subtract the mean
    bool scales = true;   ///< divide by the standard deviation
  };
  using Statistics = detail::Moments;
  struct Learned {
    double mean = 0;
    double variance = 0;
    double scale = 1;  ///< what is divided by: the root of the variance, or 1
    static void fields(auto& archive, auto& self) { archive(self.mean, self.variance, self.scale); }
  };

  StandardRule() = default;
  explicit StandardRule(Options options) : options_(std::move(options)) {}
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const noexcept { return {}; }
  [[nodiscard]] Learned learn(const Statistics& seen) const {
    const double variance = seen.variance();
    if (detail::magnitude_bits(variance) >= detail::infinity_bits) {
      throw DataError{
          "StandardScaler met numbers too large or too far apart to square: scale them down, or take a RobustScaler"};
    }
    // What rounding alone can make of equal numbers, as scikit-learn tells it from a small variance.
    const double rounding = static_cast<double>(seen.count()) * std::numeric_limits<double>::epsilon();
    const bool is_constant = variance <= rounding * variance + (rounding * seen.mean()) * (rounding * seen.mean());
    return {.mean = seen.mean(), .variance = variance, .scale = is_constant ? 1 : std::sqrt(variance)};
  }
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept {
    const double unit = options_.scales ? learned.scale : 1;
    return options_.centers ? detail::distance_in(unit, value, learned.mean) : value / unit;
  }
  static void fields(auto& archive, auto& self) { archive(self.options_.centers, self.options_.scales); }

 private:
  Options options_{};
};
/// Gives each feature the mean 0 and the variance 1.
using StandardScaler = ColumnScaler<StandardRule>;
static_assert(LearningPreprocessor<StandardScaler>);

/// Maps the smallest value to one number and the largest to another.
class MinMaxRule {
 public:
  static constexpr std::string_view name = "MinMaxScaler";
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    double low = 0;
    double high = 1;
    bool clips = false;  ///< keep values within low and high that were outside of what was learned from
  };
  using Statistics = detail::Extremes;
  struct Learned {
    double smallest = 0;
    double largest = 0;
    double scale = 1;
    static void fields(auto& archive, auto& self) { archive(self.smallest, self.largest, self.scale); }
  };

  MinMaxRule() = default;
  /// Throws: ConfigError if low is not below high, or their distance is no number.
  explicit MinMaxRule(Options options) : options_(std::move(options)) {
    const double distance = options_.high - options_.low;
    if (detail::magnitude_bits(distance) < detail::infinity_bits && distance > 0) return;
    throw ConfigError{
        detail::compose("MinMaxScaler was to map to {} to {}: give .low a smaller number than .high, and "
                        "both finite",
                        options_.low, options_.high)};
  }
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const noexcept { return {}; }
  [[nodiscard]] Learned learn(const Statistics& seen) const {
    const double range = seen.largest() - seen.smallest();
    const double scale = (options_.high - options_.low) / detail::divisor_of(range);
    if (detail::has_infinity_bits(range) || detail::has_infinity_bits(scale)) detail::refuse_apart(name);
    return {.smallest = seen.smallest(), .largest = seen.largest(), .scale = scale};
  }
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept {
    const double distance = value - learned.smallest;
    const double scaled =
        options_.low + (detail::has_infinity_bits(distance) ? value * learned.scale - learned.smallest * learned.scale
                                                            : distance * learned.scale);
    return options_.clips ? std::clamp(scaled, options_.low, options_.high) : scaled;
  }
  static void fields(auto& archive, auto& self) { archive(self.options_.low, self.options_.high, self.options_.clips); }

 private:
  Options options_{};
};
/// Gives each feature the range from low to high.
using MinMaxScaler = ColumnScaler<MinMaxRule>;
static_assert(LearningPreprocessor<MinMaxScaler>);

/// Divides by the largest magnitude, so that zero stays zero.
class MaxAbsRule {
 public:
  static constexpr std::string_view name = "MaxAbsScaler";
  using Options = ScalerOptions;
  using Statistics = detail::Extremes;
  struct Learned {
    double largest = 0;  ///< magnitude
    double scale = 1;    ///< what is divided by
    static void fields(auto& archive, auto& self) { archive(self.largest, self.scale); }
  };

  MaxAbsRule() = default;
  explicit MaxAbsRule(Options options) : options_(std::move(options)) {}
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const noexcept { return {}; }
  [[nodiscard]] Learned learn(const Statistics& seen) const noexcept {
    const double largest = std::max(std::abs(seen.smallest()), std::abs(seen.largest()));
    return {.largest = largest, .scale = detail::divisor_of(largest)};
  }
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept { return value / learned.scale; }
  static void fields(auto&, auto&) {}

 private:
  Options options_{};
};
/// Gives each feature the largest magnitude 1.
using MaxAbsScaler = ColumnScaler<MaxAbsRule>;
static_assert(LearningPreprocessor<MaxAbsScaler>);

/// Subtracts the median and divides by the distance between two quantiles, which outliers do not move.
class RobustRule {
 public:
  static constexpr std::string_view name = "RobustScaler";
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    double low = 0.25;
    double high = 0.75;
    /// Quantiles are exact up to so many values; of n values, their ranks are off by less than
    /// n (log2(n / size) + 1) / size, and a feature takes about 8 size log2(n / size) bytes while fit() runs.
    std::size_t sketch_size = 8192;
  };
  using Statistics = detail::QuantileSketch;
  struct Learned {
    double median = 0;
    double scale = 1;        ///< what is divided by
    double error_bound = 0;  ///< the quantiles' ranks, as parts of all, are off by at most this
    static void fields(auto& archive, auto& self) { archive(self.median, self.scale, self.error_bound); }
  };

  RobustRule() = default;
  /// Throws: ConfigError if low and high are no parts of 1 in this order.
  explicit RobustRule(Options options) : options_(std::move(options)) {
    if (options_.low >= 0 && options_.low < options_.high && options_.high <= 1) return;
    throw ConfigError{detail::compose("RobustScaler was given the quantiles {} and {}: give two from 0 to 1",
                                      options_.low, options_.high)};
  }
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const { return Statistics{options_.sketch_size}; }
  [[nodiscard]] Learned learn(const Statistics& seen) const {
    const auto found = seen.quantiles(std::array{options_.low, 0.5, options_.high});
    const double spread = found[2] - found[0];
    if (detail::has_infinity_bits(spread)) detail::refuse_apart(name);
    return {.median = found[1], .scale = detail::divisor_of(spread), .error_bound = seen.error_bound()};
  }
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept {
    return detail::distance_in(learned.scale, value, learned.median);
  }
  static void fields(auto&, auto&) {}

 private:
  Options options_{};
};
/// Gives each feature the median 0, and the distance 1 between two quantiles.
using RobustScaler = ColumnScaler<RobustRule>;
static_assert(LearningPreprocessor<RobustScaler>);

}  // namespace railyard::inline v0_1
