// SPDX-License-Identifier: MIT
// Where a worker is in the micro-batches of a step. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstdint>

namespace railyard::inline v0_1 {

namespace detail {

// The micro-batches of one step.
struct StepWindow {
  std::uint64_t step = 0;         // counts from 1; 0 before the first
  std::uint64_t samples = 0;      // of this rank so far
  std::uint64_t micro_batch = 0;  // samples of the one under way
  bool is_accumulating = false;   // it has several: gradients are weighted before they are accumulated
  bool is_last = true;            // the step's last one has begun
  std::uint64_t num_passes = 0;   // that have been exchanged
  bool is_refused = false;        // one of them was not finite
};

}  // namespace detail

}  // namespace railyard::inline v0_1
