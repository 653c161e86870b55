// SPDX-License-Identifier: MIT
// Makes a loader from a table, a pair of tensors or a LibTorch dataset. Torch room.
#pragma once

#include "railyard/torch/loader.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/data/table.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <torch/data/example.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

template <class D>
concept IsMapStyle = requires(D& dataset, const std::vector<std::size_t>& indices) {
  dataset.get_batch(c10::ArrayRef<std::size_t>(indices));
  dataset.size();
};

template <class D>
using BatchOf = std::decay_t<decltype(std::declval<D&>().get_batch(std::declval<c10::ArrayRef<std::size_t>>()))>;

template <class T>
inline constexpr bool is_example =
    std::is_same_v<T, torch::data::Example<>> || std::is_same_v<T, torch::data::TensorExample>;
template <class T>
inline constexpr bool is_loadable = is_example<T>;
template <class T>
inline constexpr bool is_loadable<std::vector<T>> = is_example<T>;

[[nodiscard]] inline std::pair<at::Tensor, at::Tensor> collate(torch::data::Example<> example) {
  return {std::move(example.data), std::move(example.target)};
}
[[nodiscard]] inline std::pair<at::Tensor, at::Tensor> collate(torch::data::TensorExample example) {
  return {std::move(example.data), {}};
}
template <class Example>
[[nodiscard]] std::pair<at::Tensor, at::Tensor> collate(std::vector<Example> examples) {
  std::vector<at::Tensor> data;
  std::vector<at::Tensor> targets;
  for (Example& example : examples) {
    auto [one, target] = collate(std::move(example));
    data.push_back(std::move(one));
    if (target.defined()) targets.push_back(std::move(target));
  }
  return {at::stack(data), targets.empty() ? at::Tensor{} : at::stack(targets)};
}

[[nodiscard]] inline at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::size_t>& indices) {
  const at::Tensor rows = at::empty({static_cast<std::int64_t>(indices.size())}, at::ScalarType::Long);
  std::copy(indices.begin(), indices.end(), rows.data_ptr<std::int64_t>());
  return at::index_select(tensor, 0, rows.to(tensor.device()));
}

[[nodiscard]] inline std::size_t checked_batch_size(const Worker& worker, const LoaderOptions& options,
                                                    std::size_t num_samples) {
  const auto fail = [&](const std::string& what) {
    throw ConfigError{compose("prepare_loader on rank {}/{}: {}", worker.rank(), worker.world_size(), what)};
  };
  const auto workers = static_cast<std::size_t>(worker.world_size());
  const bool is_global = options.global_batch_size > 0;
  if (is_global == (options.batch_size_per_worker > 0)) {
    fail(
        compose("global_batch_size is {} and batch_size_per_worker is {}: set exactly one of them, to at least 1; the "
                "first keeps training the same on any number of workers",
                options.global_batch_size, options.batch_size_per_worker));
  }
  if (is_global && options.global_batch_size < workers && !worker.is_elastic()) {
    fail(compose("a global_batch_size of {} leaves some of {} workers without a sample in every batch: use at least {}",
                 options.global_batch_size, workers, workers));
  }
  if (options.micro_batches == 0) fail("micro_batches is 0: a batch is given in at least one part");
  if (num_samples == 0) fail("the dataset is empty");
  if (is_global) return options.global_batch_size;
  if (options.batch_size_per_worker > std::numeric_limits<std::size_t>::max() / workers) {
    fail(compose("a batch_size_per_worker of {} times {} workers is more than can be counted: use at most {}",
                 options.batch_size_per_worker, workers, num_samples));
  }
  return options.batch_size_per_worker * workers;
}

[[nodiscard]] inline Loader make_loader(Worker& worker, Fetch fetch, std::size_t num_samples,
                                        const LoaderOptions& options) {
  apply_thread_budget(worker);
  const std::size_t batch_size = checked_batch_size(worker, options, num_samples);
  LoaderOptions bounded = options;
  if (const std::size_t largest = options.largest_micro_batch; largest > 0) {
    const std::size_t of_all = largest * static_cast<std::size_t>(worker.world_size());
    bounded.micro_batches = std::max(options.micro_batches, (batch_size + of_all - 1) / of_all);
  }
  return Loader{{.worker = &worker,
                 .options = bounded,
                 .fetch = std::move(fetch),
                 .num_samples = num_samples,
                 .global_batch_size = batch_size}};
}

