// SPDX-License-Identifier: MIT
// The updates of LibTorch's optimizers for many tensors at once: a GPU needs a kernel for all, not some for each. Torch
// room.
#pragma once

#include "railyard/torch/detail/optimizer_fields.hpp"
#include "railyard/torch/detail/optimizer_state.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

#if __has_include(<ATen/ops/_fused_adam.h>)
#include <ATen/ops/_fused_adam.h>
#endif
#if __has_include(<ATen/ops/_fused_adamw.h>)
#include <ATen/ops/_fused_adamw.h>
#endif
#if __has_include(<ATen/ops/_fused_sgd.h>)
#include <ATen/ops/_fused_sgd.h>
#endif
#if __has_include(<ATen/ops/_fused_adagrad.h>)
#include <ATen/ops/_fused_adagrad.h>
#endif

#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

using Tensors = std::vector<at::Tensor>;

// A tensor that an optimizer updates, and the gradient for it, which lies in memory as it does.
struct UpdatedTensor {
  at::Tensor weights{};
  at::Tensor gradient{};
};

// Such of one type, device and group, which are equally far.
template <class ParamState>
struct UpdateList {
  std::int64_t stage = 0;
  Tensors weights{};
  Tensors gradients{};
  std::vector<ParamState*> states{};

  [[nodiscard]] bool fits(const at::Tensor& tensor, std::int64_t its_stage) const {
    const at::Tensor& first = weights.front();
    return stage == its_stage && first.scalar_type() == tensor.scalar_type() && first.device() == tensor.device();
  }
  // One field of all states.
  template <class Field>
  [[nodiscard]] Tensors fields(const Field& field) const {
    Tensors all;
    all.reserve(states.size());
    for (ParamState* state : states) all.push_back(field(*state));
    return all;
  }
  // The number of the step as fused kernels take it, one for each tensor.
  [[nodiscard]] Tensors steps() const {
    const auto options = at::TensorOptions{}.dtype(at::ScalarType::Float).device(weights.front().device());
    return Tensors(weights.size(), at::full(at::IntArrayRef{}, static_cast<double>(stage), options));
  }
};

