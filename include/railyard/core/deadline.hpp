// SPDX-License-Identifier: MIT
// A point in time after which a wait gives up. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/version.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {

/// Ends a wait. Taken once at the start of an operation and handed down, so that the parts share one budget.
/// Runs on the monotonic clock, which stands still while the machine is suspended.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Expires when the budget has passed, counted from now. setting: where the user has set it, for messages; it must
  /// live as long as the program.
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds budget, std::string_view setting = {}) {
    const auto now = Clock::now();
    const auto room = Clock::time_point::max() - now;
    return {budget >= room ? Clock::time_point::max() : now + budget, budget, setting};
  }

  /// Never expires.
  [[nodiscard]] static Deadline never() noexcept {
    return {Clock::time_point::max(), std::chrono::nanoseconds::max(), {}};
  }

  [[nodiscard]] bool is_never() const noexcept { return time_ == Clock::time_point::max(); }
  [[nodiscard]] bool expired() const { return !is_never() && Clock::now() >= time_; }

  /// What is left, never negative.
  [[nodiscard]] std::chrono::nanoseconds remaining() const {
    if (is_never()) return std::chrono::nanoseconds::max();
    return std::max(std::chrono::nanoseconds{0}, std::chrono::nanoseconds{time_ - Clock::now()});
  }

  /// The same budget, counted from now.
  [[nodiscard]] Deadline renewed() const { return after(budget_, setting_); }

  /// When it was taken; nothing that makes sense if it never expires.
  [[nodiscard]] Clock::time_point begin() const noexcept { return time_ - budget_; }
  /// When it expires; Clock::time_point::max() if never.
  [[nodiscard]] Clock::time_point time() const noexcept { return time_; }

  /// The whole budget, as messages print it: "30 s", "200 ms", "10 s (RunConfig::start_timeout)".
  [[nodiscard]] std::string budget_text() const {
    return setting_.empty() ? time_text() : detail::compose("{} ({})", time_text(), setting_);
  }

 private:
  Deadline(Clock::time_point time, std::chrono::nanoseconds budget, std::string_view setting) noexcept
      : time_(time), budget_(budget), setting_(setting) {}

  [[nodiscard]] std::string time_text() const {
    using namespace std::chrono_literals;
    if (is_never()) return "unlimited time";
    const auto in_ms = std::chrono::duration_cast<std::chrono::milliseconds>(budget_);
    if (in_ms % 1s == 0ms) return detail::compose("{} s", in_ms / 1s);
    return in_ms > 10s ? detail::compose("{:.1f} s", static_cast<double>(in_ms.count()) / 1000.0)
                       : detail::compose("{} ms", in_ms.count());
  }

  Clock::time_point time_;
  std::chrono::nanoseconds budget_;
  std::string_view setting_;
};

}  // namespace railyard::inline v0_1
