// SPDX-License-Identifier: MIT
// An optimizer that cannot be divided among ranks.
// needs: torch
// expect: static.assert.*X must be torch::optim::SGD, Adam, AdamW, Adagrad or RMSprop. LBFGS looks at all
#include <railyard/railyard.hpp>

#include <torch/torch.h>

namespace ry = railyard;

void train(ry::Worker& worker, torch::nn::Linear& net) {
#ifdef FIXED
  auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions{0.1});
#else
  auto optimizer = ry::prepare_optimizer<torch::optim::LBFGS>(worker, net, torch::optim::LBFGSOptions{0.1});
#endif
  optimizer.zero_grad();
}
