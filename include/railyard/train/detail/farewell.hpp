// SPDX-License-Identifier: MIT
// Whether a run that was told of its end has saved its state since. Train room.
#pragma once

#include "railyard/core/deadline.hpp"

#include <chrono>
#include <string>

namespace railyard::inline v0_1 {
namespace detail {

/// Is told how many checkpoints the run has saved so far, whenever it is asked.
class Farewell {
 public:
  using Time = Deadline::Clock::time_point;

  /// The run is told of its end. is_preempted: because its machine will go.
  void begin(bool is_preempted, int num_saved, Time now) noexcept {
    is_preempted_ = is_preempted;
    num_saved_before_ = num_saved;
    began_ = now;
  }

  /// Whether half of the time is over: what the workers have not saved by then is to be saved without them.
  [[nodiscard]] bool is_late(std::chrono::nanoseconds grace, Time now) const noexcept {
    return now >= began_ + grace / 2;
  }
  /// When that will be, which nothing but the clock tells of; Time::max() if it is over.
  [[nodiscard]] Time wakes_at(std::chrono::nanoseconds grace, Time now) const noexcept {
    return now < began_ + grace / 2 ? began_ + grace / 2 : Time::max();
  }
  [[nodiscard]] bool is_preempted() const noexcept { return is_preempted_; }
  /// Says what a run that is told so goes on from.
  [[nodiscard]] std::string text(int num_saved) const {
    return num_saved > num_saved_before_
               ? "its state was saved first, and a run of the same name goes on from there"
               : "nothing newer was at hand, and a run of the same name goes on from its newest checkpoint";
  }

 private:
  bool is_preempted_ = false;
  int num_saved_before_ = 0;
  Time began_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
