// SPDX-License-Identifier: MIT
// Runs of several processes with a range of workers, some of which are lost on the way.
#pragma once

#include "railyard/workers/launched.hpp"

#include "unit/train/launched_processes.hpp"
#include "unit/train/toy_training.hpp"

#include "railyard/collectives/gloo.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace launched_runs {

namespace ry = railyard;

inline constexpr std::uint64_t step_of_loss = 13;

struct ResizeTeller {
  std::string* text;
  void on_resize(const ry::Resize& resize) const { *text += fmt::format("; from {} to {}", resize.from, resize.to); }
};

// All of so many workers stand still at a step, until their group ends; "running" is there when all do, and their
// newest checkpoint is.
inline auto stand_still(const Scratch& scratch, int num_workers) {
  return [&scratch, num_workers](ry::Worker& worker, std::uint64_t step) {
    if (step != step_of_loss || worker.world_size() != num_workers) return;
    worker.barrier();
    if (worker.rank() == 0 && comes(scratch.path() / "run/checkpoints/checkpoint-000002")) {
      leave(scratch.path() / "running");
    }
    for (;;) worker.barrier();
  };
}

// Returns what fit() has returned, and what callbacks were told.
template <class Change>
std::string train(const Scratch& scratch, ry::WorkerCount count, const Change& change, ry::RunConfig run = {}) {
  std::string told;
  run.name = "run";
  run.storage_path = scratch.path();
  run.progress = ry::Progress::quiet;
  run.callbacks.emplace_back(ResizeTeller{&told});
  ry::Trainer<ry::Gloo, ry::Launched> trainer{[&](auto& worker) { toy::train(worker, change); },
                                              {.num_workers = count, .capacity_interval = std::chrono::milliseconds{1}},
                                              run};
  const auto result = trainer.fit();
  std::string text = text_of(result);
  for (const ry::Attempt& attempt : result.attempts()) {
    text += fmt::format("; {} workers to step {}, lost {}", attempt.world_size, attempt.end_step, attempt.lost_steps);
  }
  return text + told;
}

// What a run that nothing happens to ends with.
inline std::string unharmed(int num_workers) {
  const Scratch scratch;
  const auto result = toy::run<toy::SharedProcesses>(scratch, toy::never, {}, num_workers);
  return fmt::format("status 0, {} workers, sum {}, ", num_workers, result.metrics().at("sum").number());
}

}  // namespace launched_runs
