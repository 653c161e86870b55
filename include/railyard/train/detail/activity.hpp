// SPDX-License-Identifier: MIT
// Says what the ranks of a group are doing, as far as their pages tell. Train room.
#pragma once

#include "railyard/callbacks/progress.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns "rank 1 was outside of collectives after 3 of them (step 7, for 2.6 s), rank 0 had waited in collective 4
/// for 2.5 s (step 7)": those that do not wait first, because the others wait for them. Of very
/// many ranks only the first.
[[nodiscard]] inline std::string activity_text(const WorkerGroup& group, int num_workers,
                                               Deadline::Clock::time_point now) {
  std::vector<std::string> outside;
  std::vector<std::string> waiting;
  const std::int64_t now_ns = std::chrono::nanoseconds{now.time_since_epoch()}.count();
  for (int rank = 0; rank < num_workers; ++rank) {
    const WorkerPage& page = group.page(rank);
    const auto collectives = page.collectives.load(std::memory_order_relaxed);
    const std::uint64_t step = page.steps.load(std::memory_order_relaxed);  // counted from 0: those that have ended
    const std::int64_t since_ns = page.waiting_since_ns.load(std::memory_order_relaxed);
    if (since_ns == 0) {
      const std::int64_t stepped_ns = page.stepped_at_ns.load(std::memory_order_relaxed);
      const std::string since =
          stepped_ns == 0 ? "" : compose(", for {:.1f} s", static_cast<double>(now_ns - stepped_ns) / 1e9);
      outside.push_back(
          compose("rank {} was outside of collectives after {} of them (step {}{})", rank, collectives, step, since));
    } else {
      waiting.push_back(compose("rank {} had waited in collective {} for {:.1f} s (step {})", rank, collectives,
                                static_cast<double>(now_ns - since_ns) / 1e9, step));
    }
  }
  outside.insert(outside.end(), waiting.begin(), waiting.end());
  return joined_first(outside, 16);
}

/// Returns how far the run is, as the page of rank 0 tells, and what all ranks have been given.
[[nodiscard]] inline ProgressState progress_of(const WorkerGroup& group, int num_workers, int num_alive,
                                               double seconds) {
  ProgressState state{.seconds = seconds, .alive = num_alive, .world_size = num_workers};
  for (int rank = 0; rank < num_workers; ++rank) {
    state.samples += group.page(rank).samples.load(std::memory_order_relaxed);
  }
  const WorkerPage& page = group.page(0);
  state.steps = page.steps.load(std::memory_order_relaxed);
  state.epoch = page.epoch.load(std::memory_order_relaxed);
  state.epoch_size = page.epoch_size.load(std::memory_order_relaxed);
  state.epoch_done = page.epoch_done.load(std::memory_order_relaxed);
  return state;
}

/// Returns the most steps that any of them has ended; begin_step if that is more.
[[nodiscard]] inline std::uint64_t furthest_step(const WorkerGroup& group, int num_workers, std::uint64_t begin_step) {
  std::uint64_t furthest = begin_step;
  for (int rank = 0; rank < num_workers; ++rank) furthest = std::max(furthest, group.page(rank).steps.load());
  return furthest;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
