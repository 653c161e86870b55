// SPDX-License-Identifier: MIT
// A network and samples that are alike wherever they are made, for trainings that must end alike.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <utility>

namespace test {

// With weights that no generator has drawn: a plain loop and all workers begin alike.
inline torch::nn::Sequential equal_net(torch::Dtype dtype) {
  torch::nn::Sequential net(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 3));
  net->to(dtype);
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : net->parameters()) {
    const auto places = torch::arange(parameter.numel()).to(torch::kDouble) * 1.7 + (phase += 0.9);
    parameter.copy_(places.sin().mul(0.4).view(parameter.sizes()));
  }
  return net;
}

constexpr std::int64_t num_samples = 53;  // in batches of 16 the last has 5: with 7 workers, two of them have none
constexpr std::int64_t batch_size = 16;

inline std::pair<torch::Tensor, torch::Tensor> samples_of(torch::Dtype dtype) {
  const auto data = (torch::arange(num_samples * 6).to(torch::kDouble) * 0.37).sin().view({num_samples, 6}).to(dtype);
  return {data, torch::arange(num_samples) * 7 % 3};
}

}  // namespace test
