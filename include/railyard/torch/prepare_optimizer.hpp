// SPDX-License-Identifier: MIT
// Optimizers whose work and state are divided among the ranks of each host, or among all GPUs. Torch room.
#pragma once

#include "railyard/torch/detail/autocast_settings.hpp"
#include "railyard/torch/detail/device_optimizer.hpp"
#include "railyard/torch/detail/gradient_refusals.hpp"
#include "railyard/torch/detail/gradients.hpp"
#include "railyard/torch/detail/master_weights.hpp"
#include "railyard/torch/detail/optimizer_fields.hpp"
#include "railyard/torch/detail/optimizer_state.hpp"
#include "railyard/torch/detail/shared_weights.hpp"
#include "railyard/torch/detail/update_digest.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how a prepared optimizer works.
struct PreparedOptimizerOptions {
  /// Keeps, of each weight in bf16 or f16, a copy in f32, which is what is updated, and writes it back rounded: updates
  /// that are smaller than the last bit of such a weight add up instead of being lost. Their gradients reach the
  /// optimizer in f32, as the sum of the ranks. The copies are divided among the ranks as the optimizer's state is, and
  /// saved with it. Weights in other types are updated as they are.
  bool master_weights = false;
  /// On GPUs: bytes of weights, about, that are updated by the same kernels and gathered from the ranks by one
  /// collective. Equal on all ranks.
  std::size_t block_bytes = std::size_t{32} << 20U;
};

/// Is an optimizer of LibTorch over the weights of prepared models. Where the ranks of a host share memory the weights
/// exist once for all of them, and each rank keeps the state of its own piece and updates that alone ("ZeRO-1"): after
/// backward() the .grad of these parameters is undefined, since no rank has all of the mean. Several hosts, of equally
/// many ranks, have one copy each, with the optimizer's state once per host. Where the ranks have GPUs and Nccl, each
/// GPU has all weights and gradients, as with any optimizer, but only its part of the optimizer's state: it updates
/// that part, and then the weights are gathered. Elsewhere it is the optimizer that it is made of.
///
/// Every rank calls the same functions in the same order. Between two calls weights that ranks share are only to be
/// read; whoever must write them does so on the first rank of each host, between two barriers. Those on GPUs are
/// written on all ranks alike.
template <detail::ElementwiseOptimizer X>
class PreparedOptimizer {
 public:
  PreparedOptimizer(Worker& worker, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const typename detail::OptimizerFields<X>::Options& defaults,
                    const PreparedOptimizerOptions& options = {})
      : worker_(&worker), parameters_(detail::parameters_of(groups)) {
    for (auto& group : parameters_) {
      for (detail::OptimizedTensor& one : group) one.has_master = options.master_weights && detail::is_half(one.whole);
    }
    std::vector<at::Tensor> shared;
    const bool can_share = detail::gradient_exchange_of(worker)->can_share_weights();
    for (const auto& group : parameters_) {
      for (const detail::OptimizedTensor& one : group) {
        const at::Tensor& parameter = one.whole;
        check(parameter);
        if (!can_share || !parameter.requires_grad() || !detail::SharedWeights::shareable(parameter)) continue;
        shared.push_back(parameter);
      }
    }
    compare_with_other_ranks(groups, defaults, options.block_bytes);  // whose pieces must be of the same weights
    if (!shared.empty()) shared_ = std::make_unique<detail::SharedWeights>(worker, std::move(shared));
    if (detail::DeviceOptimizer<X>::is_for(parameters_)) {
      device_ = std::make_unique<detail::DeviceOptimizer<X>>(worker, parameters_, options.block_bytes);
    }
    std::vector<torch::optim::OptimizerParamGroup> own;
    for (std::size_t index = 0; index < groups.size(); ++index) {
      auto tensors = own_tensors(parameters_[index]);
      own.push_back(groups[index].has_options()
                        ? torch::optim::OptimizerParamGroup(std::move(tensors), groups[index].options().clone())
                        : torch::optim::OptimizerParamGroup(std::move(tensors)));
    }
    inner_ = std::make_unique<X>(std::move(own), defaults);
    if (device_ != nullptr) device_->plan(parameters_);
  }