// Whether this LibTorch has an operation of its own for tensors of such a device.
[[nodiscard]] inline bool has_kernel(const char* name, const at::Tensor& like) {
  const auto operation = c10::Dispatcher::singleton().findSchema({name, ""});
  return operation &&
         operation->hasKernelForDispatchKey(like.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

// For each optimizer: keeps_state() says whether it has any; begin() makes what is missing of a tensor's, counts the
// step and returns the stage, by which tensors are updated apart; fused() updates a list by one kernel, and returns
// false where this LibTorch has none; by_lists() does it by the operations of X::step(), in their order, so that the
// bits are those of LibTorch.
template <class X>
struct UpdateRule {};

template <>
struct UpdateRule<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using List = UpdateList<torch::optim::SGDParamState>;

  [[nodiscard]] static bool keeps_state(const Options& options) { return options.momentum() != 0; }
  static std::int64_t begin(torch::optim::SGDParamState& state, const at::Tensor& /*weights*/, const Options& options) {
    return options.momentum() != 0 && !state.momentum_buffer().defined() ? 1 : 0;
  }

  [[nodiscard]] static bool fused([[maybe_unused]] const List& list, [[maybe_unused]] const Options& o) {
#if __has_include(<ATen/ops/_fused_sgd.h>)
    if (!has_kernel("aten::_fused_sgd_", list.weights.front())) return false;
    if (list.stage == 1) make_buffers(list, [](const at::Tensor& gradient) { return at::empty_like(gradient); });
    at::_fused_sgd_(list.weights, list.gradients, o.momentum() == 0 ? Tensors{} : buffers(list), o.weight_decay(),
                    o.momentum(), o.lr(), o.dampening(), o.nesterov(), /*maximize=*/false, list.stage == 1);
    return true;
#else
    return false;
#endif
  }

  static void by_lists(const List& list, const Options& o) {
    Tensors gradients = list.gradients;
    if (o.weight_decay() != 0) gradients = at::_foreach_add(gradients, list.weights, o.weight_decay());
    if (o.momentum() != 0) {
      if (list.stage == 1) {
        List decayed = list;
        decayed.gradients = gradients;
        make_buffers(decayed, [](const at::Tensor& gradient) { return gradient.clone(); });
      } else {
        at::_foreach_mul_(buffers(list), o.momentum());
        at::_foreach_add_(buffers(list), gradients, 1 - o.dampening());
      }
      gradients = o.nesterov() ? at::_foreach_add(gradients, buffers(list), o.momentum()) : buffers(list);
    }
    at::_foreach_add_(list.weights, gradients, -o.lr());
  }

 private:
  [[nodiscard]] static Tensors buffers(const List& list) {
    return list.fields([](auto& state) { return state.momentum_buffer(); });
  }
  template <class Make>
  static void make_buffers(const List& list, const Make& make) {
    for (std::size_t at = 0; at < list.states.size(); ++at) {
      list.states[at]->momentum_buffer(make(list.gradients[at].detach()));
    }
  }
};

// Adam, and AdamW, which takes its decay from the weights themselves.
template <class X>
struct AdamRule {
  using Options = typename OptimizerFields<X>::Options;
  using ParamState = typename OptimizerFields<X>::ParamState;
  using List = UpdateList<ParamState>;
  static constexpr bool decays_weights = std::is_same_v<X, torch::optim::AdamW>;

  [[nodiscard]] static bool keeps_state(const Options& /*options*/) { return true; }
  static std::int64_t begin(ParamState& state, const at::Tensor& weights, const Options& options) {
    if (!state.exp_avg().defined()) state.exp_avg(at::zeros_like(weights));
    if (!state.exp_avg_sq().defined()) state.exp_avg_sq(at::zeros_like(weights));
    if (options.amsgrad() && !state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(at::zeros_like(weights));
    state.step(state.step() + 1);
    return state.step();
  }

  [[nodiscard]] static bool fused([[maybe_unused]] const List& list, [[maybe_unused]] const Options& o) {
    [[maybe_unused]] const auto [beta1, beta2] = o.betas();
    [[maybe_unused]] const Tensors maxima = o.amsgrad() ? maxima_of(list) : Tensors{};
    if constexpr (decays_weights) {
#if __has_include(<ATen/ops/_fused_adamw.h>)
      if (!has_kernel("aten::_fused_adamw_", list.weights.front())) return false;
      at::_fused_adamw_(list.weights, list.gradients, averages(list), squares(list), maxima, list.steps(), o.lr(),
                        beta1, beta2, o.weight_decay(), o.eps(), o.amsgrad(), /*maximize=*/false);
      return true;
#endif
    } else {
#if __has_include(<ATen/ops/_fused_adam.h>)
      if (!has_kernel("aten::_fused_adam_", list.weights.front())) return false;
      at::_fused_adam_(list.weights, list.gradients, averages(list), squares(list), maxima, list.steps(), o.lr(), beta1,
                       beta2, o.weight_decay(), o.eps(), o.amsgrad(), /*maximize=*/false);
      return true;
#endif
    }
    return false;
  }

  static void by_lists(const List& list, const Options& o) {
    const auto [beta1, beta2] = o.betas();
    const double correction1 = 1 - std::pow(beta1, static_cast<double>(list.stage));
    const double correction2 = 1 - std::pow(beta2, static_cast<double>(list.stage));
    Tensors gradients = list.gradients;
    if (o.weight_decay() != 0 && decays_weights) at::_foreach_mul_(list.weights, 1 - o.lr() * o.weight_decay());
    if (o.weight_decay() != 0 && !decays_weights) {
      gradients = at::_foreach_add(gradients, list.weights, o.weight_decay());
    }
    at::_foreach_mul_(averages(list), beta1);
    at::_foreach_add_(averages(list), gradients, 1 - beta1);
    at::_foreach_mul_(squares(list), beta2);
    at::_foreach_addcmul_(squares(list), gradients, gradients, 1 - beta2);
    if (o.amsgrad()) at::_foreach_maximum_(maxima_of(list), squares(list));
    const Tensors divisors = at::_foreach_sqrt(o.amsgrad() ? maxima_of(list) : squares(list));
    at::_foreach_div_(divisors, std::sqrt(correction2));
    at::_foreach_add_(divisors, o.eps());
    at::_foreach_addcdiv_(list.weights, averages(list), divisors, -(o.lr() / correction1));
  }

 private:
  [[nodiscard]] static Tensors averages(const List& list) {
    return list.fields([](auto& state) { return state.exp_avg(); });
  }
  [[nodiscard]] static Tensors squares(const List& list) {
    return list.fields([](auto& state) { return state.exp_avg_sq(); });
  }
  [[nodiscard]] static Tensors maxima_of(const List& list) {
    return list.fields([](auto& state) { return state.max_exp_avg_sq(); });
  }
};
template <>
struct UpdateRule<torch::optim::Adam> : AdamRule<torch::optim::Adam> {};
template <>
struct UpdateRule<torch::optim::AdamW> : AdamRule<torch::optim::AdamW> {};

template <>
struct UpdateRule<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using List = UpdateList<torch::optim::AdagradParamState>;

  [[nodiscard]] static bool keeps_state(const Options& /*options*/) { return true; }
  static std::int64_t begin(torch::optim::AdagradParamState& state, const at::Tensor& weights, const Options& options) {
    if (!state.sum().defined()) state.sum(at::full_like(weights, options.initial_accumulator_value()));
    state.step(state.step() + 1);
    return state.step();
  }

  [[nodiscard]] static bool fused([[maybe_unused]] const List& list, [[maybe_unused]] const Options& o) {
#if __has_include(<ATen/ops/_fused_adagrad.h>)
    if (!has_kernel("aten::_fused_adagrad_", list.weights.front())) return false;
    at::_fused_adagrad_(list.weights, list.gradients, sums(list), list.steps(), o.lr(), o.lr_decay(), o.weight_decay(),
                        o.eps(), /*maximize=*/false);
    return true;
#else
    return false;
#endif
  }

  static void by_lists(const List& list, const Options& o) {
    Tensors gradients = list.gradients;
    if (o.weight_decay() != 0) gradients = at::_foreach_add(gradients, list.weights, o.weight_decay());
    at::_foreach_addcmul_(sums(list), gradients, gradients, 1.0);
    const Tensors divisors = at::_foreach_sqrt(sums(list));
    at::_foreach_add_(divisors, o.eps());
    const double rate = o.lr() / (1 + static_cast<double>(list.stage - 1) * o.lr_decay());
    at::_foreach_addcdiv_(list.weights, gradients, divisors, -rate);
  }

 private:
  [[nodiscard]] static Tensors sums(const List& list) {
    return list.fields([](auto& state) { return state.sum(); });
  }
};

// LibTorch has no fused kernel for it.
template <>
struct UpdateRule<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using List = UpdateList<torch::optim::RMSpropParamState>;

  [[nodiscard]] static bool keeps_state(const Options& /*options*/) { return true; }
  static std::int64_t begin(torch::optim::RMSpropParamState& state, const at::Tensor& weights, const Options& options) {
    if (!state.square_avg().defined()) state.square_avg(at::zeros_like(weights));
    if (options.momentum() > 0 && !state.momentum_buffer().defined()) state.momentum_buffer(at::zeros_like(weights));
    if (options.centered() && !state.grad_avg().defined()) state.grad_avg(at::zeros_like(weights));
    state.step(state.step() + 1);
    return 0;
  }

  [[nodiscard]] static bool fused(const List& /*list*/, const Options& /*options*/) { return false; }

  static void by_lists(const List& list, const Options& o) {
    Tensors gradients = list.gradients;
    if (o.weight_decay() != 0) gradients = at::_foreach_add(gradients, list.weights, o.weight_decay());
    const Tensors squares = list.fields([](auto& state) { return state.square_avg(); });
    at::_foreach_mul_(squares, o.alpha());
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - o.alpha());
    Tensors divisors;
    if (o.centered()) {
      const Tensors averages = list.fields([](auto& state) { return state.grad_avg(); });
      at::_foreach_mul_(averages, o.alpha());
      at::_foreach_add_(averages, gradients, 1 - o.alpha());
      divisors = at::_foreach_addcmul(squares, averages, averages, -1.0);
      at::_foreach_sqrt_(divisors);
    } else {
      divisors = at::_foreach_sqrt(squares);
    }
    at::_foreach_add_(divisors, o.eps());
    if (o.momentum() > 0) {
      const Tensors buffers = list.fields([](auto& state) { return state.momentum_buffer(); });
      at::_foreach_mul_(buffers, o.momentum());
      at::_foreach_addcdiv_(buffers, gradients, divisors);
      at::_foreach_add_(list.weights, buffers, -o.lr());
    } else {
      at::_foreach_addcdiv_(list.weights, gradients, divisors, -o.lr());
    }
  }
};

