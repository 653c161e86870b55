// SPDX-License-Identifier: MIT
// Divides the time of a training loop into what it is spent on. Torch room.
#pragma once

#include "railyard/core/deadline.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says where the time of some steps has gone, on one worker. In seconds.
struct StepTimes {
  std::uint64_t steps = 0;   ///< exchanges of gradients
  double compute = 0;        ///< all that is none of the following: loading, forward, backward
  double wait = 0;           ///< for ranks that came later
  double communication = 0;  ///< adding gradients, and moving them
  double optimizer = 0;      ///< in step() of a prepared optimizer
  std::uint64_t bytes = 0;   ///< of gradients that this rank has read and written for the exchange
  int slowest_rank = -1;     ///< the one that has waited least, which is whom the others wait for; -1 if unknown

  [[nodiscard]] double total() const noexcept { return compute + wait + communication + optimizer; }
  [[nodiscard]] double share_of_wait() const noexcept { return total() > 0 ? wait / total() : 0; }
  [[nodiscard]] double share_of_communication() const noexcept { return total() > 0 ? communication / total() : 0; }
};

namespace detail {

// Is told when the loop goes from one thing to the next. Used by the worker's own thread.
class StepClock {
 public:
  using Clock = Deadline::Clock;
  enum class Part : std::uint8_t { compute, wait, communication, optimizer };

  // Ends what was going on, whose time it adds, and begins a part.
  void enter(Part part) noexcept {
    const auto now = Clock::now();
    if (is_running_) spent_[static_cast<std::size_t>(part_)] += std::chrono::duration<double>(now - since_).count();
    is_running_ = true;
    since_ = now;
    part_ = part;
  }
  void count_step(std::uint64_t bytes) noexcept {
    ++times_.steps;
    times_.bytes += bytes;
  }

  // What this rank has waited in all: whoever waits least is waited for.
  [[nodiscard]] double waited() const noexcept { return spent_[static_cast<std::size_t>(Part::wait)]; }
  void set_waits_of_all(std::vector<double> waits) { waits_ = std::move(waits); }

  [[nodiscard]] StepTimes take(int world_size) {
    if (is_running_) enter(part_);
    StepTimes times = std::exchange(times_, {});
    const auto since_last = [this](Part part) {
      const auto index = static_cast<std::size_t>(part);
      return spent_[index] - std::exchange(taken_[index], spent_[index]);
    };
    times.compute = since_last(Part::compute);
    times.wait = since_last(Part::wait);
    times.communication = since_last(Part::communication);
    times.optimizer = since_last(Part::optimizer);
    if (waits_.size() == static_cast<std::size_t>(world_size) && world_size > 1) {
      times.slowest_rank = static_cast<int>(std::min_element(waits_.begin(), waits_.end()) - waits_.begin());
    }
    return times;
  }

 private:
  bool is_running_ = false;
  Part part_ = Part::compute;
  Clock::time_point since_{};
  std::array<double, 4> spent_{};
  std::array<double, 4> taken_{};
  StepTimes times_{};
  std::vector<double> waits_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
