// SPDX-License-Identifier: MIT
// Makes a model that all workers train together. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradients.hpp"
#include "railyard/torch/detail/thread_budget.hpp"
#include "railyard/torch/detail/worker_gpu.hpp"
#include "railyard/torch/detail/worker_pool.hpp"
#include "railyard/torch/model_options.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/data/shuffle.hpp"
#include "railyard/train/worker.hpp"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

template <class M>
concept IsModule = std::is_base_of_v<torch::nn::Module, M>;

template <class H>
concept IsModuleHolder = torch::detail::is_module_holder<H>::value;

template <class T>
struct IsModulePointer : std::false_type {};
template <IsModule M>
struct IsModulePointer<std::shared_ptr<M>> : std::true_type {};

template <class T>
concept IsModel = IsModule<T> || IsModuleHolder<T> || IsModulePointer<T>::value;

// Asked only of what is no model itself: a Sequential can be called as well, with anything.
template <class F>
concept IsModelFactory = !IsModel<F> && std::is_invocable_v<F&> && IsModel<std::decay_t<std::invoke_result_t<F&>>>;

// What prepare_model() hands back: holders and pointers as they are, a module by value behind a pointer.
template <class T>
[[nodiscard]] auto held(T&& model) {
  using M = std::decay_t<T>;
  if constexpr (IsModule<M>) {
    return std::make_shared<M>(std::forward<T>(model));
  } else {
    return M(std::forward<T>(model));
  }
}

template <class T>
[[nodiscard]] torch::nn::Module& module_of(const Worker& worker, const T& model) {
  torch::nn::Module* module = nullptr;
  if constexpr (IsModuleHolder<T>) {
    if (!model.is_empty()) module = model.ptr().get();
  } else {
    module = model.get();
  }
  if (module != nullptr) return *module;
  throw ConfigError{
      compose("prepare_model on rank {}/{} was given an empty model: give a module that has been built, "
              "not nullptr",
              worker.rank(), worker.world_size())};
}

// What one worker knows about its models.
struct Models {
  static constexpr std::string_view extension_name = "torch.models";
  std::uint64_t built = 0;  // by factories, so that two models of one kind do not start with the same weights
  std::vector<std::int64_t> processes{};  // the process of each rank

  // How many ranks of lower number live in this worker's process, and how many the fullest process has.
  [[nodiscard]] std::pair<int, int> turns(int rank) const {
    int mine = 0;
    std::ptrdiff_t most = 1;
    for (std::size_t other = 0; other < processes.size(); ++other) {
      if (static_cast<int>(other) < rank && processes[other] == processes[static_cast<std::size_t>(rank)]) ++mine;
      most = std::max(most, std::count(processes.begin(), processes.end(), processes[other]));
    }
    return {mine, static_cast<int>(most)};
  }
};

[[nodiscard]] inline Models& models_of(Worker& worker) {
  auto& models = worker.extension<Models>();
  if (models.processes.empty()) {
    const std::vector<std::int64_t> mine{process_token()};
    models.processes = worker.world_size() == 1 ? mine : gather_values(worker, Topic::processes, mine);
    check_backward_works(worker);
    apply_thread_budget_to_process(worker);
  }
  return models;
}

// Runs the factory with the run's seed. LibTorch has one generator per process, so threads build one after another;
// afterwards each process draws numbers of its own, or dropout would hide the same units on every rank.
template <class Factory>
[[nodiscard]] auto build(Worker& worker, Factory& factory) {
  Models& models = models_of(worker);
  const std::uint64_t use = models.built++;
  const std::uint64_t seed = use == 0 ? worker.seed() : derive_seed(worker.seed(), use);
  const auto [my_turn, turns] = models.turns(worker.rank());
  for (int turn = 0; turn < my_turn; ++turn) worker.barrier();
  torch::manual_seed(seed);
  auto model = held(factory());
  // Also until the last one is through: whoever goes on seeds the generator anew.
  for (int turn = my_turn; turns > 1 && turn < turns; ++turn) worker.barrier();
  return model;
}

