// SPDX-License-Identifier: MIT
// Tells a state that lasts from one that passes, and waits. Train room.
#pragma once

#include "railyard/core/deadline.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace railyard::inline v0_1 {
namespace detail {

/// Says when the same rank has been found for longer than a while.
class Patience {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// rank: -1 if none is found. Returns whether it has been found again and again for so long.
  [[nodiscard]] bool is_over(int rank, Time now) {
    if (rank != rank_) since_ = now;
    rank_ = rank;
    constexpr std::chrono::seconds most{5};
    return rank >= 0 && now - since_ > most;
  }

 private:
  int rank_ = -1;
  Time since_{};
};

/// Sleeps for so long. Returns false as soon as is_over() says so, which is asked once at least.
template <class IsOver>
[[nodiscard]] bool sleeps_unless(const IsOver& is_over, std::chrono::nanoseconds time) {
  const Deadline deadline = Deadline::after(time);
  do {
    if (is_over()) return false;
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::milliseconds{20}));
  } while (!deadline.expired());
  return true;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
