// SPDX-License-Identifier: MIT
// Says what the steps of a training loop spend their time on. Torch room.
#pragma once

#include "railyard/torch/detail/gradients.hpp"
#include "railyard/torch/detail/step_clock.hpp"

#include "railyard/train/step_times.hpp"
#include "railyard/train/worker.hpp"

namespace railyard::inline v0_1 {

/// Returns where this worker's time has gone since its first exchange of gradients, or since the last call. Where the
/// ranks share memory, waiting is told from moving data; elsewhere both are `communication`.
/// Cost: none worth naming; measuring takes a dozen looks at the clock per step, about half a microsecond.
/// Example: worker.report({{"loss", loss}, {"wait_share", ry::step_times(worker).share_of_wait()}});
[[nodiscard]] inline StepTimes step_times(Worker& worker) {
  return detail::gradient_exchange_of(worker)->clock().take(worker.world_size());
}

}  // namespace railyard::inline v0_1