  /// Makes all gradients undefined: also where LibTorch would fill them with zeros, which still move momentum.
  void zero_grad() {
    for (auto& group : inner_->param_groups()) {
      for (at::Tensor& tensor : group.params()) tensor.mutable_grad().reset();
    }
    for (const auto& group : parameters_) {
      for (const detail::OptimizedTensor& one : group) one.whole.mutable_grad().reset();
    }
  }

  /// Updates the weights. The ranks that share them wait for each other before anybody writes, and until all have
  /// written. Throws: ConfigError if such ranks differ in their options, such as learning rates, if weights have been
  /// replaced, or if micro-batches of the step are still to come. Where each rank or host has weights of its own, the
  /// next backward() throws it for the options, and for ranks that have left out an update.
  void step() {
    check_complete("optimizer.step()");
    detail::refuse_scaled(*worker_, inner_.get(), "optimizer.step()");
    detail::StepClock& clock = detail::gradient_exchange_of(*worker_)->clock();
    auto& updates = worker_->extension<detail::UpdateDigest>();
    updates.add(detail::UpdateSettings::of(*inner_));
    if (shared_ == nullptr) {
      clock.enter(detail::StepClock::Part::optimizer);
      update();
      clock.enter(detail::StepClock::Part::compute);
      return;
    }
    clock.enter(detail::StepClock::Part::wait);
    shared_->begin_update(updates.last);
    clock.enter(detail::StepClock::Part::optimizer);
    update();
    clock.enter(detail::StepClock::Part::wait);
    shared_->end_update();
    clock.enter(detail::StepClock::Part::compute);
  }

  /// Scales all gradients so that their common norm is max_norm at most, and returns what it was. A collective.
  /// Cost: one pass over this rank's pieces and one small all-reduce. Throws: ConfigError on all ranks if they give
  /// other norms (where each rank has weights of its own, from the next backward()), or if micro-batches of the step
  /// are still to come.
  double clip_grad_norm_(double max_norm) {
    check_complete("clip_grad_norm_()");
    detail::refuse_scaled(*worker_, inner_.get(), "clip_grad_norm_()");
    const at::NoGradGuard no_grad;
    take_gradients();
    double square = 0;
    std::vector<at::Tensor> norms;  // on the GPU, which is waited for once
    const auto add = [&](const at::Tensor& gradient) {
      // In the type of a half tensor the norm itself would overflow.
      const at::Tensor numbers = detail::as_real(gradient);
      const at::Tensor norm = numbers.norm(2, at::toOpMathType(numbers.scalar_type()));
      if (norm.is_cuda()) {
        norms.push_back(norm.to(at::ScalarType::Double));
      } else {
        square += norm.template item<double>() * norm.template item<double>();
      }
    };
    // Of pieces that several hosts have alike, those of the first host count.
    if (shared_ == nullptr || !shared_->is_copy()) for_each_piece([&](const at::Tensor& piece) { add(piece.grad()); });
    const bool is_divided = shared_ != nullptr || (device_ != nullptr && device_->divides_gradients());
    if (!is_divided || worker_->rank() == 0) for_each_whole([&](const at::Tensor& whole) { add(whole.grad()); });
    if (!norms.empty()) square += at::stack(norms).square().sum().template item<double>();
    if (is_divided) {
      square = sum_of_squares(square, max_norm);
    } else {
      worker_->extension<detail::UpdateDigest>().add_clipping(max_norm);
    }
    const double norm = std::sqrt(square);
    const double factor = max_norm / (norm + 1e-6);
    if (!(factor >= 1)) scale_gradients_(factor);
    return norm;
  }