template <class D>
[[nodiscard]] std::size_t size_of_dataset(const Worker& worker, D& dataset) {
  const auto size = dataset.size();
  if constexpr (std::is_integral_v<std::decay_t<decltype(size)>>) {
    return static_cast<std::size_t>(size);
  } else {
    if (!size.has_value()) {
      throw ConfigError{
          compose("prepare_loader on rank {}/{}: the dataset does not know its size (size() is empty), so "
                  "it cannot be divided among workers: return the number of samples from size()",
                  worker.rank(), worker.world_size())};
    }
    return *size;
  }
}

}  // namespace detail

/// Makes a loader over a pair of tensors, data and target. Shapes: the first dimension of both counts the samples.
/// Throws: ConfigError if they differ in it, or if the options do not name exactly one batch size.
[[nodiscard]] inline Loader prepare_loader(Worker& worker, std::pair<at::Tensor, at::Tensor> tensors,
                                           const LoaderOptions& options) {
  const auto& [data, target] = tensors;
  if (!data.defined() || !target.defined() || data.dim() == 0 || target.dim() == 0 || data.size(0) != target.size(0)) {
    throw ConfigError{
        detail::compose("prepare_loader on rank {}/{} was given data {} and target {}: the first dimension of "
                        "both must be the number of samples",
                        worker.rank(), worker.world_size(), detail::shape_of(data), detail::shape_of(target))};
  }
  const auto num_samples = static_cast<std::size_t>(data.size(0));
  const auto fetch = [tensors = std::move(tensors)](const std::vector<std::size_t>& indices) {
    return std::pair{detail::select_rows(tensors.first, indices), detail::select_rows(tensors.second, indices)};
  };
  return detail::make_loader(worker, fetch, num_samples, options);
}

/// Makes a loader over a table. Shapes: data is (batch, columns) of float, target (batch) of int64.
[[nodiscard]] inline Loader prepare_loader(Worker& worker, const Table& table, const LoaderOptions& options) {
  const auto fetch = [table](const std::vector<std::size_t>& indices) {
    const auto count = static_cast<std::int64_t>(indices.size());
    const auto data = at::empty({count, static_cast<std::int64_t>(table.num_columns())}, at::ScalarType::Float);
    const auto target = at::empty({count}, at::ScalarType::Long);
    auto* values = data.template data_ptr<float>();
    auto* labels = target.template data_ptr<std::int64_t>();
    for (const std::size_t index : indices) {
      values = std::copy(table.row(index).begin(), table.row(index).end(), values);
      *labels++ = table.label_of(index);
    }
    return std::pair{data, target};
  };
  return detail::make_loader(worker, fetch, table.num_rows(), options);
}

/// Makes a loader over a LibTorch dataset whose samples can be asked for by index (get_batch() or get()) and that knows
/// its size(); with or without .map(Stack<>()). Throws: ConfigError if size() is empty.
/// Example: ry::prepare_loader(worker, MNIST(path), {.global_batch_size = 64, .shuffle = true, .drives_step = true});
template <class Dataset>
[[nodiscard]] Loader prepare_loader(Worker& worker, Dataset dataset, const LoaderOptions& options) {
  static_assert(
      detail::IsMapStyle<Dataset>,
      "prepare_loader(worker, dataset, options): dataset must be a railyard::Table, a std::pair of tensors, or a "
      "LibTorch dataset that is asked for samples by index (get_batch(ArrayRef<size_t>) and size()); streams and "
      "chunk datasets cannot be divided among workers.");
  if constexpr (detail::IsMapStyle<Dataset>) {
    static_assert(
        detail::is_loadable<detail::BatchOf<Dataset>>,
        "prepare_loader(worker, dataset, options): the dataset must yield torch::data::Example<> or TensorExample, "
        "alone or in a vector; end its chain of map() with torch::data::transforms::Stack<>().");
    if constexpr (detail::is_loadable<detail::BatchOf<Dataset>>) {
      const std::size_t num_samples = detail::size_of_dataset(worker, dataset);
      const auto shared = std::make_shared<Dataset>(std::move(dataset));
      const auto fetch = [shared](const std::vector<std::size_t>& indices) {
        return detail::collate(shared->get_batch(c10::ArrayRef<std::size_t>(indices)));
      };
      return detail::make_loader(worker, fetch, num_samples, options);
    }
  }
}

}  // namespace railyard::inline v0_1
