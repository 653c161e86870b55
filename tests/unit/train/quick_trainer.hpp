// SPDX-License-Identifier: MIT
// What the tests of whole runs share.
#pragma once

#include "railyard/train/trainer.hpp"

#include "unit/train/scratch.hpp"

#include <utility>

/// Runs a function on workers in a folder that goes away, quietly, with limits that suit a test.
template <class B, class S, class F>
railyard::Result run_in(const Scratch& scratch, int num_workers, F&& function, railyard::RunConfig run = {},
                        typename B::Options options = {}) {
  run.storage_path = scratch.path();
  run.progress = railyard::Progress::quiet;
  railyard::Trainer<B, S> trainer{
      std::forward<F>(function), {.num_workers = num_workers}, std::move(run), std::move(options)};
  return trainer.fit();
}
