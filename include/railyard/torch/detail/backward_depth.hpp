// SPDX-License-Identifier: MIT
// How deep one backward pass lies in others. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace railyard::inline v0_1 {

namespace detail {

// How many backward passes are around the one under way on this thread, such as those in which checkpointing computes
// a part. LibTorch tells nobody, but it keeps the number beside a set that it does show.
[[nodiscard]] inline int depth_of_pass() {
  using torch::autograd::GraphTask;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // conditionally supported, and so by g++ and clang++
  constexpr std::size_t offset = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  return reinterpret_cast<const GraphTask*>(reinterpret_cast<const std::byte*>(nodes) - offset)->reentrant_depth_;
}

}  // namespace detail

}  // namespace railyard::inline v0_1