  /// Multiplies all gradients with a factor, which is the same on all ranks. Not a collective. Cost: one pass over this
  /// rank's pieces. Throws: ConfigError if micro-batches of the step are still to come.
  void scale_gradients_(double factor) {
    check_complete("scale_gradients_()");
    const at::NoGradGuard no_grad;
    take_gradients();
    std::vector<at::Tensor> gradients;
    const auto add = [&gradients](const at::Tensor& tensor) { gradients.push_back(tensor.grad()); };
    for_each_piece(add);
    for_each_whole(add);
    if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
  }

  /// Returns the averaged gradients in full, in the order of the parameters; undefined where there is none. A
  /// collective, and not for every step. Cost: one all-reduce of all of them. Throws: ConfigError if micro-batches of
  /// the step are still to come.
  [[nodiscard]] std::vector<at::Tensor> full_gradients() const {
    check_complete("full_gradients()");
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& group : parameters_) {
      for (const detail::OptimizedTensor& one : group) {
        const bool is_whole = !one.piece || (one.piece->has_whole_weights && one.whole.grad().defined());
        const bool is_taken = !one.piece && one.has_master && !one.whole.grad().defined();
        gradients.push_back(is_whole ? (is_taken ? one.master : one.whole).grad()
                                     : full_gradient(one.whole, *one.piece));
      }
    }
    return gradients;
  }

  /// The optimizer of this rank's pieces, whose options may be changed, on all ranks alike: by a scheduler, for one.
  [[nodiscard]] X& inner() noexcept { return *inner_; }
  /// For torch::optim::StepLR{optimizer, ...} and the like.
  operator torch::optim::Optimizer&() noexcept { return *inner_; }
  [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup>& param_groups() noexcept {
    return inner_->param_groups();
  }
  /// Returns what the ranks remember of the parameters, each of its pieces, and the options of each group as they are
  /// now. An optimizer on any number of ranks, or one of LibTorch alone, can go on from it.
  [[nodiscard]] State state() const { return detail::OptimizerState<X>::take(*inner_, parameters_); }
  /// Takes this rank's pieces out of a saved state. Throws: ConfigError that names what differs if the optimizer has
  /// other parameters or is another one; nothing is changed then.
  void load_state(const State& state) { detail::OptimizerState<X>::put(*inner_, parameters_, state); }

  /// Whether each rank updates its piece of the weights, which the ranks of a host share, or which all have.
  [[nodiscard]] bool is_sharded() const noexcept {
    return shared_ != nullptr || (device_ != nullptr && device_->is_divided());
  }

 private:
  void check(const at::Tensor& parameter) const {
    detail::GradientSlot* slot = detail::gradient_exchange_of(*worker_)->find(parameter);
    if (slot == nullptr) {
      throw ConfigError{detail::compose(
          "prepare_optimizer on rank {}/{}: a parameter {} is of no prepared model, so its gradients would not be "
          "averaged: call prepare_model() first",
          worker_->rank(), worker_->world_size(), detail::shape_of(parameter))};
    }
    if (slot->piece.expired()) return;
    throw ConfigError{detail::compose(
        "prepare_optimizer on rank {}/{}: the parameter \"{}\" has a prepared optimizer already: let that "
        "one end first",
        worker_->rank(), worker_->world_size(), slot->name)};
  }

  void check_complete(std::string_view call) const {
    const auto& exchange = detail::gradient_exchange_of(*worker_);
    for (const auto& group : parameters_) {
      for (const detail::OptimizedTensor& one : group) exchange->check_complete(one.whole, call);
    }
  }

  // Of all ranks, which must clip to the same norm. Ranks are alike where the sum of squares of a digest is least.
  [[nodiscard]] double sum_of_squares(double own, double max_norm) const {
    const auto digest =
        static_cast<double>(detail::short_digest(detail::digest_of(std::as_bytes(std::span{&max_norm, 1}))));
    double sums[3] = {own, digest, digest * digest};
    worker_->all_reduce(buffer_of(sums), ReduceOp::sum);
    if (sums[2] * worker_->world_size() == sums[1] * sums[1]) return sums[0];
    std::size_t rank = 1;
    const auto norms = detail::gather_values<double>(*worker_, {max_norm});
    while (rank + 1 < norms.size() && norms[rank] == norms[0]) ++rank;
    throw ConfigError{
        detail::compose("clip_grad_norm_() on rank {}/{}: max_norm is {} on rank {} and {} on rank 0: give the same on "
                        "every rank",
                        worker_->rank(), worker_->world_size(), norms[rank], rank, norms[0])};
  }

  void compare_with_other_ranks(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                const typename detail::OptimizerFields<X>::Options& defaults,
                                std::size_t block_bytes) const {
    if (worker_->world_size() == 1) return;
    std::string mine;
    for (std::size_t group = 0; group < parameters_.size(); ++group) {
      for (const detail::OptimizedTensor& one : parameters_[group]) {
        const std::string& name = detail::gradient_exchange_of(*worker_)->find(one.whole)->name;
        mine += detail::compose("{} of group {}{}\n", detail::describe({.name = name, .tensor = one.whole}), group,
                                one.has_master ? ", with a master copy" : "");
      }
    }
    detail::check_descriptions(*worker_, detail::Topic::optimizers, "parameters", mine);
    detail::UpdateSettings settings = detail::UpdateSettings::of_none<X>();
    for (const auto& group : groups) settings.add<X>(group.has_options() ? group.options() : defaults);
    const std::string text = settings.text() + detail::compose("block_bytes: {}\n", block_bytes);
    const auto texts = detail::gather_texts(*worker_, detail::Topic::optimizers, text);
    const std::string difference = detail::difference_of_settings(texts);
    if (difference.empty()) return;
    throw ConfigError{detail::compose(
        "prepare_optimizer on rank {}/{}: the ranks give other optimizers, or other options: {}. Give the same on "
        "every rank",
        worker_->rank(), worker_->world_size(), difference)};
  }

  [[nodiscard]] at::Tensor full_gradient(const at::Tensor& parameter, const detail::GradientPiece& piece) const {
    const bool is_here = !piece.is_copy && !piece.is_empty() && piece.updated().grad().defined();
    at::Tensor full = at::zeros_like(parameter.detach());
    if (is_here) full.as_strided({piece.end - piece.begin}, {1}, piece.begin).copy_(piece.updated().grad());
    std::int32_t num_here = is_here ? 1 : 0;
    worker_->all_reduce(buffer_of_value(num_here), ReduceOp::sum);
    if (num_here == 0) return {};
    const at::Tensor flat = full.as_strided({full.numel()}, {1});
    worker_->all_reduce(buffer_of(flat), ReduceOp::sum);
    return full;
  }

  // Finds the pieces of a group's parameters, and returns what this rank updates of them.
  [[nodiscard]] std::vector<at::Tensor> own_tensors(std::vector<detail::OptimizedTensor>& parameters) {
    std::vector<at::Tensor> tensors;
    for (detail::OptimizedTensor& parameter : parameters) {
      parameter.piece = detail::gradient_exchange_of(*worker_)->find(parameter.whole)->piece.lock();
      if (parameter.piece) pieces_.push_back(parameter.piece);
      const bool has_flat_master = parameter.piece && parameter.piece->master.defined();
      if (parameter.has_master && !has_flat_master && parameter.own().defined()) {
        const at::Tensor& weights = parameter.own();
        at::Tensor master = weights.detach().to(at::ScalarType::Float);
        masters_.emplace_back(weights, master);
        (parameter.piece ? parameter.piece->master : parameter.master) = std::move(master);
      }
      if (!parameter.own().defined()) continue;
      tensors.push_back(parameter.own());
      if (!parameter.piece) whole_.push_back(parameter.own());
    }
    for (const detail::OptimizedTensor& one : parameters) {
      if (one.piece && one.piece->has_whole_weights && !one.has_master) whole_.push_back(one.whole);
    }
    return tensors;
  }

  // Gives the gradients of weights that every rank has whole to their copies in f32, or to its parts of them.
  void take_gradients() const {
    if (device_ != nullptr) device_->take_gradients();
    for (const auto& [weights, master] : masters_) {
      at::Tensor& gradient = weights.mutable_grad();
      if (!gradient.defined()) continue;
      at::Tensor& taken = master.mutable_grad();
      taken = taken.defined() ? taken.add_(gradient) : gradient.to(at::ScalarType::Float);
      gradient.reset();
    }
  }

  void update() {
    const at::NoGradGuard no_grad;
    take_gradients();
    for (const auto& [weights, master] : masters_) detail::follow_weights(master, weights);
    if (device_ != nullptr) {
      device_->update(*inner_);
    } else {
      inner_->step();
    }
    for (const auto& [weights, master] : masters_) weights.copy_(master);
    detail::forget_casts();
  }

  template <class Visit>
  void for_each_piece(const Visit& visit) {
    for (const auto& piece : pieces_) {
      if (!piece->is_empty() && piece->updated().grad().defined()) visit(piece->updated());
    }
  }
  template <class Visit>
  void for_each_whole(const Visit& visit) {
    for (const at::Tensor& whole : whole_) {
      if (whole.grad().defined()) visit(whole);
    }
  }

  Worker* worker_;
  detail::OptimizedGroups parameters_;
  std::vector<at::Tensor> whole_{};  // of which this rank has all of the gradient
  std::vector<std::shared_ptr<detail::GradientPiece>> pieces_{};
  std::unique_ptr<detail::SharedWeights> shared_{};
  std::unique_ptr<detail::DeviceOptimizer<X>> device_{};  // where some weights are on a GPU
  std::unique_ptr<X> inner_{};
  std::vector<std::pair<at::Tensor, at::Tensor>> masters_{};  // weights and their copies in f32
};

