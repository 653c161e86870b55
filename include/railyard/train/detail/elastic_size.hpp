// SPDX-License-Identifier: MIT
// How many workers there are to be, now. Train room.
#pragma once

#include "railyard/train/scaling_config.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/workers/detail/cores.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Asks the source of capacity, not too often.
class ElasticSize {
 public:
  using Clock = Deadline::Clock;

  explicit ElasticSize(ScalingConfig config) : config_(std::move(config)) {}

  [[nodiscard]] const WorkerCount& count() const noexcept { return config_.num_workers; }
  [[nodiscard]] bool is_elastic() const noexcept { return count().is_elastic(); }

  /// How long whoever looks may sleep.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return is_elastic() ? config_.capacity_interval : std::chrono::hours{1};
  }

  /// Returns how many workers can be started now; nothing if these are too few.
  [[nodiscard]] std::optional<int> ask() {
    if (!is_elastic()) return count().max();
    const int room = std::min(capacity(), limit_);
    if (room < count().min()) return std::nullopt;
    return std::min(room, count().max());
  }

  /// Returns another number than the one that is running, if it is time to ask and there is one.
  [[nodiscard]] std::optional<int> look(Clock::time_point now, int running) {
    if (!is_elastic() || now < next_look_) return std::nullopt;
    next_look_ = now + config_.capacity_interval;
    limit_ = count().max();  // what could not be started once may be by now
    const auto size = ask();
    return size && *size != running ? size : std::nullopt;
  }

  /// So many could not be started: it will be fewer. Returns whether that is allowed.
  [[nodiscard]] bool shrink(int failed) noexcept {
    if (!is_elastic() || failed <= count().min()) return false;
    limit_ = failed - 1;
    next_look_ = Clock::now() + config_.capacity_interval;
    return true;
  }

  /// Whether to ask again makes no sense: too many hosts are lost.
  [[nodiscard]] bool is_hopeless() const noexcept { return is_hopeless_; }

  /// Asks until there is room for enough workers, a time is over, or asking again makes no sense. pause(time) returns
  /// false to end it. say(text): told once that it is waited for.
  template <class Pause, class Say>
  [[nodiscard]] std::optional<int> wait(std::chrono::nanoseconds time, const Pause& pause, const Say& say) {
    const Deadline end = Deadline::after(time);
    auto size = ask();
    if (!size && !is_hopeless_) say(no_room() + "; it is waited for");
    for (; !size && !is_hopeless_ && !end.expired(); size = ask()) {
      if (!pause(std::chrono::milliseconds{20})) return std::nullopt;
    }
    return size;
  }

  /// Says that there is no room for the least number of workers, and what else is known of that.
  [[nodiscard]] std::string no_room() const {
    return compose("there is no room for the {} workers that ScalingConfig::num_workers asks for at least{}",
                   count().min(), fault_);
  }

 private:
  // A function of the user's that throws has no answer: workers that train go on.
  [[nodiscard]] int capacity() {
    fault_.clear();
    is_hopeless_ = false;
    try {
      return config_.capacity ? config_.capacity() : usable_cores();
    } catch (const HostLostError& error) {
      fault_ = compose("; {}", error.what());
      is_hopeless_ = true;
      return 0;
    } catch (...) {
      fault_ = "; ScalingConfig::capacity threw: " + text_of(std::current_exception());
      return 0;
    }
  }

  ScalingConfig config_;
  std::string fault_{};
  bool is_hopeless_ = false;
  int limit_ = config_.num_workers.max();
  Clock::time_point next_look_ = Clock::now() + config_.capacity_interval;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
