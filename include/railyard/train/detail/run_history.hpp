// SPDX-License-Identifier: MIT
// What the ranks have reported: rank 0's in metrics.jsonl, everybody's for the callbacks. Train room.
#pragma once

#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/report_book.hpp"
#include "railyard/train/detail/run_directory.hpp"
#include "railyard/train/detail/run_record.hpp"

#include "railyard/core/callback.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Begins with what an earlier program has left. The directory must outlive it.
class RunHistory {
 public:
  RunHistory(RunDirectory& directory, int world_size, RunRecord before)
      : directory_(&directory),
        book_(world_size),
        has_record_(before.world_size != 0),
        metrics_(std::move(before.history)),
        problems_(std::move(before.problems)),
        last_checkpoint_(std::move(before.last_checkpoint)) {
    for (const HistoryLine& line : before.lines) numbers_.push_back(line.report);
    directory_->begin_with(std::move(before.lines));
  }

  /// Whether an earlier program has begun the run.
  [[nodiscard]] bool has_record() const noexcept { return has_record_; }
  /// What of its record is damaged.
  [[nodiscard]] const std::vector<std::string>& problems() const noexcept { return problems_; }
  /// The last checkpoint that it has written; empty if it has none.
  [[nodiscard]] const std::string& last_checkpoint() const noexcept { return last_checkpoint_; }

  /// Forgets what was reported from number num_reports on: it will be reported anew.
  void go_back(std::int64_t num_reports) {
    const auto is_kept = [num_reports](std::int64_t report) { return report < num_reports; };
    const auto end = std::find_if_not(numbers_.begin(), numbers_.end(), is_kept);
    if (end != numbers_.end() || has_record_) {  // whose last line may be torn
      directory_->go_back(num_reports);
      metrics_.resize(static_cast<std::size_t>(end - numbers_.begin()));
      numbers_.erase(end, numbers_.end());
    }
    book_ = ReportBook{book_.world_size(), num_reports};
  }
  /// So many ranks report from here on.
  void begin_attempt(int world_size) { book_ = ReportBook{world_size, book_.count(0)}; }

  /// Takes the next report of a rank. is_heard: callbacks want to hear of it.
  void add(int rank, Metrics metrics, double seconds, bool is_heard) {
    if (rank == 0) {
      const std::int64_t index = book_.count(0);
      const JsonObject line = JsonObject{}.add("report", index).add("seconds", seconds).add(metrics);
      directory_->append_metrics(index, line.text());
      metrics_.push_back(metrics);
      numbers_.push_back(index);
    }
    if (is_heard) {
      book_.add(rank, std::move(metrics), seconds);
    } else {
      book_.count_only(rank);
    }
  }

  /// See ReportBook.
  [[nodiscard]] std::optional<Report> take(bool is_end) { return book_.take(is_end); }
  [[nodiscard]] std::int64_t count(int rank) const { return book_.count(rank); }

  /// What rank 0 has reported.
  [[nodiscard]] const std::vector<Metrics>& metrics() const noexcept { return metrics_; }
  [[nodiscard]] Metrics newest() const { return metrics_.empty() ? Metrics{} : metrics_.back(); }
  [[nodiscard]] std::vector<Metrics> take_metrics() noexcept { return std::move(metrics_); }

 private:
  RunDirectory* directory_;
  ReportBook book_;
  bool has_record_;
  std::vector<Metrics> metrics_;
  std::vector<std::int64_t> numbers_{};  // of metrics_
  std::vector<std::string> problems_;
  std::string last_checkpoint_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
