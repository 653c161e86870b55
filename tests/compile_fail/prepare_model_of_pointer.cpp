// SPDX-License-Identifier: MIT
// A model that is none: the factory returns a raw pointer.
// needs: torch
// expect: static.assert.*prepare_model.worker, x.: x must be a factory such as
#include <railyard/railyard.hpp>

#include <torch/torch.h>

namespace ry = railyard;

void train(ry::Worker& worker) {
#ifdef FIXED
  auto net = ry::prepare_model(worker, [] { return std::make_shared<torch::nn::LinearImpl>(2, 3); });
#else
  auto net = ry::prepare_model(worker, [] { return new torch::nn::LinearImpl(2, 3); });
#endif
  static_cast<void>(net);
}
