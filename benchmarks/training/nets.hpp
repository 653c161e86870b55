// SPDX-License-Identifier: MIT
// What the benchmarks of training share: a network that is a decoder, and one core for each worker.
#pragma once

#include <torch/torch.h>

#include <sched.h>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

// Any of the networks, behind one face.
struct Net : torch::nn::Module {
  virtual void draw_batch() = 0;
  virtual torch::Tensor loss() = 0;  // of the batch that was drawn last
};

// A decoder of 4 layers, 128 wide, with 4 heads, on 128 tokens of 65 kinds.
struct Gpt final : Net {
  static constexpr std::int64_t width = 128, tokens = 128, heads = 4, kinds = 65, layers = 4, batch = 4;
  Gpt() {
    embedding = register_module("embedding", torch::nn::Embedding(kinds, width));
    position = register_parameter("position", 0.02 * torch::randn({tokens, width}));
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const auto name = [layer](const char* part) { return part + std::to_string(layer); };
      norms.push_back(register_module(name("norm_a"), torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}))));
      norms.push_back(register_module(name("norm_b"), torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}))));
      linears.push_back(register_module(name("qkv"), torch::nn::Linear(width, 3 * width)));
      linears.push_back(register_module(name("out"), torch::nn::Linear(width, width)));
      linears.push_back(register_module(name("up"), torch::nn::Linear(width, 4 * width)));
      linears.push_back(register_module(name("down"), torch::nn::Linear(4 * width, width)));
    }
    head = register_module("head", torch::nn::Linear(width, kinds));
    mask = torch::full({tokens, tokens}, -1e9).triu(1);
  }
  void draw_batch() override {
    data = torch::randint(0, kinds, {batch, tokens});
    target = torch::randint(0, kinds, {batch * tokens});
  }
  torch::Tensor loss() override {
    auto x = embedding->forward(data) + position;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const auto parts = linears[4 * layer]->forward(norms[2 * layer]->forward(x)).chunk(3, -1);
      std::vector<torch::Tensor> qkv;
      for (const auto& part : parts) {
        qkv.push_back(part.view({batch, tokens, heads, width / heads}).transpose(1, 2));
      }
      const double scale = 1.0 / std::sqrt(static_cast<double>(width / heads));
      const auto weights = torch::softmax(torch::matmul(qkv[0], qkv[1].transpose(-2, -1)) * scale + mask, -1);
      const auto mixed = torch::matmul(weights, qkv[2]).transpose(1, 2).reshape({batch, tokens, width});
      x = x + linears[4 * layer + 1]->forward(mixed);
      const auto up = torch::gelu(linears[4 * layer + 2]->forward(norms[2 * layer + 1]->forward(x)));
      x = x + linears[4 * layer + 3]->forward(up);
    }
    return torch::nn::functional::cross_entropy(head->forward(x).view({batch * tokens, kinds}), target);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::Tensor position;
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> linears;
  torch::nn::Linear head{nullptr};
  torch::Tensor data, target, mask;
};

inline void pin(int rank) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<std::size_t> cores;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<std::size_t>(rank) % cores.size()], &one);
  sched_setaffinity(0, sizeof one, &one);
}

}  // namespace bench
