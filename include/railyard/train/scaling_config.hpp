// SPDX-License-Identifier: MIT
// How many workers a run has. Train room.
#pragma once

#include "railyard/core/version.hpp"

#include <concepts>

namespace railyard::inline v0_1 {

/// Is a number of workers. A type of its own, so that a range of numbers can be said here one day.
class WorkerCount {
 public:
  constexpr WorkerCount(int count) noexcept : count_(count) {}  // implicit: {.num_workers = 4}

  template <std::floating_point T>
  WorkerCount(T count) = delete;  // a number of workers is a whole number

  [[nodiscard]] constexpr int count() const noexcept { return count_; }

 private:
  int count_;
};

/// Says what to scale to. Example: ry::Trainer trainer{train, {.num_workers = 4}};
struct ScalingConfig {
  WorkerCount num_workers = 1;
};

}  // namespace railyard::inline v0_1
