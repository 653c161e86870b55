// SPDX-License-Identifier: MIT
// What is refused because gradients would go wrong without a word. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/loss_scaling.hpp"
#include "railyard/torch/model_options.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

[[noreturn]] inline void refuse_converted(const Worker& worker, const GradientSlot& slot) {
  throw ConfigError{compose(
      "the parameter \"{}\" of a prepared model was converted or loaded, now as {}, after training had begun on "
      "rank {}/{}: its gradients may have gone unaveraged. Do that before prepare_model(), or call "
      "prepare_model(worker, model) again right after it, on all ranks",
      slot.name, shape_of(slot.parameter), worker.rank(), worker.world_size())};
}

// Its accumulator expects gradients of the shape that it had, and the ranks have compared that one.
[[noreturn]] inline void refuse_reshaped(const Worker& worker, const GradientSlot& slot) {
  throw ConfigError{compose(
      "the parameter \"{}\" of a prepared model was given another shape, {} instead of [{}], on rank {}/{}, for "
      "which no gradient can be averaged: keep the shape, or call prepare_model(worker, model) again right "
      "after it, on all ranks",
      slot.name, shape_of(slot.parameter), joined(slot.shape, ", "), worker.rank(), worker.world_size())};
}

// What has been computed with the parameter as it was keeps its accumulator.
[[noreturn]] inline void refuse_graph(const Worker& worker, const GradientSlot& slot) {
  throw ConfigError{compose(
      "prepare_model on rank {}/{}: the parameter \"{}\" has got another shape, {} instead of [{}], and "
      "something that was computed with it before, such as a loss, still exists: let that go out of scope first",
      worker.rank(), worker.world_size(), slot.name, shape_of(slot.parameter), joined(slot.shape, ", "))};
}

[[noreturn]] inline void refuse_create_graph(const Worker& worker, const GradientSlot& slot) {
  throw ConfigError{
      compose("backward(create_graph=true) reached the parameter \"{}\" of a prepared model on rank "
              "{}/{}: an averaged gradient cannot be differentiated. For a gradient penalty use "
              "torch::autograd::grad(..., create_graph=true) and a plain backward() of the penalty",
              slot.name, worker.rank(), worker.world_size())};
}

[[noreturn]] inline void refuse_newcomer(const Worker& worker, const std::string& name) {
  throw ConfigError{
      compose("the parameter \"{}\" has come into a prepared model since prepare_model() on rank {}/{}, so its "
              "gradients would not be averaged: build the model before prepare_model(), or call "
              "prepare_model(worker, model) again after changing it",
              name, worker.rank(), worker.world_size())};
}

[[noreturn]] inline void refuse_new_buffer(const Worker& worker, const std::string& name) {
  throw ConfigError{compose(
      "the buffer \"{}\" has come into a prepared model since prepare_model() on rank {}/{}, so it would not be "
      "kept equal as ModelOptions::buffers asks: build the model before prepare_model(), or call "
      "prepare_model(worker, model) again after changing it",
      name, worker.rank(), worker.world_size())};
}

[[noreturn]] inline void refuse_repeat(const Worker& worker, const GradientSlot& slot, std::uint64_t step) {
  throw ConfigError{compose(
      "backward() on rank {}/{}: the parameter \"{}\" got more of its gradient in step {} after that was exchanged; "
      "until now it came in one part. Set ModelOptions::overlap to off where checkpointing computes a parameter's "
      "gradient in several parts",
      worker.rank(), worker.world_size(), slot.name, step)};
}

[[noreturn]] inline void refuse_second_pass(const Worker& worker, std::uint64_t step) {
  throw ConfigError{
      compose("backward() on rank {}/{} was called twice in step {}, which has several micro-batches: add the "
              "losses and call backward() once for each micro-batch",
              worker.rank(), worker.world_size(), step)};
}

// Its gradients are as many times too large as the loss was.
inline void refuse_scaled(Worker& worker, const void* optimizer, std::string_view call) {
  const auto scaling = loss_scaling_of(worker);
  if (!scaling || !scaling->are_scaled(optimizer)) return;
  throw ConfigError{
      compose("{} on rank {}/{}: the gradients are still those of a loss that a GradScaler has scaled: call "
              "scaler.unscale_(optimizer) before they are clipped, and scaler.step(optimizer) for the update",
              call, worker.rank(), worker.world_size())};
}

// Between the micro-batches of a step somebody has dropped their gradients, or gone on with a part of them.
[[noreturn]] inline void refuse_touched(const Worker& worker, const GradientSlot& slot, std::string_view what,
                                        std::uint64_t step) {
  throw ConfigError{
      compose("the {} of \"{}\" was changed between two micro-batches of step {} on rank {}/{}: call zero_grad(), "
              "clip_grad_norm_() and the optimizer's step() once in a step, after its last micro-batch: "
              "if (!batch.completes_step()) continue;",
              what, slot.name, step, worker.rank(), worker.world_size())};
}

