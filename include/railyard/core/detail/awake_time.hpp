// SPDX-License-Identifier: MIT
// Deadlines of waits that may be suspended with all that they wait for. Core room.
#pragma once

#include "railyard/core/deadline.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

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

  AwakeTime() = default;
  /// All time up to then counts.
  explicit AwakeTime(Time looked) noexcept : looked_(looked) {}

  /// Whether the deadline has passed. What was counted of an earlier deadline is forgotten.
  [[nodiscard]] bool is_over(const Deadline& deadline, Time now = Deadline::Clock::now()) noexcept {
    if (deadline.is_never()) return false;
    now = std::max(now, deadline.begin());
    if (looked_ < deadline.begin()) {
      looked_ = deadline.begin();
      lost_ = std::chrono::nanoseconds{0};
    }
    const std::chrono::nanoseconds counts = most + std::exchange(busy_, std::chrono::nanoseconds{0});
    lost_ += std::max<std::chrono::nanoseconds>(now - looked_ - counts, std::chrono::nanoseconds{0});
    looked_ = std::max(looked_, now);
    return now - lost_ >= deadline.time();
  }

  /// Until the next look something is done that may take so long, and counts.
  void be_busy(std::chrono::nanoseconds at_most) noexcept { busy_ = at_most; }

  /// For how long to sleep between this look and the next.
  [[nodiscard]] std::chrono::nanoseconds until_next_look(const Deadline& deadline) const noexcept {
    if (deadline.is_never()) return slice;
    const std::chrono::nanoseconds left = deadline.time() - (looked_ - lost_);
    return std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds{0}, slice);
  }

 private:
  Time looked_{};
  std::chrono::nanoseconds lost_{0};
  std::chrono::nanoseconds busy_{0};
};

/// Counts the time of waits that have a deadline in common, one after the other: where each counted for itself, time in
/// which an earlier one did look would be taken for a suspension. May be called from any thread.
class CommonAwakeTime {
 public:
  struct Look {
    bool is_over = false;
    std::chrono::nanoseconds until_next{};  ///< for how long to sleep before the next look
  };

  [[nodiscard]] Look look(const Deadline& deadline) {
    if (deadline.is_never()) return {false, AwakeTime::slice};
    if (deadline.begin() == deadline.time()) return {true, {}};
    const std::lock_guard lock{mutex_};
    AwakeTime& time = time_of(deadline);
    const bool is_over = time.is_over(deadline);
    return {is_over, time.until_next_look(deadline)};
  }

 private:
  struct Entry {
    AwakeTime::Time deadline{};
    std::uint64_t used = 0;
    AwakeTime time{};
  };

  // Of the deadlines that are not known, the one that was not asked for for longest has to go.
  [[nodiscard]] AwakeTime& time_of(const Deadline& deadline) {
    Entry* oldest = entries_.data();
    for (Entry& entry : entries_) {
      if (entry.used > 0 && entry.deadline == deadline.time()) {
        entry.used = ++num_uses_;
        return entry.time;
      }
      if (entry.used < oldest->used) oldest = &entry;
    }
    *oldest = {.deadline = deadline.time(), .used = ++num_uses_, .time = AwakeTime{Deadline::Clock::now()}};
    return oldest->time;
  }

  std::mutex mutex_{};
  std::array<Entry, 8> entries_{};
  std::uint64_t num_uses_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
