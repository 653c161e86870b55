// SPDX-License-Identifier: MIT
// Quantiles of any number of values in bounded memory, with a bound on the error. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps all values up to a capacity. Then every second one of a level goes on to the next level, where it counts twice
/// as much; from one time to the next these are the odd and the even ones in turn, so that no random numbers are needed
/// and most errors cancel. The rank of a quantile among n values is off by less than n log2(n / capacity) / capacity,
/// by what error_bound() tells, and by nothing while n is at most the capacity.
/// Source: Manku, Rajagopalan, Lindsay, "Approximate medians and other quantiles in one pass and with limited memory",
/// 1998.
class QuantileSketch {
 public:
  explicit QuantileSketch(std::size_t capacity = 8192) : capacity_(std::max<std::size_t>(capacity, 2)), levels_(1) {}

  void add(std::span<const double> values) {
    count_ += values.size();
    while (!values.empty()) {  // piece by piece, so that a large block takes no more memory than the capacity
      const std::size_t room = std::min(values.size(), capacity_ + 1 - levels_.front().values.size());
      auto& lowest = levels_.front().values;
      lowest.insert(lowest.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(room));
      values = values.subspan(room);
      shrink();
    }
  }
  /// Throws: ConfigError if the other one has another capacity.
  void merge(const QuantileSketch& other) {
    if (other.capacity_ != capacity_) {
      throw ConfigError{compose("quantile sketches of {} and {} values cannot be merged: give all workers one size",
                                capacity_, other.capacity_)};
    }
    count_ += other.count_;
    above_ += other.above_;
    below_ += other.below_;
    if (levels_.size() < other.levels_.size()) levels_.resize(other.levels_.size());
    for (std::size_t level = 0; level < other.levels_.size(); ++level) {
      const auto& theirs = other.levels_[level].values;
      levels_[level].values.insert(levels_[level].values.end(), theirs.begin(), theirs.end());
    }
    shrink();
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// The rank of a quantile, as a part of all ranks, is off by at most this.
  [[nodiscard]] double error_bound() const noexcept {
    return static_cast<double>(std::max(above_, below_)) / static_cast<double>(std::max<std::uint64_t>(count_, 1));
  }

  /// Returns the values below which the given parts (0 to 1) of all are, on a straight line between the two nearest,
  /// as numpy.percentile does. Needs at least one value.
  [[nodiscard]] std::vector<double> quantiles(std::span<const double> parts) const {
    std::vector<std::pair<double, std::uint64_t>> sorted;  // value and weight
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      for (const double value : levels_[level].values) sorted.emplace_back(value, std::uint64_t{1} << level);
    }
    std::sort(sorted.begin(), sorted.end());
    std::uint64_t before = 0;
    for (auto& [value, end] : sorted) end = before += end;
    const auto at = [&sorted](std::uint64_t rank) {
      return std::upper_bound(sorted.begin(), sorted.end(), rank,
                              [](std::uint64_t wanted, const auto& entry) { return wanted < entry.second; })
          ->first;
    };
    std::vector<double> found;
    for (const double part : parts) {
      const double position = part * static_cast<double>(count_ - 1);
      const auto lower = static_cast<std::uint64_t>(position);
      const double fraction = position - static_cast<double>(lower);
      const double left = at(lower);
      const double right = at(std::min(lower + 1, count_ - 1));
      if (has_infinity_bits(right - left)) {
        found.push_back(left * (1 - fraction) + right * fraction);
        continue;
      }
      // From the nearer end, as numpy does it: the same bits, and the ends are met exactly.
      found.push_back(fraction < 0.5 ? left + (right - left) * fraction : right - (right - left) * (1 - fraction));
    }
    return found;
  }

  static void fields(auto& archive, auto& self) {
    archive(self.capacity_, self.count_, self.above_, self.below_, self.levels_);
  }

 private:
  struct Level {
    std::vector<double> values{};
    bool keeps_odd = false;  // at the next time
    static void fields(auto& archive, auto& self) { archive(self.values, self.keeps_odd); }
  };

  // Hands every second value of the levels that are too full on to the next.
  void shrink() {
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      if (levels_[level].values.size() <= capacity_) continue;
      if (level + 1 == levels_.size()) levels_.emplace_back();
      Level& from = levels_[level];
      std::vector<double>& to = levels_[level + 1].values;
      std::sort(from.values.begin(), from.values.end());
      const std::size_t even = from.values.size() / 2 * 2;
      for (std::size_t at = from.keeps_odd ? 1 : 0; at < even; at += 2) to.push_back(from.values[at]);
      from.values.erase(from.values.begin(), from.values.begin() + static_cast<std::ptrdiff_t>(even));
      // Keeping the first of each pair counts at most one value too many below any place, keeping the second one too
      // few.
      (from.keeps_odd ? below_ : above_) += std::uint64_t{1} << level;
      from.keeps_odd = !from.keeps_odd;
    }
  }

  std::uint64_t capacity_;
  std::uint64_t count_ = 0;
  std::uint64_t above_ = 0;
  std::uint64_t below_ = 0;
  std::vector<Level> levels_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
