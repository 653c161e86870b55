// SPDX-License-Identifier: MIT
// Whether a run that was told of its end has saved its state since. Train room.
#pragma once

#include "railyard/core/deadline.hpp"

#include <chrono>

namespace railyard::inline v0_1 {
namespace detail {

/// Is told how many checkpoints the run has saved so far, whenever it is asked.
class Farewell {
 public:
  using Time = Deadline::Clock::time_point;

  /// The run is told of its end. is_preempted: because its machine will go. is_all_saved: nothing is left to save.
  void begin(bool is_preempted, bool is_all_saved, int num_saved, Time now) noexcept {
    is_preempted_ = is_preempted;
    is_all_saved_ = is_all_saved;
    num_saved_before_ = num_saved;
    began_ = now;
  }

  /// Whether half of the time is over and nothing has been saved.
  [[nodiscard]] bool is_late(int num_saved, std::chrono::nanoseconds grace, Time now) const noexcept {
    return num_saved == num_saved_before_ && now >= began_ + grace / 2;
  }
  /// When that will be, which nothing but the clock tells of; Time::max() if it is over.
  [[nodiscard]] Time wakes_at(std::chrono::nanoseconds grace, Time now) const noexcept {
    return now < began_ + grace / 2 ? began_ + grace / 2 : Time::max();
  }
  [[nodiscard]] bool is_in_order(int num_saved) const noexcept {
    return is_preempted_ && (is_all_saved_ || num_saved > num_saved_before_);
  }

 private:
  bool is_preempted_ = false;
  bool is_all_saved_ = false;
  int num_saved_before_ = 0;
  Time began_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
