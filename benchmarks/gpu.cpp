// SPDX-License-Identifier: MIT
// What a training step of one worker costs on a GPU by Nccl beside the bare loop of LibTorch, in turns. Prints `name
// value unit`, medians of the rounds; the microseconds themselves go to standard error. Without a GPU it says so and
// exits 77.
#include "median.hpp"

#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

constexpr int num_rounds = 7;

struct Case {
  std::string name;
  std::function<torch::nn::Sequential()> build;
  std::vector<std::int64_t> shape;  // of a batch
  std::int64_t num_classes = 0;
  int num_steps = 0;  // of a round
};

torch::nn::Sequential mlp(std::int64_t from, std::int64_t width, std::int64_t to) {
  using torch::nn::Linear;
  using torch::nn::ReLU;
  return torch::nn::Sequential(Linear(from, width), ReLU(), Linear(width, width), ReLU(), Linear(width, to));
}

torch::nn::Sequential cnn() {
  torch::nn::Sequential net;
  std::int64_t channels = 3;
  for (const std::int64_t next : {64, 128, 256, 512}) {
    net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, next, 3).padding(1).stride(2).bias(false)));
    net->push_back(torch::nn::BatchNorm2d(next));
    net->push_back(torch::nn::ReLU());
    channels = next;
  }
  net->push_back(torch::nn::AdaptiveAvgPool2d(1));
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(channels, 1000));
  return net;
}

double seconds_of(const std::function<void()>& steps) {
  const auto begin = std::chrono::steady_clock::now();
  steps();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Steps of a net on batches that are there already, and at their end a wait for the device.
template <class Before>
void run(const Case& one, torch::nn::Sequential& net, torch::optim::Optimizer& optimizer, const torch::Tensor& data,
         const torch::Tensor& target, const Before& before) {
  torch::Tensor loss;
  for (int step = 0; step < one.num_steps; ++step) {
    before();
    optimizer.zero_grad();
    loss = torch::cross_entropy_loss(net->forward(data), target);
    loss.backward();
    optimizer.step();
  }
  static_cast<void>(loss.item<float>());
}

void measure(ry::Worker& worker, const Case& one) {
  const auto gpu = ry::device(worker);
  const auto build = [&] {
    auto net = one.build();
    net->to(gpu);
    return net;
  };
  auto bare = build();
  auto ours = ry::prepare_model(worker, build);
  torch::optim::SGD bare_optimizer(bare->parameters(), 0.01);
  torch::optim::SGD optimizer(ours->parameters(), 0.01);
  const auto data = torch::randn(one.shape, gpu);
  const auto target =
      torch::randint(0, one.num_classes, {one.shape.front()}, torch::TensorOptions(gpu).dtype(torch::kLong));
  std::vector<double> lone;
  std::vector<double> full;
  std::vector<double> ratios;
  for (int round = -1; round < num_rounds; ++round) {
    const double theirs = seconds_of([&] { run(one, bare, bare_optimizer, data, target, [] {}); });
    const double mine = seconds_of([&] {
      run(one, ours, optimizer, data, target, [&] { worker.samples(static_cast<std::uint64_t>(one.shape.front())); });
    });
    if (round < 0) continue;  // warms up
    lone.push_back(theirs / one.num_steps);
    full.push_back(mine / one.num_steps);
    ratios.push_back(mine / theirs);
  }
  const std::string name = fmt::format("gpu.step.{}.ours_over_lone", one.name);
  fmt::print(stderr, "{}: lone {:.1f} us, ours {:.1f} us\n", name, 1e6 * bench::median(lone),
             1e6 * bench::median(full));
  worker.report({{name, bench::median(ratios)}});
}

}  // namespace

int main() {
  const std::vector<Case> cases{
      {"mlp_26k", [] { return mlp(64, 128, 10); }, {64, 64}, 10, 200},
      {"mlp_19m", [] { return mlp(1024, 4096, 1000); }, {256, 1024}, 1000, 50},
      {"cnn", [] { return cnn(); }, {32, 3, 224, 224}, 1000, 20},
  };
  try {
    for (const Case& one : cases) {
      ry::RunConfig config;
      config.progress = ry::Progress::quiet;
      ry::Trainer<ry::Nccl, ry::Processes> trainer{
          [&one](ry::Worker& worker) { measure(worker, one); }, {.num_workers = 1, .use_gpu = true}, config};
      const ry::Result result = trainer.fit();
      for (const auto& [name, value] : result.value_or_throw().metrics()) {
        fmt::print("{} {:.3f} ratio\n", name, value.number());
      }
    }
  } catch (const ry::ConfigError& error) {
    fmt::print(stderr, "benchmarks/gpu: skipped: {}\n", error.what());
    return 77;
  }
  return 0;
}
