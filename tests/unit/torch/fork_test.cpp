// SPDX-License-Identifier: MIT
// Forked workers of a program that has used LibTorch before: its pools of threads are dead in every child.
// REQUIRE only: glog, which LibTorch includes, has a CHECK of its own.
#include "railyard/workers/processes.hpp"

#include "support/catch.hpp"

#include <ATen/core/ivalue.h>  // clang 14 needs it before torch.h
#include <torch/torch.h>

#include <string>

namespace ry = railyard;

namespace {

// Parallel kernels, OpenBLAS and a backward pass, large enough for all of them to use their pools.
double train_a_little() {
  torch::manual_seed(3);
  torch::nn::Sequential net{torch::nn::Linear(512, 512), torch::nn::ReLU(), torch::nn::Linear(512, 1)};
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions{1e-3}};
  const auto data = torch::randn({2048, 512});
  double last = 0;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    auto loss = net->forward(data).pow(2).mean();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
  }
  return last;
}

}  // namespace

TEST_CASE("Processes: train after the parent has used LibTorch, OpenMP and autograd (C1, C2)") {
  at::set_num_threads(2);
  const double expected = train_a_little();
  for (int round = 0; round < 2; ++round) {
    auto group = ry::Processes{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
      const std::string text = std::to_string(train_a_little());
      link.post(std::as_bytes(std::span{text}));
    });
    const auto deadline = ry::Deadline::after(std::chrono::seconds{60});
    int returned = 0;
    while (const auto event = group->next(deadline)) {
      if (const auto* exit = std::get_if<ry::ExitEvent>(&*event)) {
        REQUIRE(exit->exit.message.empty());
        returned += exit->exit.kind == ry::WorkerExit::Kind::returned;
      } else if (const auto* message = std::get_if<ry::MessageEvent>(&*event)) {
        const std::string text{reinterpret_cast<const char*>(message->bytes.data()), message->bytes.size()};
        REQUIRE(std::stod(text) == Approx(expected).epsilon(1e-4));
      }
    }
    REQUIRE(returned == 2);
  }
  REQUIRE(train_a_little() == Approx(expected).epsilon(1e-4));
}
