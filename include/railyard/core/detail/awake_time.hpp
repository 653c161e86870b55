// SPDX-License-Identifier: MIT
// Deadlines of waits that may be suspended with all that they wait for. Core room.
#pragma once

#include "railyard/core/deadline.hpp"

#include <algorithm>
#include <chrono>

namespace railyard::inline v0_1 {
namespace detail {

/// Counts the time of waits that look at it again and again. Time in which they did not look does not count: the whole
/// group may have been stopped, frozen, or put to sleep with its machine, and who is waited for with it. One that is
/// stopped alone is late all the same, for those who wait for it look.
class AwakeTime {
 public:
  using Time = Deadline::Clock::time_point;

  /// The most that may lie between two looks and count, so also the most of a suspension that counts.
  static constexpr std::chrono::milliseconds most{500};
  /// For how long to sleep between two looks at most.
  static constexpr std::chrono::milliseconds slice{100};

  /// Whether the deadline has passed. What was counted of an earlier deadline is forgotten.
  [[nodiscard]] bool is_over(const Deadline& deadline, Time now = Deadline::Clock::now()) noexcept {
    if (deadline.is_never()) return false;
    now = std::max(now, deadline.begin());
    if (looked_ < deadline.begin()) {
      looked_ = deadline.begin();
      lost_ = std::chrono::nanoseconds{0};
    }
    lost_ += std::max<std::chrono::nanoseconds>(now - looked_ - most, std::chrono::nanoseconds{0});
    looked_ = std::max(looked_, now);
    return now - lost_ >= deadline.time();
  }

  /// For how long to sleep between this look and the next.
  [[nodiscard]] std::chrono::nanoseconds until_next_look(const Deadline& deadline) const noexcept {
    if (deadline.is_never()) return slice;
    const std::chrono::nanoseconds left = deadline.time() - (looked_ - lost_);
    return std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds{0}, slice);
  }

 private:
  Time looked_{};
  std::chrono::nanoseconds lost_{0};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
