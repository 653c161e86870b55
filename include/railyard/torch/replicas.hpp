// SPDX-License-Identifier: MIT
// Finds what makes the ranks' copies of one model differ. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Keeps a module in evaluation for a while, its parts as well.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& module) {
    for (const auto& part : module.modules()) was_training_.emplace_back(part, part->is_training());
    module.eval();
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;
  ~Evaluating() {
    for (const auto& [part, was_training] : was_training_) part->train(was_training);  // of parts after the whole
  }

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_{};
};

// The first weight or buffer that is not rank 0's.
[[nodiscard]] inline std::string difference_of_tensors(Worker& worker, const torch::nn::Module& module) {
  const auto tensors = tensors_of(module);
  check_structure(worker, tensors);
  if (tensors.empty()) return "";
  std::vector<std::int64_t> hashes;
  for (const NamedTensor& named : tensors) hashes.push_back(static_cast<std::int64_t>(hash_of({named})));
  const auto all = gather_values(worker, Topic::replica_weights, hashes);
  for (std::size_t entry = hashes.size(); entry < all.size(); ++entry) {
    const std::size_t index = entry % hashes.size();
    if (all[entry] == all[index]) continue;
    return compose("the {} of rank {} has other values than that of rank 0{}", describe(tensors[index]),
                   entry / hashes.size(),
                   tensors[index].is_parameter ? ": did something but the optimizer write to it?"
                                               : ": ModelOptions::buffers can keep them equal");
  }
  return "";
}

// Whether one rank's output is not rank 0's; processors of two kinds need not round alike.
[[nodiscard]] inline std::string difference_of_outputs(Worker& worker, const at::Tensor& output) {
  const auto shapes = gather_texts(worker, Topic::replica_shapes, shape_of(output));
  for (std::size_t rank = 1; rank < shapes.size(); ++rank) {
    if (shapes[rank] == shapes[0]) continue;
    return compose("rank {} computes {} and rank 0 {}", rank, shapes[rank], shapes[0]);
  }
  const at::Tensor own = as_real(output).contiguous().to(at::ScalarType::Double);
  const at::Tensor first = own.clone();
  worker.broadcast(buffer_of(first), 0);
  const double size = own.numel() == 0 ? 0 : first.nan_to_num(0, 0, 0).abs().max().item<double>();
  const bool is_close = own.allclose(first, 0, 1e-4 * size, /*equal_nan=*/true);
  const double distance = is_close ? 0 : std::abs((own - first).abs().max().item<double>());  // no -nan
  const auto different = gather_values<double>(worker, Topic::replica_outputs, {is_close ? 0.0 : 1.0, distance});
  for (std::size_t at = 2; at < different.size(); at += 2) {
    if (different[at] == 0) continue;
    return compose("the output of rank {} is off rank 0's by {}", at / 2, different[at + 1]);
  }
  return "";
}

}  // namespace detail

/// Says how the ranks' copies of a prepared model differ, the same on every rank; nothing if they do not. A collective.
///
/// Compares weights and buffers, and then what model->forward(inputs...) makes in evaluation of rank 0's inputs. Where
/// that alone differs, the model keeps something that it has not registered, such as statistics in a plain member,
/// which neither prepare_model() nor a checkpoint can know of.
/// Shapes: inputs and outputs are tensors, of one shape on all ranks. Cost: a hash of all weights and a forward pass.
/// Example: if (auto text = ry::replica_difference(worker, net, batch.data); !text.empty()) throw ry::Error{text};
template <class Model, std::same_as<at::Tensor>... Inputs>
requires(detail::IsModel<Model>) [[nodiscard]] std::string
    replica_difference(Worker& worker, const Model& model, const Inputs&... inputs) {
  torch::nn::Module& module = detail::module_of(worker, model);
  if (worker.world_size() == 1) return "";
  if (auto text = detail::difference_of_tensors(worker, module); !text.empty()) return text;
  if constexpr (sizeof...(inputs) > 0) {
    const at::NoGradGuard no_grad;
    const detail::Evaluating evaluating{module};
    const auto of_rank_0 = [&worker](const at::Tensor& input) {
      const at::Tensor copy = input.contiguous().clone();
      worker.broadcast(buffer_of(copy), 0);
      return copy;
    };
    Model forwarding = model;  // through a const module holder only a const forward() could be called
    const auto text = detail::difference_of_outputs(worker, forwarding->forward(of_rank_0(inputs)...));
    if (!text.empty()) {
      return text +
             ", from one input by equal weights and buffers: the model keeps something that it has not registered. "
             "Register statistics with register_buffer(), and choose ModelOptions::buffers";
    }
  }
  return "";
}

}  // namespace railyard::inline v0_1
