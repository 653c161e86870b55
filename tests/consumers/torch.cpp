// SPDX-License-Identifier: MIT
// Two processes average the gradients of a LibTorch model.
#include <railyard/railyard.hpp>

#include <torch/torch.h>

namespace ry = railyard;

void train(ry::Worker& worker) {
  auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(1, 1); });
  worker.samples(1);
  net->forward(torch::full({1, 1}, worker.rank() + 1.0)).sum().backward();
  worker.report({{"mean", net->weight.grad().item<double>()}});
}

int main() {
  ry::Trainer trainer{train, {.num_workers = 2}};
  const ry::Result result = trainer.fit();
  if (!result) fmt::print(stderr, "{}\n", result.error());
  if (result) fmt::print("torch mean {}\n", result.metrics().at("mean").number());
  return result.exit_status();
}
