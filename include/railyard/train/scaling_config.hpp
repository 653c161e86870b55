// SPDX-License-Identifier: MIT
// How many workers a run has. Train room.
#pragma once

#include "railyard/core/launch_config.hpp"
#include "railyard/core/version.hpp"

#include <chrono>
#include <concepts>
#include <functional>

namespace railyard::inline v0_1 {

/// Is a number of workers, or the least and the most of a number that follows what there is: {.num_workers = {2, 8}}.
class WorkerCount {
 public:
  constexpr WorkerCount(int count) noexcept : min_(count), max_(count) {}  // implicit: {.num_workers = 4}
  constexpr WorkerCount(int min, int max) noexcept : min_(min), max_(max) {}

  template <std::floating_point T>
  WorkerCount(T count) = delete;  // a number of workers is a whole number

  [[nodiscard]] constexpr int min() const noexcept { return min_; }
  [[nodiscard]] constexpr int max() const noexcept { return max_; }
  [[nodiscard]] constexpr bool is_elastic() const noexcept { return min_ != max_; }

 private:
  int min_;
  int max_;
};

/// Says what to scale to. Example: ry::Trainer trainer{train, {.num_workers = 4}};
///
/// With a range, a run begins with as many workers as there is room for, goes on with fewer where that has become less,
/// and with more as soon as there is room again: at the end of a step, from a copy of the TrainState, which spends no
/// failure. The order of the samples stays as it is, and with LoaderOptions::global_batch_size the batches, too. Bits
/// do not: sums are made in another order, and what each worker has for itself (dropout, BatchNorm, its random numbers)
/// is drawn and counted otherwise. A run without a TrainState changes its size only when it is started again.
struct ScalingConfig {
  /// Under Launched, as many in each process that the engine has started; a range is one of all processes together, of
  /// which each makes its share of the most: lost ones are done without, as long as the rest makes the least.
  WorkerCount num_workers = 1;
  /// With a range: says for how many workers there is room now. By default as many as there are cores for this process,
  /// or GPUs with use_gpu. Called in the process of fit(), on its thread. Not for several processes: those that are
  /// there say it; and an error where num_workers is one number.
  std::function<int()> capacity{};
  /// How often it is asked while workers train. With a range only, as well.
  std::chrono::nanoseconds capacity_interval = std::chrono::seconds{10};
  /// Under Launched: what the environment does not say, or says wrong. Elsewhere an error.
  LaunchConfig launch{};
  /// Gives each worker a GPU of its own, which Worker::device_index() names: the one with the number of the worker on
  /// its host, of those that CUDA_VISIBLE_DEVICES shows; the only one, where an engine shows each process its own. With
  /// a range, there is room for as many workers as there are GPUs. A Backend of GPUs needs no word of it.
  bool use_gpu = false;
};

}  // namespace railyard::inline v0_1
