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

/// Collects reports and hands them out in order, each when it is complete or must not wait any longer. At most
/// `capacity` of them are held.
class ReportBook {
 public:
  static constexpr std::int64_t capacity = 64;

  explicit ReportBook(int world_size) : counts_(static_cast<std::size_t>(world_size), 0) {}

  /// Takes the next report of a rank, made `seconds` after the start, and returns its index.
  std::int64_t add(int rank, Metrics metrics, double seconds) {
    const std::int64_t report = counts_[static_cast<std::size_t>(rank)]++;
    if (report < first_) return report;  // the callbacks were told without it
    while (first_ + static_cast<std::int64_t>(open_.size()) <= report) {
      open_.push_back({.index = first_ + static_cast<std::int64_t>(open_.size()), .seconds = seconds});
      open_.back().by_rank.resize(counts_.size());
    }
    Report& entry = open_[static_cast<std::size_t>(report - first_)];
    entry.by_rank[static_cast<std::size_t>(rank)] = std::move(metrics);
    if (rank == 0) entry.seconds = seconds;
    return report;
  }

  /// Returns the next report that is complete, or that has waited for `capacity` later ones; after the end, any.
  [[nodiscard]] std::optional<Report> take(bool is_end) {
    if (open_.empty()) return std::nullopt;
    if (!is_end && static_cast<std::int64_t>(open_.size()) <= capacity && !is_complete(open_.front())) {
      return std::nullopt;
    }
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
  static bool is_complete(const Report& report) {
    for (const auto& metrics : report.by_rank) {
      if (!metrics) return false;
    }
    return true;
  }

  std::vector<std::int64_t> counts_;
  std::deque<Report> open_{};
  std::int64_t first_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
