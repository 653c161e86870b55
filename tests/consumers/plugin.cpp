// SPDX-License-Identifier: MIT
// One of two shared libraries of a program, with trainers of its own; in each its function gets a name of its own.
#include <railyard/railyard.hpp>

namespace ry = railyard;

extern "C" __attribute__((visibility("default"))) double plugin(double value) {
  const auto train = [value](ry::Worker& worker) { worker.report({{"mean", worker.mean(worker.rank() + value)}}); };
  ry::Trainer<ry::Local, ry::Threads> threads{train, {.num_workers = 2}};
  ry::Trainer<ry::Gloo, ry::Processes> processes{train, {.num_workers = 2}};
  return threads.fit().value_or_throw().metrics().at("mean").number() +
         processes.fit().value_or_throw().metrics().at("mean").number();
}
