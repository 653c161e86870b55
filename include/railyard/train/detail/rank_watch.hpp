// SPDX-License-Identifier: MIT
// Finds ranks that stand still, and keeps what all were doing then. Train room.
#pragma once

#include "railyard/train/detail/activity.hpp"
#include "railyard/train/detail/step_watch.hpp"
#include "railyard/train/run_config.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/scaling.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace railyard::inline v0_1 {
namespace detail {

/// Reads the pages of a group. The configuration must outlive it.
class RankWatch {
 public:
  using Clock = Deadline::Clock;

  RankWatch(const RunConfig& config, int num_workers)
      : config_(&config), num_workers_(num_workers), steps_(step_watch_of(config, num_workers)) {}

  void begin_attempt(int num_workers) {
    num_workers_ = num_workers;
    steps_ = step_watch_of(*config_, num_workers);
    activity_.clear();
  }

  /// How often to look.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept { return steps_.interval(); }

  /// Returns a rank that has stood still for too long; see StepWatch. begin: the step at which the attempt has begun.
  /// has_exited(rank) says whether one is watched no more.
  template <class HasExited>
  [[nodiscard]] std::optional<StepWatch::Standstill> look(const WorkerGroup& group, std::uint64_t begin,
                                                          const HasExited& has_exited) {
    return steps_.look(
        Clock::now(), begin,
        [&](int rank) { return has_exited(rank) ? std::nullopt : std::optional{group.page(rank).steps.load()}; },
        [&](int rank) { return group.page(rank).waiting_since_ns.load(std::memory_order_relaxed) != 0; });
  }

  /// Keeps what each rank does now, unless that has been kept in this attempt: to be called before the group is ended,
  /// for the end is what all ranks do then.
  void note_activity(const WorkerGroup& group) {
    if (activity_.empty()) activity_ = activity_text(group, num_workers_, Clock::now());
  }
  [[nodiscard]] const std::string& activity() const noexcept { return activity_; }

 private:
  const RunConfig* config_;
  int num_workers_;
  StepWatch steps_;
  std::string activity_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
