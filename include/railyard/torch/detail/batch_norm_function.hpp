// SPDX-License-Identifier: MIT
// The arithmetic of BatchNorm over the batches of all ranks, forward and backward. Torch room.
#pragma once

#include "railyard/core/buffer.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/ivalue.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// What one forward pass knows of the batches of all ranks, and what its backward pass needs to know of this rank.
struct BatchMoments : torch::CustomClassHolder {
  std::weak_ptr<Worker> worker{};
  double eps = 1e-5;
  double count = 0;       // values per channel, on all ranks
  double own_weight = 0;  // what this rank's gradient will be weighted with
  bool counts = true;     // whether this rank's part of the batch counts
  bool input_needs_grad = false;
  at::Tensor mean{};      // (channels) on the input's device, f32 at least
  at::Tensor variance{};  // biased
};

using BatchMomentsPointer = c10::intrusive_ptr<BatchMoments>;

// Statistics are made in f32 at least.
[[nodiscard]] inline at::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == at::ScalarType::Double ? at::ScalarType::Double : at::ScalarType::Float;
}

// (1, channels, 1, ...): one value per channel, as an operand beside the input.
[[nodiscard]] inline at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

[[nodiscard]] inline at::Tensor tensor_of(const std::vector<double>& values, const at::Tensor& like) {
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
  return tensor.to(like.device(), statistics_type(like));
}

// Appends a tensor of one value per channel.
inline void append(std::vector<double>& values, const at::Tensor& tensor, double factor = 1) {
  const at::Tensor plain = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* first = plain.data_ptr<double>();
  std::transform(first, first + plain.numel(), std::back_inserter(values), [factor](double x) { return x * factor; });
}

// (x - mean) / sqrt(variance + eps) * scale + shift, in one pass over x.
[[nodiscard]] inline at::Tensor normalise(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                          const BatchMoments& moments) {
  if (x.numel() == 0) return at::zeros_like(x);
  return std::get<0>(
      at::native_batch_norm(x, scale, shift, moments.mean, moments.variance, /*training=*/false, 0, moments.eps));
}

// Merges the counts, means and sums of squared deviations of all ranks. Deviations are taken from each part's own mean
// and then moved to the common one; sums of squares would lose digits where the mean is large.
// Source: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
[[nodiscard]] inline std::pair<std::vector<double>, std::vector<double>> merge_moments(const std::vector<double>& all,
                                                                                       std::size_t channels,
                                                                                       double total) {
  const std::size_t stride = 1 + 2 * channels;
  std::vector<double> mean(channels, 0.0);
  std::vector<double> variance(channels, 0.0);
  for (std::size_t part = 0; part < all.size(); part += stride) {
    const double share = all[part] / total;
    for (std::size_t c = 0; share > 0 && c < channels; ++c) mean[c] += share * all[part + 1 + c];
  }
  for (std::size_t part = 0; part < all.size(); part += stride) {
    const double share = all[part] / total;
    for (std::size_t c = 0; share > 0 && c < channels; ++c) {
      const double distance = all[part + 1 + c] - mean[c];
      variance[c] += share * (all[part + 1 + channels + c] + distance * distance);
    }
  }
  return {std::move(mean), std::move(variance)};
}

// Finds mean and variance of the batches of all ranks, in one exchange. input: what the module was given, in the
// statistics' type. A rank that counts nothing takes part.
[[nodiscard]] inline BatchMomentsPointer exchange_moments(const std::shared_ptr<Worker>& worker,
                                                          const at::Tensor& input, double eps) {
  const at::NoGradGuard no_grad;
  auto moments = c10::make_intrusive<BatchMoments>();
  const auto channels = static_cast<std::size_t>(input.size(1));
  const auto samples = worker->step_samples();
  moments->worker = worker;
  moments->eps = eps;
  moments->own_weight = static_cast<double>(samples.value_or(static_cast<std::uint64_t>(input.size(0))));
  moments->counts = moments->own_weight > 0 && input.numel() > 0;

  std::vector<double> own;
  own.reserve(1 + 2 * channels);
  own.push_back(moments->counts ? static_cast<double>(input.numel()) / static_cast<double>(channels) : 0.0);
  if (moments->counts) {
    const auto [mean, variance] = at::batch_norm_update_stats(input, at::Tensor{}, at::Tensor{}, 0.0);
    append(own, mean);
    append(own, variance);
  } else {
    own.resize(1 + 2 * channels, 0.0);  // left out, not multiplied by zero: it may be NaN
  }
  std::vector<double> all(own.size() * static_cast<std::size_t>(worker->world_size()));
  worker->all_gather(buffer_of(own), buffer_of(all));

  for (std::size_t part = 0; part < all.size(); part += own.size()) moments->count += all[part];
  const auto [mean, variance] = merge_moments(all, channels, std::max(moments->count, 1.0));
  moments->mean = tensor_of(mean, input);
  moments->variance = tensor_of(variance, input);
  return moments;
}

