// SPDX-License-Identifier: MIT
#include "railyard/torch/autocast.hpp"
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <optional>
#include <stdexcept>
#include <thread>

using Catch::ContainsSubstring;

namespace casting {

namespace {

namespace ry = railyard;

at::ScalarType type_of_product() {
  const auto x = torch::ones({2, 2});
  return torch::matmul(x, x).scalar_type();
}

bool computes_in_f16_on_cpus() {
  try {
    const ry::Autocast autocast{torch::kCPU, {.dtype = torch::kHalf}};
    return true;
  } catch (const ry::ConfigError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("does not compute in Half on CPUs: use torch::kBFloat16"));
    return false;
  }
}

// Trains a small model, in a scope for each step or in one around all.
template <class MakeOptimizer>
torch::Tensor train(ry::Worker& worker, bool has_one_scope, const MakeOptimizer& make_optimizer) {
  auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(3, 2); });
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(0.5);
    net->bias.zero_();
  }
  auto optimizer = make_optimizer(net);
  std::optional<ry::Autocast> outer;
  if (has_one_scope) outer.emplace(worker);
  for (int step = 0; step < 4; ++step) {
    worker.samples(2);
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      std::optional<ry::Autocast> inner;
      if (!has_one_scope) inner.emplace(worker);
      const auto y = net->forward(torch::arange(6).to(torch::kFloat).view({2, 3}) * 0.1 + worker.rank());
      EXPECT(y.scalar_type() == torch::kBFloat16);
      loss = y.to(torch::kFloat).square().sum();
    }
    loss.backward();
    optimizer.step();
  }
  EXPECT(net->weight.scalar_type() == torch::kFloat);
  return torch::cat({net->weight.detach().flatten(), net->bias.detach()}).clone();
}

}  // namespace

TEST_CASE("Autocast: computes in bf16 inside a scope, in scopes within it as they say, and outside as before") {
  CHECK(type_of_product() == torch::kFloat);
  {
    const ry::Autocast autocast{torch::kCPU};
    CHECK(type_of_product() == torch::kBFloat16);
    {
      const ry::Autocast exact{torch::kCPU, {.enabled = false}};
      CHECK(type_of_product() == torch::kFloat);
      {
        const ry::Autocast again{torch::kCPU, {.dtype = torch::kBFloat16}};
        CHECK(type_of_product() == torch::kBFloat16);
      }
      CHECK(type_of_product() == torch::kFloat);
    }
    CHECK(type_of_product() == torch::kBFloat16);
    at::ScalarType elsewhere = torch::kBool;
    std::thread{[&elsewhere] { elsewhere = type_of_product(); }}.join();
    CHECK(elsewhere == torch::kFloat);
  }
  CHECK(type_of_product() == torch::kFloat);
}

TEST_CASE("Autocast: computes in f16 on CPUs where LibTorch does, and says what to do where it does not") {
  const auto before = ry::detail::AutocastSettings::of(at::DeviceType::CPU);
  const bool computes = computes_in_f16_on_cpus();
  CHECK(ry::detail::AutocastSettings::of(at::DeviceType::CPU).dtype == before.dtype);
  CHECK(type_of_product() == torch::kFloat);
  if (!computes) return;
  const ry::Autocast autocast{torch::kCPU, {.dtype = torch::kHalf}};
  CHECK(type_of_product() == torch::kHalf);
}

TEST_CASE("Autocast: an exception leaves everything as it was, in the scope and in its constructor") {
  const auto before = ry::detail::AutocastSettings::of(at::DeviceType::CPU);
  CHECK_THROWS_AS(
      [] {
        const ry::Autocast autocast{torch::kCPU};
        throw std::runtime_error{"as planned"};
      }(),
      std::runtime_error);
  CHECK_THROWS_WITH((ry::Autocast{torch::kCPU, {.dtype = torch::kDouble}}),
                    ContainsSubstring("dtype is Double: give torch::kBFloat16"));
  CHECK_THROWS_WITH((ry::Autocast{at::Device{at::kMeta}}), ContainsSubstring("CPUs and CUDA devices; meta was given"));
  CHECK(ry::detail::AutocastSettings::of(at::DeviceType::CPU).dtype == before.dtype);
  CHECK(type_of_product() == torch::kFloat);
  CHECK(at::autocast::increment_nesting() == 1);
  CHECK(at::autocast::decrement_nesting() == 0);
}

TEST_CASE("Autocast: of GPUs is set and put back without one") {
  {
    const ry::Autocast autocast{torch::kCUDA, {.dtype = torch::kHalf}};
    const auto inside = ry::detail::AutocastSettings::of(at::DeviceType::CUDA);
    CHECK(inside.is_enabled);
    CHECK(inside.dtype == torch::kHalf);
    CHECK(type_of_product() == torch::kFloat);
  }
  CHECK(!ry::detail::AutocastSettings::of(at::DeviceType::CUDA).is_enabled);
}

TEST_CASE("Autocast: a cast of a weight is forgotten when the outermost scope is left") {
  auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto product = [&weight] { return torch::matmul(torch::ones({2, 2}), weight)[0][0].item<double>(); };
  const auto set = [&weight](double value) {
    const torch::NoGradGuard no_grad;
    weight.fill_(value);
  };
  {
    const ry::Autocast autocast{torch::kCPU};
    CHECK(product() == 2);
    set(3);
    {
      const ry::Autocast inner{torch::kCPU};
      CHECK(product() == 2);  // as LibTorch's own scopes do it
    }
  }
  const ry::Autocast autocast{torch::kCPU};
  CHECK(product() == 6);
}

TEST_CASE("Autocast: one scope around the loop trains as one for each step does, weights in f32, ranks alike") {
  test::on_both_threads(2, [](auto& worker) {
    const auto plain = [](const auto& net) {
      return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
    };
    const auto prepared = [&worker](const auto& net) {
      return ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    };
    const auto expected = train(worker, false, plain);
    EXPECT(torch::equal(train(worker, true, plain), expected));
    EXPECT(torch::equal(train(worker, true, prepared), expected));
    EXPECT(torch::equal(train(worker, false, prepared), expected));
    const auto all = ry::all_gather(worker, expected);
    EXPECT(torch::equal(all[0], all[1]));
    EXPECT(!torch::allclose(expected.narrow(0, 0, 6), torch::full({6}, 0.5)));
  });
}

}  // namespace casting
