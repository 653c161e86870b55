// SPDX-License-Identifier: MIT
// Divides the time of a training loop into what it is spent on. Torch room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/train/step_times.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Is told when the loop goes from one thing to the next. Used by the worker's own thread.
class StepClock {
 public:
  using Clock = Deadline::Clock;
  enum class Part : std::uint8_t { compute, data, wait, communication, optimizer };

  // Ends what was going on, whose time it adds, and begins a part.
  void enter(Part part) noexcept {
    const auto now = Clock::now();
    if (is_running_) spent_[static_cast<std::size_t>(part_)] += std::chrono::duration<double>(now - since_).count();
    is_running_ = true;
    since_ = now;
    part_ = part;
  }
  // Begins or ends waiting for data, which counts from the first exchange on as all does.
  void enter_data(bool begins) noexcept {
    if (is_running_) enter(begins ? Part::data : Part::compute);
  }
  void count_step(std::uint64_t bytes) noexcept {
    ++counts_.steps;
    count_bytes(bytes);
  }
  void count_bytes(std::uint64_t bytes) noexcept { counts_.bytes += bytes; }
  void count_skipped() noexcept { ++counts_.skipped; }
  [[nodiscard]] std::uint64_t skipped() const noexcept { return counts_.skipped; }
  [[nodiscard]] bool has_steps() const noexcept { return counts_.steps > 0; }

  // What this rank has waited in all: whoever waits least is waited for.
  [[nodiscard]] double waited() const noexcept { return spent_on(Part::wait); }
  void set_waits_of_all(std::vector<double> waits) { waits_ = std::move(waits); }

  // Since the first exchange.
  [[nodiscard]] StepTimes total(int world_size) {
    if (is_running_) enter(part_);
    StepTimes times = counts_;
    times.compute = spent_on(Part::compute);
    times.data = spent_on(Part::data);
    times.wait = spent_on(Part::wait);
    times.communication = spent_on(Part::communication);
    times.optimizer = spent_on(Part::optimizer);
    if (waits_.size() == static_cast<std::size_t>(world_size) && world_size > 1) {
      times.slowest_rank = static_cast<int>(std::min_element(waits_.begin(), waits_.end()) - waits_.begin());
    }
    return times;
  }

  // Since the last call, or the first exchange.
  [[nodiscard]] StepTimes take(int world_size) {
    const StepTimes now = total(world_size);
    return times_since(std::exchange(taken_, now), now);
  }

 private:
  [[nodiscard]] double spent_on(Part part) const noexcept { return spent_[static_cast<std::size_t>(part)]; }

  bool is_running_ = false;
  Part part_ = Part::compute;
  Clock::time_point since_{};
  std::array<double, 5> spent_{};
  StepTimes counts_{};  // steps, those left out, and bytes alone
  StepTimes taken_{};
  std::vector<double> waits_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
