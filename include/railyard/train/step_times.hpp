// SPDX-License-Identifier: MIT
// Where the time of training steps has gone. Train room.
#pragma once

#include "railyard/core/value.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace railyard::inline v0_1 {

/// Says where the time of some steps has gone. Units: seconds.
struct StepTimes {
  std::uint64_t steps = 0;    ///< exchanges of gradients
  double compute = 0;         ///< all that is none of the following: forward, backward
  double data = 0;            ///< in loaders: waiting for batches, and making tensors of them
  double wait = 0;            ///< for ranks that came later
  double communication = 0;   ///< adding gradients, and moving them
  double optimizer = 0;       ///< in step() of a prepared optimizer
  std::uint64_t bytes = 0;    ///< of gradients that were read and written for the exchange
  int slowest_rank = -1;      ///< the one that has waited least, which is whom the others wait for; -1 if unknown
  std::uint64_t skipped = 0;  ///< steps that were left out, see ModelOptions::non_finite

  [[nodiscard]] double total() const noexcept { return compute + data + wait + communication + optimizer; }
  [[nodiscard]] double share_of_compute() const noexcept { return share_of(compute); }
  [[nodiscard]] double share_of_data() const noexcept { return share_of(data); }
  [[nodiscard]] double share_of_wait() const noexcept { return share_of(wait); }
  [[nodiscard]] double share_of_communication() const noexcept { return share_of(communication); }
  [[nodiscard]] double share_of_optimizer() const noexcept { return share_of(optimizer); }

 private:
  [[nodiscard]] double share_of(double part) const noexcept { return total() > 0 ? part / total() : 0; }
};

namespace detail {

/// Returns what has come since then.
[[nodiscard]] inline StepTimes times_since(const StepTimes& then, StepTimes now) {
  now.steps -= then.steps;
  now.skipped -= then.skipped;
  now.bytes -= then.bytes;
  now.compute -= then.compute;
  now.data -= then.data;
  now.wait -= then.wait;
  now.communication -= then.communication;
  now.optimizer -= then.optimizer;
  return now;
}

/// Adds shares, whom the others wait for, and bytes, unless there is a metric of that name already.
inline void add_step_times(const StepTimes& times, Metrics& metrics) {
  const Metrics shares{{"compute_share", times.share_of_compute()},
                       {"data_share", times.share_of_data()},
                       {"wait_share", times.share_of_wait()},
                       {"communication_share", times.share_of_communication()},
                       {"optimizer_share", times.share_of_optimizer()},
                       {"slowest_rank", times.slowest_rank},
                       {"gradient_bytes", times.bytes}};
  for (const auto& [name, value] : shares) {
    if (metrics.find(name) == nullptr) metrics.set(name, value);
  }
}

/// Returns the times of the average rank of those that have told theirs, and the bytes of all together.
[[nodiscard]] inline StepTimes average_of(const std::vector<StepTimes>& by_rank) {
  StepTimes all;
  double num_known = 0;
  for (const StepTimes& one : by_rank) {
    if (one.steps == 0) continue;
    ++num_known;
    all.steps = std::max(all.steps, one.steps);
    all.skipped = std::max(all.skipped, one.skipped);
    all.compute += one.compute;
    all.data += one.data;
    all.wait += one.wait;
    all.communication += one.communication;
    all.optimizer += one.optimizer;
    all.bytes += one.bytes;
    if (one.slowest_rank >= 0) all.slowest_rank = one.slowest_rank;
  }
  for (double* part : {&all.compute, &all.data, &all.wait, &all.communication, &all.optimizer}) {
    *part /= std::max(num_known, 1.0);
  }
  return all;
}

}  // namespace detail

}  // namespace railyard::inline v0_1