// Normalises with the moments of all ranks. The backward pass is the derivative of the mean over the global batch that
// prepare_model() makes of the ranks' gradients: what reaches this rank's input through the common mean and variance
// comes from all ranks' losses, each with its rank's weight.
class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const BatchMomentsPointer& moments) {
    moments->input_needs_grad = input.requires_grad();
    ctx->save_for_backward({input, weight});
    ctx->saved_data["moments"] = c10::IValue::make_capsule(moments);
    const auto type = statistics_type(input);
    return normalise(input.to(type), weight.to(type), bias.to(type), *moments).to(input.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto capsule = ctx->saved_data["moments"].toCapsule();
    const auto& moments = static_cast<const BatchMoments&>(*capsule);
    refuse_second_derivative();
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const auto type = statistics_type(saved[0]);
    const at::Tensor input = saved[0].to(type);
    const at::Tensor gradient = gradients[0].to(type).contiguous(input.suggest_memory_format());

    const auto [weight_gradient, bias_gradient] = sums(gradient, input, moments);
    at::Tensor input_gradient;
    if (moments.input_needs_grad) {
      input_gradient = gradient_of_input(gradient, input, weight.to(type), weight_gradient, bias_gradient, moments)
                           .to(saved[0].scalar_type());
    }
    return {input_gradient, weight_gradient.to(weight.scalar_type()), bias_gradient.to(weight.scalar_type()),
            at::Tensor{}};
  }

 private:
  // The sum over this rank's values of gradient x normalised input, and of the gradient.
  [[nodiscard]] static std::pair<at::Tensor, at::Tensor> sums(const at::Tensor& gradient, const at::Tensor& input,
                                                              const BatchMoments& moments) {
    if (input.numel() == 0) return {at::zeros_like(moments.mean), at::zeros_like(moments.mean)};
    const at::Tensor inverse = moments.variance.add(moments.eps).rsqrt();
    const auto all =
        at::native_batch_norm_backward(gradient, input, at::Tensor{}, moments.mean, moments.variance, moments.mean,
                                       inverse, /*train=*/false, moments.eps, std::array<bool, 3>{false, true, true});
    return {std::get<1>(all), std::get<2>(all)};
  }

  [[nodiscard]] static at::Tensor gradient_of_input(const at::Tensor& gradient, const at::Tensor& input,
                                                    const at::Tensor& weight, const at::Tensor& projection,
                                                    const at::Tensor& sum, const BatchMoments& moments) {
    const auto worker = moments.worker.lock();
    if (!worker) {
      throw ConfigError{
          "backward() through a synchronised BatchNorm after its training function has ended: there is nobody left to "
          "exchange with; call it inside the training function"};
    }
    const auto channels = static_cast<std::size_t>(moments.mean.numel());
    std::vector<double> exchanged;
    exchanged.reserve(2 * channels);
    if (moments.counts) {
      append(exchanged, projection, moments.own_weight);
      append(exchanged, sum, moments.own_weight);
    }
    exchanged.resize(2 * channels, 0.0);
    worker->all_reduce(buffer_of(exchanged), ReduceOp::sum);
    const double divisor = moments.counts ? moments.own_weight * moments.count : moments.count;
    for (double& value : exchanged) value /= -divisor;

    const at::Tensor factors = tensor_of(exchanged, input);
    const at::Tensor scale = moments.variance.add(moments.eps).rsqrt().mul(weight);
    const auto count = static_cast<std::int64_t>(channels);
    const at::Tensor common =
        normalise(input, scale.mul(factors.narrow(0, 0, count)), scale.mul(factors.narrow(0, count, count)), moments);
    return common.addcmul_(gradient, per_channel(scale, input));
  }

  static void refuse_second_derivative() {
    if (!c10::GradMode::is_enabled()) return;
    throw ConfigError{
        "backward(create_graph=true) through a synchronised BatchNorm: its derivative cannot be differentiated again; "
        "leave create_graph out, or use a BatchNorm that is not synchronised (or another normalisation) in this model"};
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1