/// Makes an optimizer for groups of parameters with options of their own; see below.
template <class X, class Options>
[[nodiscard]] auto prepare_optimizer(Worker& worker, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                     const Options& defaults, const PreparedOptimizerOptions& prepared = {}) {
  static_assert(
      detail::ElementwiseOptimizer<X>,
      "prepare_optimizer<X>: X must be torch::optim::SGD, Adam, AdamW, Adagrad or RMSprop. LBFGS looks at all "
      "parameters at once and calls the loss several times in a step, so it cannot be divided among ranks: "
      "use it as it is, with prepare_model() alone and a closure that returns the loss of all ranks "
      "(worker.mean()), by which they all decide alike.");
  if constexpr (detail::ElementwiseOptimizer<X>) return PreparedOptimizer<X>{worker, groups, defaults, prepared};
}

/// Makes an optimizer for a prepared model; see PreparedOptimizer. X is SGD, Adam, AdamW, Adagrad or RMSprop. Every
/// rank calls it, after prepare_model(), and drops it before the training function ends. Throws: ConfigError if a
/// parameter is of no prepared model, or shares its memory with another tensor, or if ranks that share weights give
/// other ones. Example: auto optimizer =
/// ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(1e-3));
template <class X, class Model, class Options>
requires(detail::IsModel<Model>)
    [[nodiscard]] auto prepare_optimizer(Worker& worker, const Model& model, const Options& options,
                                         const PreparedOptimizerOptions& prepared = {}) {
  const std::vector<torch::optim::OptimizerParamGroup> groups{
      torch::optim::OptimizerParamGroup(detail::module_of(worker, model).parameters())};
  return prepare_optimizer<X>(worker, groups, options, prepared);
}

/// Scales the gradients of an optimizer so that their common norm is max_norm at most; returns what it was.
template <detail::ElementwiseOptimizer X>
double clip_grad_norm_(PreparedOptimizer<X>& optimizer, double max_norm) {
  return optimizer.clip_grad_norm_(max_norm);
}

}  // namespace railyard::inline v0_1
