// SPDX-License-Identifier: MIT
#include "railyard/torch/detail/listed_update.hpp"

#include "support/catch.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace listed {

namespace {

namespace detail = railyard::detail;
namespace optim = torch::optim;

constexpr int num_steps = 6;

torch::Tensor numbers(std::vector<std::int64_t> shape, double phase, torch::Dtype dtype) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return (torch::arange(count).to(torch::kDouble) * 1.7 + phase).sin().view(shape).to(dtype);
}

std::vector<torch::Tensor> weights_to_update() {
  std::vector<torch::Tensor> weights;
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    weights.push_back(numbers({5, 7}, 0.3, dtype).set_requires_grad(true));
    weights.push_back(numbers({3, 4, 2}, 0.8, dtype).transpose(0, 2).set_requires_grad(true));
    weights.push_back(numbers({1}, 2, dtype).set_requires_grad(true));
  }
  return weights;
}

// What the tensors get in a step; the first has nothing in the first two, and so is behind the others.
torch::Tensor gradient_of(std::size_t tensor, int step, const torch::Tensor& weights) {
  if (tensor == 0 && step < 2) return {};
  return torch::empty_like(weights.detach())
      .copy_(numbers(weights.sizes().vec(), static_cast<double>(step) + 0.1, weights.scalar_type()));
}

template <class X, class Options>
std::vector<torch::Tensor> updated_alone(const Options& options) {
  auto weights = weights_to_update();
  X optimizer(weights, options);
  for (int step = 0; step < num_steps; ++step) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = gradient_of(i, step, weights[i]);
    optimizer.step();
  }
  return weights;
}

template <class X, class Options>
std::vector<torch::Tensor> updated_listed(const Options& options, bool may_fuse) {
  const torch::NoGradGuard no_grad;
  auto weights = weights_to_update();
  X optimizer(weights, options);
  for (int step = 0; step < num_steps; ++step) {
    std::vector<detail::UpdatedTensor> tensors;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto gradient = gradient_of(i, step, weights[i]);
      if (gradient.defined()) tensors.push_back({.weights = weights[i], .gradient = gradient});
    }
    detail::update_listed(optimizer, optimizer.param_groups()[0].options(), tensors, may_fuse);
  }
  return weights;
}

template <class X, class Options>
void compare(const Options& options) {
  const auto expected = updated_alone<X>(options);
  const auto listed = updated_listed<X>(options, false);
  const auto fused = updated_listed<X>(options, true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(detail::OptimizerFields<X>::name << ", tensor " << i);
    CHECK_FALSE(expected[i].equal(weights_to_update()[i]));
    CHECK(listed[i].equal(expected[i]));
    const bool is_double = expected[i].scalar_type() == torch::kDouble;
    CHECK(torch::allclose(fused[i], expected[i], is_double ? 1e-12 : 1e-5, is_double ? 1e-14 : 1e-6));
  }
}

}  // namespace

TEST_CASE("listed updates: to the bit what LibTorch's optimizers make of each tensor, and fused to within rounding") {
  compare<optim::SGD>(optim::SGDOptions(0.1));
  compare<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).dampening(0.3));
  compare<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  compare<optim::Adam>(optim::AdamOptions(0.02));
  compare<optim::Adam>(optim::AdamOptions(0.02).weight_decay(0.01).amsgrad(true));
  compare<optim::AdamW>(optim::AdamWOptions(0.02).weight_decay(0.1));
  compare<optim::AdamW>(optim::AdamWOptions(0.02).amsgrad(true));
  compare<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.01));
  compare<optim::Adagrad>(optim::AdagradOptions(0.05).initial_accumulator_value(0.5));
  compare<optim::RMSprop>(optim::RMSpropOptions(0.01));
  compare<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).weight_decay(0.01));
  compare<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
TEST_CASE("listed updates: the fused kernels of this LibTorch are found") {
  for (const char* name : {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"}) {
    INFO(name);
    CHECK(detail::has_kernel(name, torch::ones({1})));
  }
  CHECK_FALSE(detail::has_kernel("aten::_fused_nothing_", torch::ones({1})));
}
#endif

TEST_CASE("listed updates: an optimizer that keeps nothing of a tensor is left without") {
  const torch::NoGradGuard no_grad;
  const auto weights = weights_to_update();
  optim::SGD optimizer(weights, optim::SGDOptions(0.1));
  detail::update_listed(optimizer, optimizer.param_groups()[0].options(),
                        {{.weights = weights[0], .gradient = torch::ones_like(weights[0])}});
  CHECK(optimizer.state().empty());
}

}  // namespace listed