// Makes one update of some tensors of an optimizer, as its own step() would. may_fuse: by kernels that do all of it at
// once, where LibTorch has them, and then to within rounding.
template <ElementwiseOptimizer X>
void update_listed(X& optimizer, const torch::optim::OptimizerOptions& any_options,
                   const std::vector<UpdatedTensor>& tensors, bool may_fuse = true) {
  using Rule = UpdateRule<X>;
  using ParamState = typename OptimizerFields<X>::ParamState;
  const auto& options = static_cast<const typename Rule::Options&>(any_options);
  std::vector<typename Rule::List> lists;
  auto& map = optimizer.state();
  ParamState none;
  const auto state_of = [&](const at::Tensor& weights) -> ParamState& {
    if (!Rule::keeps_state(options)) return none;
    auto& entry = map[state_key<std::decay_t<decltype(map)>>(weights)];
    if (!entry) entry = std::make_unique<ParamState>();
    return static_cast<ParamState&>(*entry);
  };
  for (const UpdatedTensor& one : tensors) {
    ParamState& state = state_of(one.weights);
    const std::int64_t stage = Rule::begin(state, one.weights, options);
    auto fitting = lists.begin();
    while (fitting != lists.end() && !fitting->fits(one.weights, stage)) ++fitting;
    if (fitting == lists.end()) fitting = lists.insert(lists.end(), typename Rule::List{.stage = stage});
    fitting->weights.push_back(one.weights);
    fitting->gradients.push_back(one.gradient);
    fitting->states.push_back(&state);
  }
  for (const auto& list : lists) {
    if (!may_fuse || !Rule::fused(list, options)) Rule::by_lists(list, options);
  }
}

}  // namespace detail

}  // namespace railyard::inline v0_1
