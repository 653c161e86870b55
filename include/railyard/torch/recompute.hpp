// SPDX-License-Identifier: MIT
// Trades time for memory: activations that are computed anew instead of being kept. Torch room.
#pragma once

#include "railyard/torch/detail/recompute_function.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/state.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// How what a function returns is seen as a list of tensors.
template <class T>
struct ListOfTensors {};
template <>
struct ListOfTensors<at::Tensor> {
  static std::vector<at::Tensor> from(at::Tensor result) { return {std::move(result)}; }
  static at::Tensor to(const std::vector<at::Tensor>& list) { return list.front(); }
};
template <>
struct ListOfTensors<std::vector<at::Tensor>> {
  static std::vector<at::Tensor> from(std::vector<at::Tensor> result) { return result; }
  static std::vector<at::Tensor> to(std::vector<at::Tensor> list) { return list; }
};
template <std::same_as<at::Tensor>... T>
struct ListOfTensors<std::tuple<T...>> {
  static std::vector<at::Tensor> from(const std::tuple<T...>& result) {
    return std::apply([](const auto&... one) { return std::vector<at::Tensor>{one...}; }, result);
  }
  static std::tuple<T...> to(const std::vector<at::Tensor>& list) {
    return [&list]<std::size_t... i>(std::index_sequence<i...>) { return std::tuple<T...>{list[i]...}; }
    (std::index_sequence_for<T...>{});
  }
};

// Calls a function, or the forward() of a model.
template <class F, class... Inputs>
[[nodiscard]] decltype(auto) compute(F& function, Inputs&&... inputs) {
  using Plain = std::remove_const_t<F>;
  if constexpr (IsModel<Plain>) {
    static_cast<void>(module_in(function));  // refuses an empty one
    if constexpr (IsModuleHolder<Plain>) {
      return function.ptr()->forward(std::forward<Inputs>(inputs)...);
    } else {
      return function->forward(std::forward<Inputs>(inputs)...);
    }
  } else {
    return std::invoke(function, std::forward<Inputs>(inputs)...);
  }
}

template <class F>
[[nodiscard]] std::shared_ptr<const torch::nn::Module> owner_of(const F& function) {
  if constexpr (IsModuleHolder<F>) {
    return function.ptr();
  } else if constexpr (IsModel<F>) {
    return function;
  } else {
    return nullptr;
  }
}

[[nodiscard]] inline bool needs_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

// Whether nothing that is computed needs a backward pass, as far as anybody knows.
template <std::size_t count>
[[nodiscard]] bool is_frozen(const torch::nn::Module* module, const std::array<at::Tensor, count>& inputs) {
  if (!c10::GradMode::is_enabled()) return true;
  if (module == nullptr || std::any_of(inputs.begin(), inputs.end(), needs_gradient)) return false;
  const auto parameters = module->parameters();
  return std::none_of(parameters.begin(), parameters.end(), needs_gradient);
}

}  // namespace detail

/// Returns what a module, or a function, makes of its inputs, without keeping what the backward pass needs of the
/// computation ("activation checkpointing"): backward() computes it once more. So a model of n such blocks needs memory
/// for the inputs of n blocks and the inside of one. Gradients are the same, to the bit.
///
/// function is a holder made by TORCH_MODULE (or a Sequential), a std::shared_ptr to a module, or something that can be
/// called and lives until backward(), such as a lambda that captures `this`; what else it needs it captures. It is
/// given tensors, which may be undefined, and returns one, a std::vector of them or a std::tuple. It must do the same
/// each time and leave its inputs as they are. It may use recompute() itself.
///
/// It sees the same random numbers (of LibTorch's default generators, which workers that are threads share: with
/// dropout let workers be processes) and the same Autocast both times. Running statistics of a module move once; those
/// of modules that a function calls move twice, so give the module. The loss must use backward(): what
/// torch::autograd::grad() is asked for is not found behind it, and backward(create_graph=true) is refused. A block
/// that is used twice in a pass, or shares weights with another, ends ModelOptions::overlap.
/// Cost: one more forward pass. Throws: ConfigError in backward() if the second computation differs in its random
/// numbers or the shapes of its results.
/// Example: for (auto& block : blocks) x = ry::recompute(block, x);
template <class F, class... Inputs>
requires(std::convertible_to<const Inputs&, at::Tensor>&&...)
    [[nodiscard]] auto recompute(F&& function, const Inputs&... inputs) {
  using Function = std::decay_t<F>;
  using Returned = std::decay_t<decltype(detail::compute(std::declval<Function&>(), at::Tensor{inputs}...))>;
  using List = detail::ListOfTensors<Returned>;
  static_assert(!detail::IsModule<Function>,
                "recompute(module, ...): give the module's holder or a std::shared_ptr to it, which keeps it alive "
                "until backward(), or a lambda that calls it.");
  static_assert(
      requires(std::vector<at::Tensor> list) { List::to(list); },
      "recompute(function, ...): the function must return a tensor, a std::vector of tensors or a std::tuple "
      "of tensors.");
  const std::array<at::Tensor, sizeof...(Inputs)> all{at::Tensor{inputs}...};
  const auto module = detail::owner_of<Function>(function);
  if (detail::is_frozen(module.get(), all)) return Returned(detail::compute(function, at::Tensor{inputs}...));
  auto segment = c10::make_intrusive<detail::RecomputedSegment>();
  if (module) segment->modules.push_back(module);
  segment->compute = [function = Function(std::forward<F>(function))](const std::vector<at::Tensor>& given) mutable {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return List::from(detail::compute(function, at::Tensor{given[i]}...));
    }
    (std::index_sequence_for<Inputs...>{});
  };
  std::vector<at::Tensor> known;
  for (const at::Tensor& input : all) {
    segment->is_defined.push_back(input.defined());
    if (input.defined()) known.push_back(input);
  }
  // Weights are not among the inputs, and LibTorch would take what comes of others for no part of the graph.
  if (std::none_of(known.begin(), known.end(), detail::needs_gradient)) {
    known.push_back(at::empty({0}).set_requires_grad(true));
  }
  return List::to(detail::RecomputeFunction::apply(segment, at::TensorList{known}));
}

}  // namespace railyard::inline v0_1
