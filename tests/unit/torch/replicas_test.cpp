// SPDX-License-Identifier: MIT
#include "railyard/torch/replicas.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <limits>

using Catch::ContainsSubstring;

namespace replicas {

namespace ry = railyard;

// Subtracts the mean of all it has been trained on, which it keeps in a buffer or in a plain member.
struct Centred : torch::nn::Module {
  explicit Centred(bool registers) : mean(torch::zeros({3})) {
    if (registers) mean = register_buffer("mean", mean);
    linear = register_module("linear", torch::nn::Linear(3, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_training()) mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
    return linear(x - mean);
  }
  torch::Tensor mean;
  torch::nn::Linear linear{nullptr};
};

// What is said after one step on data that differs from rank to rank.
std::string after_a_step(ry::Worker& worker, bool registers, ry::BufferSync buffers) {
  auto net = ry::prepare_model(worker, [=] { return std::make_shared<Centred>(registers); }, {.buffers = buffers});
  const auto input = torch::ones({4, 3});
  EXPECT(ry::replica_difference(worker, net, input).empty());
  worker.samples(4);
  net->forward(input * (worker.rank() + 1)).sum().backward();
  net->linear->eval();
  auto text = ry::replica_difference(worker, net, input * (worker.rank() + 1));
  EXPECT(net->is_training() && !net->linear->is_training());
  return text;
}

TORCH_MODULE_IMPL(HeldCentred, Centred);

}  // namespace replicas

TEST_CASE("replica_difference: takes holders of modules") {
  using namespace replicas;
  test::on_threads(2, [](auto& worker) {
    const auto input = torch::ones({4, 3});
    const auto held = ry::prepare_model(worker, [] { return HeldCentred(true); });
    EXPECT(ry::replica_difference(worker, held, input).empty());
    const auto layers = ry::prepare_model(worker, [] { return torch::nn::Sequential(torch::nn::Linear(3, 2)); });
    EXPECT(ry::replica_difference(worker, layers, input).empty());
  });
}

TEST_CASE("FAULTS D34: statistics that a model keeps outside its buffers are found, and those inside are equal") {
  using namespace replicas;
  test::on_both_threads(3, [](auto& worker) {
    const auto outside = after_a_step(worker, false, ry::BufferSync::broadcast);
    EXPECT(outside.find("the output of rank 1 is off rank 0's by") == 0);
    EXPECT(outside.find("has not registered") != std::string::npos);
    EXPECT(after_a_step(worker, true, ry::BufferSync::broadcast).empty());
    const auto left = after_a_step(worker, true, ry::BufferSync::leave);
    EXPECT(left.find("the buffer mean Float[3] of rank 1 has other values") == 0);
  });
}

TEST_CASE("replica_difference: names a weight that was written to on one rank, in processes as well") {
  using namespace replicas;
  test::on_processes(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(3, 2); });
    EXPECT(ry::replica_difference(worker, net).empty());
    const torch::NoGradGuard no_grad;
    if (worker.rank() == 1) net->bias.add_(1e-6);
    EXPECT(ry::replica_difference(worker, net).find("the parameter bias Float[2] of rank 1 has other values") == 0);
  });
}

TEST_CASE("replica_difference: an output of another shape, and one that is not a number on one rank alone") {
  using namespace replicas;
  struct Odd : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) {
      if (kind == 1) return x.narrow(0, 0, 1);
      return kind == 2 ? x * std::numeric_limits<double>::quiet_NaN() : x;
    }
    int kind = 0;
  };
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Odd>(); });
    const auto say = [&](int kind) {
      net->kind = worker.rank() == 1 ? kind : 0;
      return ry::replica_difference(worker, net, torch::ones({2}));
    };
    EXPECT(say(0).empty());
    EXPECT(say(1).find("rank 1 computes Float[1] and rank 0 Float[2]") == 0);
    EXPECT(say(2).find("the output of rank 1 is off rank 0's by nan") == 0);
  });
}

TEST_CASE("prepare_model: weights that were written to on some ranks before the first step are noticed (FAULTS D)") {
  using namespace replicas;
  const auto train = [](ry::Worker& worker, torch::nn::Linear& net) {
    worker.samples(1);
    net->forward(torch::ones({1, 3})).sum().backward();
  };
  const auto make = [] { return torch::nn::Linear(3, 2); };
  const auto check = [](const std::string& error) {
    CHECK_THAT(error, ContainsSubstring("has other weights than rank 0") &&
                          ContainsSubstring("initialise and load weights in the factory or before prepare_model()"));
  };
  // At random, as examples initialise weights; workers draw different numbers.
  check(test::error_of(2, [=](auto& worker) {
    auto net = ry::prepare_model(worker, make);
    torch::nn::init::normal_(net->weight, 0, 0.02);
    train(worker, net);
  }));
  // On one rank alone, also where a model has been trained before.
  check(test::error_of(3, [=](auto& worker) {
    auto first = ry::prepare_model(worker, make);
    train(worker, first);
    auto second = ry::prepare_model(worker, make);
    if (worker.rank() == 2) torch::nn::init::zeros_(second->bias);
    train(worker, first);
  }));
  // Alike on all ranks is nobody's business.
  test::on_both_threads(2, [=](auto& worker) {
    auto net = ry::prepare_model(worker, make);
    torch::nn::init::constant_(net->bias, 0.5);
    for (int step = 0; step < 3; ++step) train(worker, net);
  });
}
