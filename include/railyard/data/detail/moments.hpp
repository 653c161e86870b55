// SPDX-License-Identifier: MIT
// Count, mean and variance of numbers, which merge without losing digits. Data room.
#pragma once

#include "railyard/core/detail/float_bits.hpp"

#include <cstdint>
#include <span>

namespace railyard::inline v0_1 {
namespace detail {

/// Sums deviations from means, never squares of the numbers: the variance of numbers that are large and close together
/// would drown in rounding.
/// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
class Moments {
 public:
  void add(std::span<const double> values) noexcept {
    if (values.empty()) return;
    Moments part;
    part.count_ = values.size();
    const auto count = static_cast<double>(values.size());
    double sum = 0;
    for (const double value : values) sum += value;
    double rough = sum / count;
    if (!is_finite(sum)) {  // the mean of numbers is one, also where their sum is none
      rough = 0;
      for (const double value : values) rough += value / count;
    }
    double off = 0;
    for (const double value : values) off += value - rough;
    part.mean_ = is_finite(off) ? rough + off / count : rough;
    for (const double value : values) part.squares_ += (value - part.mean_) * (value - part.mean_);
    merge(part);
  }
  void merge(const Moments& other) noexcept {
    if (other.count_ == 0) return;
    const auto ours = static_cast<double>(count_);
    const auto theirs = static_cast<double>(other.count_);
    const double apart = other.mean_ - mean_;
    mean_ = is_finite(apart) ? mean_ + apart * (theirs / (ours + theirs))
                             : mean_ * (ours / (ours + theirs)) + other.mean_ * (theirs / (ours + theirs));
    squares_ += other.squares_ + apart * apart * (ours * theirs / (ours + theirs));
    count_ += other.count_;
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] double mean() const noexcept { return mean_; }
  /// Of the numbers themselves, not of a population that they are a sample of.
  [[nodiscard]] double variance() const noexcept { return squares_ / static_cast<double>(count_); }

  static void fields(auto& archive, auto& self) { archive(self.count_, self.mean_, self.squares_); }

 private:
  [[nodiscard]] static bool is_finite(double number) noexcept { return magnitude_bits(number) < infinity_bits; }

  std::uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // of the deviations from the mean
};

}  // namespace detail
}  // namespace railyard::inline v0_1
