// SPDX-License-Identifier: MIT
// Tells of connections that were refused, a few lines a second however many there are. Workers room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Passes lines on to a function, and counts those for which there were too many.
class RefusalLog {
 public:
  using Clock = Deadline::Clock;
  static constexpr int lines_per_second = 5;

  explicit RefusalLog(std::function<void(const std::string&)> tell) : tell_(std::move(tell)) {}

  void note(const std::string& line, Clock::time_point now) {
    ++total_;
    if (now >= window_end_) begin_window(now);
    if (++in_window_ > lines_per_second) {
      ++untold_;
    } else if (tell_) {
      tell_(line);
    }
  }

  /// Tells how many lines were left out, once the second is over.
  void tell_rest(Clock::time_point now) {
    if (untold_ > 0 && now >= window_end_) begin_window(now);
  }
  /// When tell_rest() has something to tell; far in the future if it has not.
  [[nodiscard]] Clock::time_point due() const noexcept { return untold_ > 0 ? window_end_ : Clock::time_point::max(); }
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

 private:
  void begin_window(Clock::time_point now) {
    window_end_ = now + std::chrono::seconds{1};
    in_window_ = 0;
    const std::uint64_t untold = std::exchange(untold_, 0);
    if (untold > 0 && tell_) tell_(compose("refused {} more connections in the second before", untold));
  }

  std::function<void(const std::string&)> tell_;
  Clock::time_point window_end_{};
  int in_window_ = 0;
  std::uint64_t untold_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
