// SPDX-License-Identifier: MIT
// Two threads agree on a mean: what a program needs that has neither Gloo nor LibTorch.
#include <railyard/railyard.hpp>

namespace ry = railyard;

int main() {
  ry::Trainer<ry::Local, ry::Threads> trainer{[](auto& worker) {
                                                worker.report({{"mean", worker.mean(worker.rank() + 1.0)}});
                                              },
                                              {.num_workers = 2}};
  const ry::Result result = trainer.fit();
  if (!result) fmt::print(stderr, "{}\n", result.error());
  if (result) fmt::print("core mean {}\n", result.metrics().at("mean").number());
  return result.exit_status();
}
