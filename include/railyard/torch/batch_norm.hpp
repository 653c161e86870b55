// SPDX-License-Identifier: MIT
// BatchNorm modules whose batch is the batch of all workers, once sync_batch_norm() has joined them. Torch room.
#pragma once

#include "railyard/torch/detail/batch_norm_function.hpp"
#include "railyard/torch/detail/running_statistics.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {

namespace nn {

/// Is torch::nn::BatchNorm1d, 2d or 3d (D) with the same options, parameters and buffers under the same names, until
/// sync_batch_norm() joins it to a worker. From then on a forward pass in training normalises with mean and variance
/// of the batches of all ranks, every rank's running statistics are those of one worker on the global batch, and
/// gradients are too. Every value counts once, however unevenly the batch is divided; a rank whose batch is empty, or
/// has weight zero (worker.samples(0)), takes part and counts nothing.
///
/// In eval() nothing is exchanged. Without running statistics eval() normalises over this rank's own batch.
/// All ranks must run the same joined modules in the same order, forward and backward.
/// Shapes: D 1: (batch, features) or (batch, features, length); 2: (batch, features, height, width); 3: one more.
/// Cost: forward one all-gather of 1 + 2 x features f64 per rank, backward one all-reduce of 2 x features f64.
/// Throws: ConfigError for an input of another shape, for fewer than two values per channel on all ranks together, and
/// for backward(create_graph=true).
template <std::size_t D>
class BatchNormImpl : public torch::nn::NormImplBase<D, BatchNormImpl<D>, torch::nn::BatchNormOptions>,
                      public detail::FollowsAllRanks {
  static_assert(D >= 1 && D <= 3, "BatchNorm exists for 1, 2 and 3 dimensions");
  using Base = torch::nn::NormImplBase<D, BatchNormImpl<D>, torch::nn::BatchNormOptions>;

 public:
  explicit BatchNormImpl(const torch::nn::BatchNormOptions& options_) : Base(options_) {}

  at::Tensor forward(const at::Tensor& input) {
    _check_input_dim(input);
    const auto worker = worker_.lock();
    if (!worker || worker->world_size() == 1 || !this->is_training()) return forward_alone(input);
    const auto moments =
        detail::exchange_moments(worker, input.detach().to(detail::statistics_type(input)), this->options.eps());
    if (moments->count < 2) {
      throw ConfigError{detail::compose(
          "BatchNorm {} on rank {}/{}: the batches of all ranks together hold {} values per channel, and a "
          "variance needs two: make the batch larger, or call eval()",
          path_, worker->rank(), worker->world_size(), moments->count)};
    }
    follow(*moments);
    if (this->options.affine()) return detail::SyncBatchNormFunction::apply(input, this->weight, this->bias, moments);
    // A custom function takes no undefined tensors.
    return detail::SyncBatchNormFunction::apply(input, at::ones_like(moments->mean), at::zeros_like(moments->mean),
                                                moments);
  }

  /// Joins this module to those of the other ranks; sync_batch_norm() calls it. path: its name in messages.
  void join(std::weak_ptr<Worker> worker, std::string path) {
    worker_ = std::move(worker);
    path_ = std::move(path);
  }
  /// Says whether batches of other ranks count here, which ends with the training function.
  [[nodiscard]] bool is_joined() const noexcept override { return !worker_.expired(); }

  /// Takes the place of a plain module: from then on both have the same parameters, the same values in buffers.
  template <class Plain>
  void adopt(const Plain& plain) {
    if (plain.weight.defined()) this->weight = this->parameters_["weight"] = plain.weight;
    if (plain.bias.defined()) this->bias = this->parameters_["bias"] = plain.bias;
    if (plain.running_mean.defined()) {
      this->running_mean.set_data(plain.running_mean);
      this->running_var.set_data(plain.running_var);
      this->num_batches_tracked.set_data(plain.num_batches_tracked);
    }
    this->train(plain.is_training());
  }

  void pretty_print(std::ostream& stream) const override {
    const auto& momentum = this->options.momentum();
    stream << detail::compose("railyard::nn::BatchNorm{}d({}, eps={}, momentum={}, affine={}, track_running_stats={})",
                              D, this->options.num_features(), this->options.eps(),
                              momentum ? detail::compose("{}", *momentum) : "None", this->options.affine(),
                              this->options.track_running_stats());
  }

 protected:
  void _check_input_dim(const at::Tensor& input) override {
    const auto dim = static_cast<std::size_t>(input.dim());
    if ((dim == D + 2 || (D == 1 && dim == 2)) && input.size(1) == this->options.num_features()) return;
    throw ConfigError{detail::compose(
        "railyard::nn::BatchNorm{}d {}: the input is {}, but {} with {} features is expected", D, path_,
        detail::shape_of(input),
        D == 1 ? "(batch, features) or (batch, features, length)"
               : (D == 2 ? "(batch, features, height, width)" : "(batch, features, depth, height, width)"),
        this->options.num_features())};
  }

 private:
  // The weight of the newest batch in the running statistics. Counts the batch.
  [[nodiscard]] double average_factor() {
    const auto& momentum = this->options.momentum();
    if (!this->is_training() || !this->options.track_running_stats()) return momentum.value_or(0.0);
    const at::NoGradGuard no_grad;
    this->num_batches_tracked += 1;
    return momentum ? *momentum : 1.0 / this->num_batches_tracked.template item<double>();
  }

  [[nodiscard]] at::Tensor forward_alone(const at::Tensor& input) {
    const double factor = average_factor();
    return torch::nn::functional::batch_norm(
        input, this->running_mean, this->running_var,
        torch::nn::functional::BatchNormFuncOptions()
            .weight(this->weight)
            .bias(this->bias)
            .momentum(factor)
            .eps(this->options.eps())
            .training(this->is_training() || !this->options.track_running_stats()));
  }

  // Moves the running statistics towards the batch's, with the unbiased variance as a single worker does.
  void follow(const detail::BatchMoments& moments) {
    if (!this->options.track_running_stats()) return;
    const at::NoGradGuard no_grad;
    const double factor = average_factor();
    const auto type = this->running_mean.scalar_type();
    this->running_mean.mul_(1 - factor).add_(moments.mean.to(type), factor);
    this->running_var.mul_(1 - factor).add_(moments.variance.to(type), factor * moments.count / (moments.count - 1));
  }

  std::weak_ptr<Worker> worker_{};
  std::string path_{};
};

using BatchNorm1dImpl = BatchNormImpl<1>;
using BatchNorm2dImpl = BatchNormImpl<2>;
using BatchNorm3dImpl = BatchNormImpl<3>;

/// Holds a BatchNormImpl<1>; takes the place of torch::nn::BatchNorm1d.
class BatchNorm1d : public torch::nn::ModuleHolder<BatchNorm1dImpl> {
 public:
  using torch::nn::ModuleHolder<BatchNorm1dImpl>::ModuleHolder;
  using Impl = BatchNorm1dImpl;
};

/// Holds a BatchNormImpl<2>; takes the place of torch::nn::BatchNorm2d.
/// Example: ry::nn::BatchNorm2d norm{nullptr};  // a member, and in the constructor:
/// norm = register_module("norm", ry::nn::BatchNorm2d(64));
class BatchNorm2d : public torch::nn::ModuleHolder<BatchNorm2dImpl> {
 public:
  using torch::nn::ModuleHolder<BatchNorm2dImpl>::ModuleHolder;
  using Impl = BatchNorm2dImpl;
};

/// Holds a BatchNormImpl<3>; takes the place of torch::nn::BatchNorm3d.
class BatchNorm3d : public torch::nn::ModuleHolder<BatchNorm3dImpl> {
 public:
  using torch::nn::ModuleHolder<BatchNorm3dImpl>::ModuleHolder;
  using Impl = BatchNorm3dImpl;
};

}  // namespace nn

}  // namespace railyard::inline v0_1
