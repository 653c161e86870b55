// SPDX-License-Identifier: MIT
// Computes something without keeping what its backward pass needs, and anew in that. Torch room.
#pragma once

#include "railyard/torch/detail/replay.hpp"
#include "railyard/torch/detail/running_statistics.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <ATen/core/ivalue.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// What is computed twice. Undefined inputs are none for LibTorch, so it is told of the others alone.
struct RecomputedSegment : torch::CustomClassHolder {
  using Tensors = torch::autograd::variable_list;

  std::function<Tensors(const Tensors& inputs)> compute{};
  std::vector<std::weak_ptr<const torch::nn::Module>> modules{};  // whose running statistics move once
  std::vector<bool> is_defined{};                                 // by input
  std::vector<std::string> shapes{};                              // of the outputs
  AutocastState autocast{};
  DrawnNumbers numbers{};

  // known: those that are defined.
  [[nodiscard]] Tensors run(at::TensorList known) const {
    Tensors inputs;
    std::size_t next = 0;
    for (const bool is_one : is_defined) inputs.push_back(is_one ? known[next++] : at::Tensor{});
    return compute(inputs);
  }
};

// Its backward pass runs one of its own, which adds to the gradients of all weights that the function uses.
class RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
  using Tensors = torch::autograd::variable_list;

 public:
  static Tensors forward(torch::autograd::AutogradContext* ctx, const c10::intrusive_ptr<RecomputedSegment>& segment,
                         at::TensorList inputs) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["segment"] = c10::IValue::make_capsule(segment);
    std::vector<std::int64_t> versions;
    for (const at::Tensor& input : inputs) versions.push_back(version_of(input));
    Tensors outputs;
    {
      std::optional<NoKeptCasts> no_casts;
      if (segment->autocast.is_enabled()) no_casts.emplace();
      segment->numbers.begin(inputs.vec());
      outputs = segment->run(inputs);
      segment->numbers.end();
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (version_of(inputs[i]) != versions[i]) refuse_changed(inputs[i]);
    }
    for (const at::Tensor& output : outputs) {
      if (!output.defined()) {
        throw ConfigError{"recompute(): the function has returned an undefined tensor: leave it out"};
      }
      segment->shapes.push_back(shape_of(output));
    }
    return outputs;
  }

  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& gradients) {
    refuse_second_derivative();
    const auto capsule = ctx->saved_data["segment"].toCapsule();
    const auto& segment = static_cast<const RecomputedSegment&>(*capsule);
    Tensors inputs;
    for (const at::Tensor& input : ctx->get_saved_variables()) {
      inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    }
    RunningStatistics statistics;
    statistics.keep(segment.modules, RunningStatistics::Of::all_modules);
    const Tensors outputs = compute_again(segment, inputs);
    check_shapes(segment, outputs);
    Tensors roots;
    Tensors root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    statistics.put_back();
    Tensors results{at::Tensor{}};  // for the segment
    for (const at::Tensor& input : inputs) results.push_back(input.grad());
    return results;
  }

 private:
  [[nodiscard]] static Tensors compute_again(const RecomputedSegment& segment, const Tensors& inputs) {
    const at::AutoGradMode with_gradients{true};
    const DrawnNumbers::Replay numbers{segment.numbers};
    std::optional<ReplayedAutocast> autocast;
    if (segment.autocast.is_enabled() || AutocastState{}.is_enabled()) autocast.emplace(segment.autocast);
    Tensors outputs = segment.run(inputs);
    numbers.check();
    return outputs;
  }

  [[nodiscard]] static std::int64_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : tensor._version();
  }

  static void check_shapes(const RecomputedSegment& segment, const Tensors& outputs) {
    std::vector<std::string> shapes;
    for (const at::Tensor& output : outputs) shapes.push_back(shape_of(output));
    if (shapes == segment.shapes) return;
    throw ConfigError{
        compose("recompute(): the function has returned [{}] in backward() and [{}] before: it must do the same each "
                "time, and depend on nothing but its inputs and weights",
                joined(shapes, ", "), joined(segment.shapes, ", "))};
  }

  [[noreturn]] static void refuse_changed(const at::Tensor& input) {
    throw ConfigError{
        compose("recompute(): the function changes its input {} in place, which it needs once more as it was: let it "
                "work on a copy, or out of place",
                shape_of(input))};
  }

  static void refuse_second_derivative() {
    if (!c10::GradMode::is_enabled()) return;
    throw ConfigError{
        "backward(create_graph=true) through recompute(): its derivative cannot be differentiated again; leave "
        "create_graph out, or call the function without recompute()"};
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1
