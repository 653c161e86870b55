// SPDX-License-Identifier: MIT
// Gradients of every kind under a prepared optimizer, which must train as LibTorch's own does alone on all samples; and
// that nobody sees weights while they are updated.
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "autograd_functions.hpp"
#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ry = railyard;

namespace prepared_gradients {  // suites are compiled as one source as well

namespace {

namespace optim = torch::optim;

torch::Tensor filled(std::vector<std::int64_t> shape, double phase) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return (torch::arange(count).to(torch::kDouble) * 1.3 + phase).sin().view(shape);
}

struct Kinds : torch::nn::Module {
  explicit Kinds(bool is_sparse) {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(is_sparse)));
    filter = register_parameter("filter", filled({3, 2, 3, 3}, 0.1).contiguous(torch::MemoryFormat::ChannelsLast));
    turned = register_parameter("turned", filled({5, 4}, 0.2).t());
    wave = register_parameter("wave", torch::complex(filled({3}, 0.3), filled({3}, 0.4)));
    rare = register_parameter("rare", filled({7}, 0.5));
    forgotten = register_parameter("forgotten", filled({4}, 0.6));
    square = register_parameter("square", filled({4, 4}, 0.7));
    frozen = register_parameter("frozen", filled({2}, 0.8), false);
    table->to(torch::kDouble);
    table->weight.detach().copy_(filled({6, 4}, 0.9));
  }
  torch::Tensor loss(int step) {
    const auto rows = table(torch::tensor({step % 6, (step + 2) % 6}));
    auto sum = rows.square().sum() + (turned * filled({4, 5}, step)).sum() + frozen.sum();
    sum = sum + torch::conv2d(filled({1, 2, 5, 5}, step), filter).square().sum();
    sum = sum + torch::real(wave * wave).sum() + test::Forget::apply(forgotten).sum();
    sum = sum + test::Again::apply(rows, square).sum() + (square * rows[0]).sum();
    if (step % 3 == 1) sum = sum + (rare * rare).sum();
    // A penalty on how steep something is.
    const auto x = filled({4}, step).set_requires_grad(true);
    const auto slope = torch::autograd::grad({(torch::matmul(x.square(), square)).sum()}, {x}, {}, true, true)[0];
    return sum + slope.square().sum();
  }
  torch::nn::Embedding table{nullptr};
  torch::Tensor filter{}, turned{}, wave{}, rare{}, forgotten{}, square{}, frozen{};
};

std::vector<torch::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const auto& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

// Two passes in each step. LibTorch's own zero_grad() may fill gradients with zeros, which would move what is unused.
template <class Optimizer, class Begin>
std::vector<torch::Tensor> train(Kinds& net, Optimizer& optimizer, double factor, const Begin& begin_step) {
  for (int step = 0; step < 7; ++step) {
    for (auto& parameter : net.parameters()) parameter.mutable_grad().reset();
    optimizer.zero_grad();
    begin_step();
    (net.loss(step) * factor).backward();
    (net.loss(step + 1) * factor * 0.5).backward();
    optimizer.step();
  }
  return values_of(net);
}

template <class X, class Options>
void compare_kinds(const Options& options) {
  Kinds lone{false};
  X lone_optimizer(lone.parameters(), options);
  const auto before = values_of(lone);
  const auto expected = train(lone, lone_optimizer, 2, [] {});
  const auto body = [&](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Kinds>(true); });
    auto optimizer = ry::prepare_optimizer<X>(worker, net, options);
    const auto together = train(*net, optimizer, worker.rank() == 0 ? 1 : 3, [&worker] { worker.samples(1); });
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::string name = net->named_parameters()[i].key();
      const double far = (together[i] - expected[i]).abs().max().template item<double>();
      test::expect(far < 1e-10, fmt::format("\"{}\" as alone, and not {} away", name, far));
      const bool may_move = name != "frozen" && name != "forgotten";
      test::expect(torch::equal(expected[i], before[i]) != may_move, fmt::format("whether \"{}\" moves", name));
    }
  };
  test::on_both_threads(2, body);
  test::on_processes(2, body);
}

}  // namespace

TEST_CASE("prepare_optimizer: gradients of every kind train as they do alone (TRAPS 4, 10)") {
  compare_kinds<optim::SGD>(optim::SGDOptions(0.003).momentum(0.5));
  compare_kinds<optim::Adam>(optim::AdamOptions(0.01));
}

namespace {

// Alternates, as a generator and its critic do.
template <class First, class Second, class Begin>
torch::Tensor train_in_turns(Kinds& one, Kinds& other, First& first, Second& second, double factor,
                             const Begin& begin_step) {
  for (int step = 0; step < 6; ++step) {
    begin_step();
    first.zero_grad();
    (one.loss(step) * factor).backward();
    ((one.square * other.square.detach()).sum() * factor).backward();
    first.step();
    second.zero_grad();
    ((torch::matmul(one.square, other.square).square().sum() + other.rare.square().sum()) * factor).backward();
    second.step();
  }
  return torch::cat({one.square.detach(), other.square.detach()});
}

}  // namespace

TEST_CASE("prepare_optimizer: two models with an optimizer each train in turns as they do alone (TRAPS 4)") {
  const optim::SGDOptions options(0.002);
  Kinds lone_one{false};
  Kinds lone_other{false};
  optim::SGD lone_first(lone_one.parameters(), options);
  optim::SGD lone_second(lone_other.parameters(), options);
  const auto expected = train_in_turns(lone_one, lone_other, lone_first, lone_second, 2, [] {});
  const auto body = [&](ry::Worker& worker) {
    auto one = ry::prepare_model(worker, [] { return std::make_shared<Kinds>(false); });
    auto other = ry::prepare_model(worker, [] { return std::make_shared<Kinds>(false); });
    auto first = ry::prepare_optimizer<optim::SGD>(worker, one, options);
    auto second = ry::prepare_optimizer<optim::SGD>(worker, other, options);
    const auto together =
        train_in_turns(*one, *other, first, second, worker.rank() == 0 ? 1 : 3, [&worker] { worker.samples(1); });
    EXPECT(torch::allclose(together, expected, 0, 1e-10));
  };
  test::on_both_threads(2, body);
  test::on_processes(2, body);
}

TEST_CASE("prepare_optimizer: nobody sees weights that are half updated, whoever is late") {
  constexpr std::int64_t count = 600'000;
  const auto body = [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] {
      auto module = std::make_shared<torch::nn::Module>();
      module->register_parameter("w", torch::zeros({count}));
      return module;
    });
    const auto weight = net->parameters()[0];
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(1.0));
    EXPECT(optimizer.is_sharded());
    const auto are_all = [&weight](int value) { return weight.detach().eq(value).all().template item<bool>(); };
    for (int step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      worker.samples(1);
      weight.sum().neg().backward();
      if (worker.rank() == step % worker.world_size()) test::compute_for(std::chrono::milliseconds{2});
      EXPECT(are_all(step));  // others are about to update, and have been for long where this rank is late
      optimizer.step();
      EXPECT(are_all(step + 1));
    }
  };
  test::on_threads(3, body);
  test::on_processes(3, body);
}

}  // namespace prepared_gradients
