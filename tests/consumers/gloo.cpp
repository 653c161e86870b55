// SPDX-License-Identifier: MIT
// Two processes agree on a mean over Gloo; the policies are the default ones.
#include <railyard/railyard.hpp>

namespace ry = railyard;

void train(ry::Worker& worker) { worker.report({{"mean", worker.mean(worker.rank() + 1.0)}}); }

int main() {
  ry::Trainer trainer{train, {.num_workers = 2}};
  const ry::Result result = trainer.fit();
  if (!result) fmt::print(stderr, "{}\n", result.error());
  if (result) fmt::print("gloo mean {}\n", result.metrics().at("mean").number());
  return result.exit_status();
}