// The gradients of a divided optimizer are still those of the step before, or none.
[[noreturn]] inline void refuse_early(const Worker& worker, std::string_view call, std::uint64_t step) {
  throw ConfigError{compose(
      "{} on rank {}/{}: step {} goes on with another micro-batch, after which its gradients are averaged: call "
      "zero_grad(), clip_grad_norm_() and the optimizer's step() once in a step, after its last micro-batch: "
      "if (!batch.completes_step()) continue;",
      call, worker.rank(), worker.world_size(), step)};
}

[[noreturn]] inline void refuse_unfinished(const Worker& worker, std::uint64_t step, const CollectiveError& error) {
  throw CollectiveError{
      error.operation(), error.rank(), error.blamed(),
      compose("backward() on rank {}/{} exchanges gradients in step {} and could not finish: {}. All ranks must call "
              "backward() equally often; a loss that uses no prepared parameter counts as not calling it, and so does "
              "a break or continue on one rank alone",
              worker.rank(), worker.world_size(), step, error.what())};
}

// A half type ends at 65,504, and micro-batches are weighted before they are accumulated.
inline void refuse_half(const Worker& worker, const std::vector<GradientSlot>& slots) {
  for (const GradientSlot& slot : slots) {
    if (slot.parameter.scalar_type() != at::ScalarType::Half) continue;
    throw ConfigError{
        compose("worker.samples() on rank {}/{} began a step of several micro-batches, and the parameter \"{}\" is of "
                "type f16, in which a gradient times its samples may overflow: train with bf16 or f32, or without "
                "micro-batches",
                worker.rank(), worker.world_size(), slot.name)};
  }
}

[[nodiscard]] inline std::string describe_not_finite(std::uint64_t step, const std::string& name) {
  return compose("step {}: the gradient{}, averaged over all ranks, is not finite", step,
                 name.empty() ? "" : compose(" of \"{}\"", name));
}

[[noreturn]] inline void refuse_not_finite(const Worker& worker, const std::string& what) {
  throw DataError{
      compose("{} (backward() on rank {}/{}): look for NaNs in the data, lower the learning rate or clip; or set "
              "ModelOptions::non_finite to skip or allow",
              what, worker.rank(), worker.world_size())};
}

inline void warn_of_first_skipped(Worker& worker, const std::string& what) {
  if (worker.rank() != 0) return;
  worker.warn(what + "; the step is left out on all ranks, as later ones will be without a word");
}

inline void warn_of_skipped(Worker& worker, std::uint64_t skipped, std::uint64_t steps) {
  if (worker.rank() != 0 || skipped == 0) return;
  worker.warn(skipped < steps
                  ? compose("{} of {} steps were left out, for their gradients were not finite", skipped, steps)
                  : compose("all steps, {} in number, were left out, for their gradients were not finite: nothing was "
                            "learnt. Look for NaNs in the data, lower the learning rate or clip",
                            steps));
}

// The parameter, and how many more.
[[nodiscard]] inline std::string name_with_others(const std::string& first, std::size_t count) {
  if (count == 1) return compose("the parameter \"{}\"", first);
  return compose("the parameter \"{}\" and {} other{}", first, count - 1, count == 2 ? "" : "s");
}

// In the same words on all ranks that have not used it, so that they are told once.
inline void warn_of_unused(Worker& worker, const std::string& first, std::size_t count, std::uint32_t num_using,
                           std::uint64_t step) {
  worker.warn(
      compose("step {}: {} got a gradient on {} of {} ranks alone: on the others it counts as zero, in this "
              "step and, without a word, in later ones",
              step, name_with_others(first, count), num_using, worker.world_size()));
}

inline void warn_of_untrained(Worker& worker, const std::vector<GradientSlot>& slots) {
  if (worker.rank() != 0) return;
  const auto is_untrained = [](const GradientSlot& slot) {
    return slot.parameter.requires_grad() && !slot.was_trained;
  };
  const auto first = std::find_if(slots.begin(), slots.end(), is_untrained);
  if (first == slots.end()) return;
  const auto count = static_cast<std::size_t>(std::count_if(first, slots.end(), is_untrained));
  worker.warn(
      compose("{} got a gradient in no step, so nothing was learnt there: use it in the loss, or freeze it by "
              "set_requires_grad(false)",
              name_with_others(first->name, count)));
}

inline void warn_of_sparse(Worker& worker, const GradientSlot& slot, std::uint64_t step) {
  worker.warn(
      compose("step {}: the gradient of \"{}\" is sparse, and is made dense to be averaged, which costs time and "
              "memory for all of its rows, in later steps as well",
              step, slot.name));
}

// All models of a worker are exchanged together, so the options of one are those of all.
inline void refuse_other_options(const Worker& worker, const ModelOptions& before, const ModelOptions& now) {
  const std::string first = describe(before);
  const std::string second = describe(now);
  if (first == second) return;
  throw ConfigError{
      compose("prepare_model on rank {}/{}: another prepared model, or a prepared optimizer, goes by the ModelOptions "
              "{}; this call gives {}. All models of a worker are exchanged together: give the same to each",
              worker.rank(), worker.world_size(), first, second)};
}

}  // namespace detail

}  // namespace railyard::inline v0_1
