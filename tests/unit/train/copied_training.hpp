// SPDX-License-Identifier: MIT
// What tests of copies to memory train, in runs of one process and of several.
#pragma once

#include "unit/train/toy_training.hpp"

#include "railyard/core/buffer.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/train/train_state.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace toy {

constexpr std::uint64_t last_step = 40;
constexpr double every_step = 1e12;  // percent: the time of no step is too short for a copy

// Is on one rank more than any memory has, and counts on the others how often it is copied.
struct UnevenPart {
  bool is_huge = false;
  std::int64_t* num_copies = nullptr;

  [[nodiscard]] ry::State state() const {
    const std::int64_t count = is_huge ? std::int64_t{1} << 50U : 1;
    ry::StateTensor tensor{.name = "rows", .dtype = ry::Dtype::f64, .shape = {count}};
    tensor.read = [copies = num_copies](std::int64_t, std::int64_t, std::byte*) { ++*copies; };
    ry::State state;
    state.tensors.push_back(std::move(tensor));
    state.is_own = true;
    return state;
  }
  void load_state(const ry::State&) {}
};

// Makes ten steps with such a part, which is huge on one rank, and reports how often it was copied on all of them.
inline void train_unevenly(ry::Worker& worker, int rich) {
  std::int64_t num_copies = 0;
  UnevenPart part{.is_huge = worker.rank() == rich, .num_copies = &num_copies};
  ry::TrainState state{worker, {{"part", part}}};
  for (int step = 0; step < 10; ++step) {
    worker.samples(1);
    worker.end_step();
  }
  worker.all_reduce(ry::buffer_of_value(num_copies), ry::ReduceOp::sum);
  worker.report({{"copies", num_copies}});
}

}  // namespace toy
