// SPDX-License-Identifier: MIT
// How many workers there are to be, now. Train room.
#pragma once

#include "railyard/train/scaling_config.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/workers/detail/cores.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
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

 private:
  [[nodiscard]] int capacity() const { return config_.capacity ? config_.capacity() : usable_cores(); }

  ScalingConfig config_;
  int limit_ = config_.num_workers.max();
  Clock::time_point next_look_ = Clock::now() + config_.capacity_interval;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
