// SPDX-License-Identifier: MIT
// When checkpoints are made, and which are kept. Train room.
#pragma once

#include "railyard/checkpoint/retention.hpp"

#include <chrono>
#include <cstdint>
#include <string>

namespace railyard::inline v0_1 {

/// Says when checkpoints are made, beside those of worker.report(metrics, state), and which are kept.
struct CheckpointConfig {
  /// How many of the best are kept, and always the newest one; 0 for all.
  int keep = 0;
  /// The metric that tells how good a checkpoint is; if empty, the later the better. One without it, or with NaN, is
  /// worst; the first report with a state that lacks it is warned of.
  std::string score{};
  ScoreOrder order = ScoreOrder::max;  ///< min for a loss
  /// Makes a checkpoint of the TrainState after every so many steps, without metrics; 0 for none of these.
  std::uint64_t every_steps = 0;
  /// Makes one at the end of the first step after so much time since the last one of this kind, by rank 0's clock; 0
  /// for none of these.
  std::chrono::nanoseconds interval{0};
  /// report(metrics, state) returns when the checkpoint is durable; otherwise as soon as the state has been copied.
  bool synchronous = false;
};

}  // namespace railyard::inline v0_1
