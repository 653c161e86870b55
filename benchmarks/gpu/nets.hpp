// SPDX-License-Identifier: MIT
// The networks that benchmarks/gpu.cpp trains: those of ddp.py, made in the same order, so that one seed gives both the
// same weights.
#pragma once

#include <torch/torch.h>

#include <torch/version.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace bench {

// Any of the networks, behind one face.
struct GpuNet : torch::nn::Module {
  // Shapes: data and target of one batch, on the host.
  [[nodiscard]] virtual std::pair<torch::Tensor, torch::Tensor> draw_batch() const = 0;
  [[nodiscard]] virtual torch::Tensor forward(torch::Tensor data) = 0;  // logits: (samples, classes)
};

// So small that a step is nothing but what it costs to queue it.
struct GpuMlp final : GpuNet {
  static constexpr std::int64_t batch = 64, from = 64, width = 128, classes = 10;
  GpuMlp() {
    net->push_back(torch::nn::Linear(from, width));
    net->push_back(torch::nn::ReLU());
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::ReLU());
    net->push_back(torch::nn::Linear(width, classes));
    register_module("net", net);
  }
  [[nodiscard]] std::pair<torch::Tensor, torch::Tensor> draw_batch() const override {
    const auto data = torch::randn({batch, from});
    return {data, torch::randint(0, classes, {batch})};
  }
  [[nodiscard]] torch::Tensor forward(torch::Tensor data) override { return net->forward(data); }
  torch::nn::Sequential net;
};

// ResNet-50's block: narrows to a quarter of its output's channels, and back.
struct Bottleneck final : torch::nn::Module {
  Bottleneck(std::int64_t from, std::int64_t width, std::int64_t stride) {
    add_convolution(from, width, 1, 1);
    add_convolution(width, width, 3, stride);
    add_convolution(width, 4 * width, 1, 1);
    register_module("body", body);
    if (stride == 1 && from == 4 * width) return;
    shortcut->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(from, 4 * width, 1).stride(stride).bias(false)));
    shortcut->push_back(torch::nn::BatchNorm2d(4 * width));
    register_module("shortcut", shortcut);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }
  void add_convolution(std::int64_t from, std::int64_t to, std::int64_t kernel, std::int64_t stride) {
    if (!body->is_empty()) body->push_back(torch::nn::ReLU());
    body->push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false)));
    body->push_back(torch::nn::BatchNorm2d(to));
  }
  torch::nn::Sequential body;
  torch::nn::Sequential shortcut;
};

// ResNet-50: 25.6 million weights.
struct GpuCnn final : GpuNet {
  static constexpr std::int64_t batch = 64, classes = 1000;
  GpuCnn() {
    net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)));
    net->push_back(torch::nn::BatchNorm2d(64));
    net->push_back(torch::nn::ReLU());
    net->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
    std::int64_t from = 64;
    for (std::size_t stage = 0; stage < 4; ++stage) {
      constexpr std::int64_t blocks[] = {3, 4, 6, 3};
      const std::int64_t width = std::int64_t{64} << stage;
      for (std::int64_t block = 0; block < blocks[stage]; ++block) {
        net->push_back(Bottleneck(from, width, stage > 0 && block == 0 ? 2 : 1));
        from = 4 * width;
      }
    }
    net->push_back(torch::nn::AdaptiveAvgPool2d(1));
    net->push_back(torch::nn::Flatten());
    net->push_back(torch::nn::Linear(from, classes));
    register_module("net", net);
  }
  [[nodiscard]] std::pair<torch::Tensor, torch::Tensor> draw_batch() const override {
    const auto data = torch::randn({batch, 3, 224, 224});
    return {data, torch::randint(0, classes, {batch})};
  }
  [[nodiscard]] torch::Tensor forward(torch::Tensor data) override { return net->forward(data); }
  torch::nn::Sequential net;
};

// A decoder of 12 layers, 768 wide, with 12 heads, on 512 tokens of 50304 kinds: 163 million weights.
struct GpuGpt final : GpuNet {
  static constexpr std::int64_t batch = 8, tokens = 512, width = 768, heads = 12, layers = 12, kinds = 50304;
  GpuGpt() {
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
  }
  [[nodiscard]] std::pair<torch::Tensor, torch::Tensor> draw_batch() const override {
    const auto data = torch::randint(0, kinds, {batch, tokens});
    return {data, torch::randint(0, kinds, {batch, tokens})};
  }
  [[nodiscard]] torch::Tensor forward(torch::Tensor data) override {
    auto x = embedding->forward(data) + position;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const auto parts = linears[4 * layer]->forward(norms[2 * layer]->forward(x)).chunk(3, -1);
      std::vector<torch::Tensor> qkv;
      for (const auto& part : parts) {
        qkv.push_back(part.view({batch, tokens, heads, width / heads}).transpose(1, 2));
      }
      const auto mixed = attend(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape({batch, tokens, width});
      x = x + linears[4 * layer + 1]->forward(mixed);
      const auto up = torch::gelu(linears[4 * layer + 2]->forward(norms[2 * layer + 1]->forward(x)));
      x = x + linears[4 * layer + 3]->forward(up);
    }
    return head->forward(x).view({batch * tokens, kinds});
  }
  [[nodiscard]] static torch::Tensor attend(const torch::Tensor& query, const torch::Tensor& key,
                                            const torch::Tensor& value) {
#if TORCH_VERSION_MAJOR >= 2
    return at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true);
#else  // which has none
    const auto mask = torch::full({tokens, tokens}, -1e9, query.options()).triu(1);
    const double scale = 1.0 / std::sqrt(static_cast<double>(width / heads));
    return torch::matmul(torch::softmax(torch::matmul(query, key.transpose(-2, -1)) * scale + mask, -1), value);
#endif
  }
  torch::nn::Embedding embedding{nullptr};
  torch::Tensor position;
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> linears;
  torch::nn::Linear head{nullptr};
};

}  // namespace bench
