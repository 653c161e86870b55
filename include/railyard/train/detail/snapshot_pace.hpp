// SPDX-License-Identifier: MIT
// When rank 0 wants the state to be copied or saved. Train room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <chrono>

namespace railyard::inline v0_1 {
namespace detail {

/// Spreads copies of the state so that they take a given share of the time, and says when a checkpoint is due.
class SnapshotPace {
 public:
  using Clock = std::chrono::steady_clock;

  /// percent: the share of copies, 0 for none. interval: between checkpoints, 0 for none.
  SnapshotPace(double percent, std::chrono::nanoseconds interval, Clock::time_point now) noexcept
      : percent_(percent), interval_(interval), copied_at_(now), saved_at_(now) {}

  /// The first copy of a run is due at once: only then is known what one costs.
  [[nodiscard]] bool wants_copy(Clock::time_point now) const noexcept {
    return percent_ > 0 && std::chrono::duration<double>(now - copied_at_) >= cost_ * (100 / percent_);
  }
  [[nodiscard]] bool wants_checkpoint(Clock::time_point now) const noexcept {
    return interval_.count() > 0 && now - saved_at_ >= interval_;
  }

  void note_copy(std::chrono::duration<double> cost, Clock::time_point now) noexcept {
    cost_ = cost;
    copied_at_ = now;
  }
  /// What was put back is there still for the next restart. Until it is a few steps old a copy is not worth its price,
  /// which is about that of putting back; from a slow disk it is less.
  void note_put_back(std::chrono::duration<double> cost, Clock::time_point now) noexcept {
    constexpr std::chrono::duration<double> most{0.02};
    note_copy(std::min(cost, most), now);
  }
  /// No copy is wanted any more.
  void end_copies() noexcept { percent_ = 0; }
  void note_checkpoint(Clock::time_point now) noexcept { saved_at_ = now; }

 private:
  double percent_;
  std::chrono::nanoseconds interval_;
  std::chrono::duration<double> cost_{0};
  Clock::time_point copied_at_;
  Clock::time_point saved_at_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
