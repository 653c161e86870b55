// SPDX-License-Identifier: MIT
// Puts the ranks' reports together: call number i of every rank is report i. Train room.
#pragma once

#include "railyard/core/callback.hpp"
#include "railyard/core/value.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Collects reports and hands them out in order, each when it is complete or must not wait any longer. None is handed
/// out without rank 0's metrics before the end.
class ReportBook {
 public:
  static constexpr std::int64_t capacity = 64;      ///< how far rank 0 may be ahead of a rank that is waited for
  static constexpr std::int64_t most_ahead = 1024;  ///< of rank 0: what a rank reports beyond is only counted

  static constexpr double silent_after_seconds = 5;  ///< until a rank that has never reported is not waited for

  /// first: the number of the first report that is to come.
  explicit ReportBook(int world_size, std::int64_t first = 0)
      : counts_(static_cast<std::size_t>(world_size), first), first_(first) {}

  [[nodiscard]] int world_size() const noexcept { return static_cast<int>(counts_.size()); }

  /// Takes the next report of a rank, made `seconds` after the start, and returns its index.
  std::int64_t add(int rank, Metrics metrics, double seconds) {
    const std::int64_t report = counts_[static_cast<std::size_t>(rank)]++;
    if (report < first_) return report;  // the callbacks were told without it
    if (report - counts_.front() >= most_ahead) return report;
    while (first_ + static_cast<std::int64_t>(open_.size()) <= report) {
      open_.push_back({.index = first_ + static_cast<std::int64_t>(open_.size()), .seconds = seconds});
      open_.back().by_rank.resize(counts_.size());
    }
    Report& entry = open_[static_cast<std::size_t>(report - first_)];
    entry.by_rank[static_cast<std::size_t>(rank)] = std::move(metrics);
    if (rank == 0) entry.seconds = seconds;
    return report;
  }

  /// Returns the next report that need not wait for any rank; after the end, any.
  [[nodiscard]] std::optional<Report> take(bool is_end) {
    if (open_.empty()) return std::nullopt;
    if (!is_end && must_wait(open_.front())) return std::nullopt;
    std::optional<Report> report{std::move(open_.front())};
    open_.pop_front();
    ++first_;
    return report;
  }

  /// Counts a report that nobody wants to hear of.
  void count_only(int rank) { ++counts_[static_cast<std::size_t>(rank)]; }

  /// How many reports a rank has made.
  [[nodiscard]] std::int64_t count(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }

 private:
  // A rank that has never reported although others go on will most likely never do so; but it may just be late.
  [[nodiscard]] bool must_wait(const Report& report) const {
    const std::int64_t ahead = counts_.front() - report.index;  // 1 if it is rank 0's last one
    if (ahead < 1) return true;
    if (ahead > capacity) return false;
    const bool others_go_on = open_.back().seconds - report.seconds >= silent_after_seconds;
    for (const std::int64_t count : counts_) {
      if (count <= report.index && (count > 0 || !others_go_on)) return true;
    }
    return false;
  }

  std::vector<std::int64_t> counts_;
  std::deque<Report> open_{};
  std::int64_t first_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