inline void seed_apart(Worker& worker) {
  const Models& models = models_of(worker);
  if (worker.world_size() == 1) return;  // the numbers that a program without Railyard would draw
  const std::uint64_t use = (models.built << 32U) + static_cast<std::uint64_t>(worker.rank()) + 1;
  const std::uint64_t seed = derive_seed(worker.seed(), use);
  const auto [turn, turns] = models.turns(worker.rank());
  if (turn == 0) torch::manual_seed(seed);
  if (gpu_of_thread() && turns > 1) worker.barrier();  // it has seeded the GPUs of all
  if (turn > 0) seed_gpu(seed);
}

}  // namespace detail

/// Makes a model that all workers train together: weights and buffers become rank 0's, and from then on every
/// backward() leaves in every .grad the mean over the global batch, equal on all ranks.
///
/// source is a factory that returns a std::shared_ptr<Net>, a holder made by TORCH_MODULE (or a Sequential), or a Net;
/// or such a model itself. What it returns is returned, a Net behind a std::shared_ptr. A factory runs with
/// worker.seed() set, so the weights are a function of the run's seed; workers that are threads need one.
///
/// The mean is weighted with worker.samples(), which a loader with drives_step sets: a rank with 10 of 30 samples
/// counts 1/3. A parameter that a rank has not used counts there as a gradient of zero; one that no rank has used keeps
/// its .grad as it was. Several backward passes add up, as on a single worker. Sparse gradients become dense. Of what
/// was used on some ranks alone, or in no step, and of sparse gradients Result::warnings() tell once.
/// Not averaged: what torch::autograd::grad() returns, buffers unless ModelOptions::buffers says so, and what
/// a model has not registered (replica_difference() finds that). torch's
/// BatchNorm normalises over each worker's own part of a batch; see sync_batch_norm() for one over the whole. Convert,
/// extend and replace parts of a model before the call, or call again with the model right afterwards. Cost: per
/// backward pass one small exchange and one as large as the gradients. Throws: ConfigError on every rank if the ranks'
/// models differ in names, shapes, types or frozen parameters, or are one object. Example: auto net =
/// ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
template <class Source>
[[nodiscard]] auto prepare_model(Worker& worker, Source&& source, const ModelOptions& options = {}) {
  using Plain = std::decay_t<Source>;
  static_assert(detail::IsModel<Plain> || detail::IsModelFactory<Plain>,
                "prepare_model(worker, x): x must be a factory such as [] { return std::make_shared<Net>(); } that "
                "returns a torch::nn::Module, a std::shared_ptr to one or a module holder, or such a model itself.");
  if constexpr (detail::IsModel<Plain> || detail::IsModelFactory<Plain>) {
    static_cast<void>(device(worker));  // makes it the current one before a factory runs
    detail::check_libtorch_knows_gpus(worker);
    if (options.memory_pool) detail::bind_pool(worker);
    const auto& exchange = detail::gradient_exchange_of(worker);
    exchange->drop_ended_models();
    auto model = [&] {
      if constexpr (detail::IsModel<Plain>) {
        return detail::held(std::forward<Source>(source));
      } else {
        return detail::build(worker, source);
      }
    }();
    detail::seed_apart(worker);
    const torch::nn::Module& module = detail::module_of(worker, model);
    const auto tensors = detail::tensors_of(module);
    detail::check_places(worker, tensors);
    detail::make_equal(worker, tensors);
    for (const auto& named : tensors) {
      if (named.is_parameter && named.tensor.defined()) {
        detail::GradientExchange::add(exchange, named.name, named.tensor);
      }
    }
    exchange->watch(module);
    exchange->set_options(options);
    return model;
  }
}

}  // namespace railyard::inline v0_1
