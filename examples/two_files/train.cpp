// SPDX-License-Identifier: MIT
// The training, the only file here that is compiled with LibTorch. Worker is no template, so this is an ordinary file.
#include "train.hpp"

#include <railyard/torch/prepare_loader.hpp>
#include <railyard/torch/prepare_model.hpp>

#include <torch/torch.h>

namespace ry = railyard;

void train(ry::Worker& worker, const Settings& settings) {
  auto net = ry::prepare_model(worker, [] {
    return torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
  });
  auto training = ry::prepare_loader(worker, worker.dataset("train"),
                                     {.global_batch_size = 64, .shuffle = true, .drives_step = true});
  auto test = ry::prepare_loader(worker, worker.dataset("test"), {.global_batch_size = 256});
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(settings.learning_rate));

  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    for (const auto& batch : training) {
      optimizer.zero_grad();
      torch::cross_entropy_loss(net->forward(batch.data / 16), batch.target).backward();
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    ry::Mean correct;
    for (const auto& batch : test) {
      const auto hits = net->forward(batch.data / 16).argmax(1).eq(batch.target).to(torch::kDouble).mean();
      correct.add(hits.item<double>(), static_cast<double>(batch.size()));
    }
    worker.report({{"epoch", epoch}, {"accuracy", worker.mean(correct)}});
  }
}
