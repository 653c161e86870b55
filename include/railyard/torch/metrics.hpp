// SPDX-License-Identifier: MIT
// How metrics take what a model has made of a batch: accuracy.add(net(batch.data), batch). Torch room.
#pragma once

#include "railyard/torch/batch.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/accuracy.hpp"
#include "railyard/core/auc.hpp"
#include "railyard/core/confusion_matrix.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/mean.hpp"
#include "railyard/core/perplexity.hpp"
#include "railyard/core/summed_metric.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace railyard::inline v0_1 {

namespace detail {

template <class T>
[[nodiscard]] std::span<const T> elements_of(const at::Tensor& tensor) noexcept {
  return {tensor.template data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

// Of a metric that takes tensors, for its messages.
class BatchView {
 public:
  BatchView(std::string_view metric, const at::Tensor& outputs, const Batch& batch)
      : metric_(metric), outputs_(outputs), batch_(batch) {}

  // Whether there is anything to add: a stand-in is another worker's sample, which that one counts.
  [[nodiscard]] bool has_samples() const noexcept { return batch_.size() > 0; }

  // The target, as whole numbers on the CPU, one after another.
  [[nodiscard]] at::Tensor labels() const {
    const at::Tensor& target = batch_.target;
    if (!target.defined()) {
      throw ConfigError{
          compose("{}::add() was given a batch without a target: name its column with Dataset::with_label(), or give "
                  "the metric spans of numbers",
                  metric_)};
    }
    if (target.dim() == 0 || target.size(0) != static_cast<std::int64_t>(batch_.size())) {
      refuse("the target must have one row per sample of the batch");
    }
    const at::Tensor numbers = target.detach().to(at::kCPU);
    at::Tensor labels = numbers.to(at::kLong);
    if (numbers.is_floating_point() && !labels.to(numbers.scalar_type()).equal(numbers)) {
      throw DataError{compose("{}::add(): the target ({}) has numbers that are not whole, and labels are meant",
                              metric_, shape_of(target))};
    }
    return labels.reshape({-1}).contiguous();
  }
  // The scores of all classes for each label, whose dimension is the last one.
  [[nodiscard]] at::Tensor class_scores() const {
    const bool fits = outputs_.defined() && outputs_.dim() == batch_.target.dim() + 1 && outputs_.is_floating_point() &&
                      outputs_.sizes().slice(0, static_cast<std::size_t>(batch_.target.dim())) == batch_.target.sizes();
    if (!fits) refuse("the scores of all classes are meant, which are the last dimension, behind those of the target");
    return outputs_.detach();
  }
  // One number for each label; a last dimension of one is left out.
  [[nodiscard]] at::Tensor one_each(std::string_view what) const {
    const bool has_one_more = outputs_.defined() && outputs_.dim() == batch_.target.dim() + 1 && outputs_.size(-1) == 1;
    const at::Tensor one = has_one_more ? outputs_.squeeze(-1) : outputs_;
    if (!one.defined() || one.sizes() != batch_.target.sizes()) refuse(compose("{} for each label is meant", what));
    return one.detach();
  }
  [[nodiscard]] bool has_classes() const { return outputs_.defined() && outputs_.is_floating_point(); }
  // A loss, which is a mean over the batch.
  [[nodiscard]] double loss() const {
    if (!outputs_.defined() || outputs_.numel() != 1) refuse("a mean loss, a single number, is meant");
    return outputs_.detach().to(at::kCPU, at::kDouble).item<double>();
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    throw ConfigError{compose("{}::add() was given {} for a batch of {} samples with the target {}: {}", metric_,
                              shape_of(outputs_), batch_.size(), shape_of(batch_.target), why)};
  }

  std::string_view metric_;
  const at::Tensor& outputs_;
  const Batch& batch_;
};

// Calls add with the scores as they are, or as float where they are of a type that LibTorch alone has.
template <class Add>
void with_scores(const at::Tensor& scores, const Add& add) {
  const bool is_double = scores.scalar_type() == at::kDouble;
  const at::Tensor here = scores.to(at::kCPU, is_double ? at::kDouble : at::kFloat).contiguous();
  is_double ? add(elements_of<double>(here)) : add(elements_of<float>(here));
}

}  // namespace detail

/// accuracy.add(net(batch.data), batch). Shapes: scores (those of the target, classes), target (samples, ...).
/// Throws: ConfigError for other shapes; DataError as Accuracy::add().
template <>
struct BatchAccess<Accuracy, at::Tensor, Batch> {
  static void add(Accuracy& metric, const at::Tensor& scores, const Batch& batch) {
    const detail::BatchView view{"Accuracy", scores, batch};
    if (!view.has_samples()) return;
    const at::Tensor labels = view.labels();
    detail::with_scores(view.class_scores(),
                        [&](auto all) { metric.add(all, detail::elements_of<std::int64_t>(labels)); });
  }
};

/// auc.add(torch::sigmoid(net(batch.data)), batch). Shapes: scores those of the target, or with a dimension of one
/// behind them. Throws: ConfigError for other shapes; DataError as Auc::add().
template <>
struct BatchAccess<Auc, at::Tensor, Batch> {
  static void add(Auc& metric, const at::Tensor& scores, const Batch& batch) {
    const detail::BatchView view{"Auc", scores, batch};
    if (!view.has_samples()) return;
    const at::Tensor labels = view.labels();
    detail::with_scores(view.one_each("one score"),
                        [&](auto all) { metric.add(all, detail::elements_of<std::int64_t>(labels)); });
  }
};

/// matrix.add(net(batch.data), batch), of which the best class counts, or matrix.add(predictions, batch). Shapes:
/// floating-point scores (those of the target, classes), or whole numbers of the target's shape.
/// Throws: ConfigError for other shapes; DataError as ConfusionMatrix::add().
template <>
struct BatchAccess<ConfusionMatrix, at::Tensor, Batch> {
  static void add(ConfusionMatrix& metric, const at::Tensor& outputs, const Batch& batch) {
    const detail::BatchView view{"ConfusionMatrix", outputs, batch};
    if (!view.has_samples()) return;
    const at::Tensor labels = view.labels();
    const at::Tensor found = view.has_classes() ? view.class_scores().argmax(-1) : view.one_each("one predicted class");
    const at::Tensor predictions = found.to(at::kCPU, at::kLong).reshape({-1}).contiguous();
    metric.add(detail::elements_of<std::int64_t>(predictions), detail::elements_of<std::int64_t>(labels));
  }
};

/// perplexity.add(loss, batch): a mean cross entropy over those labels of the batch that are not ignored_label.
/// Throws: ConfigError if the loss is no single number.
template <>
struct BatchAccess<Perplexity, at::Tensor, Batch> {
  static void add(Perplexity& metric, const at::Tensor& loss, const Batch& batch) {
    const detail::BatchView view{"Perplexity", loss, batch};
    if (!view.has_samples()) return;
    const auto tokens = view.labels().ne(ignored_label).sum().item<std::int64_t>();
    metric.add(view.loss(), static_cast<std::uint64_t>(tokens));
  }
};

/// mean.add(loss, batch): a mean over the batch's samples. Throws: ConfigError if it is no single number.
template <>
struct BatchAccess<Mean, at::Tensor, Batch> {
  static void add(Mean& metric, const at::Tensor& mean, const Batch& batch) {
    const detail::BatchView view{"Mean", mean, batch};
    if (view.has_samples()) metric.add(view.loss(), static_cast<double>(batch.size()));
  }
};

/// A target alone does not say whether it is a stand-in's.
template <class M>
struct BatchAccess<M, at::Tensor, at::Tensor> {
  static void add(M& /*metric*/, const at::Tensor& /*outputs*/, const at::Tensor& /*target*/) {
    static_assert(!std::is_same_v<M, M>,
                  "give a metric the batch and not its target, add(outputs, batch), so that samples of other workers, "
                  "given to keep this one in step, do not count; of tensors that no loader gave make a batch: "
                  "railyard::Batch{data, target, number of samples}");
  }
};

}  // namespace railyard::inline v0_1
