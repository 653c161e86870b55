// SPDX-License-Identifier: MIT
// What an optimizer that moves weights says of those that it cannot. Torch room.
#pragma once

#include "railyard/torch/detail/gradients.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] inline std::string name_of_weight(Worker& worker, const at::Tensor& parameter) {
  const GradientSlot* slot = gradient_exchange_of(worker)->find(parameter);
  return slot == nullptr ? "?" : slot->name;
}

// Whether a parameter can lie among others, and be cut: it has numbers of a known type, without gaps.
[[nodiscard]] inline bool is_cuttable(const at::Tensor& parameter) {
  const at::ScalarType type = parameter.scalar_type();
  const bool is_known = type == at::ScalarType::Float || type == at::ScalarType::Double ||
                        type == at::ScalarType::Half || type == at::ScalarType::BFloat16;
  return is_known && parameter.layout() == c10::kStrided && parameter.numel() > 0 &&
         parameter.is_non_overlapping_and_dense();
}

// Throws: ConfigError if something else than the parameter has its memory. where: it is about to be moved.
inline void refuse_other_owner(Worker& worker, const at::Tensor& parameter, std::string_view where) {
  // A parameter that was made as a view keeps what it is a view of.
  const std::size_t num_known = parameter.is_view() && parameter._base().use_count() == 1 ? 2 : 1;
  if (parameter.storage().use_count() <= num_known) return;
  throw ConfigError{compose(
      "prepare_optimizer on rank {}/{}: the parameter \"{}\" shares its memory with another tensor, such as a copy "
      "made by .data() or .detach(), which would not follow when the weights move {}: make it with "
      ".clone(), or call prepare_optimizer() first",
      worker.rank(), worker.world_size(), name_of_weight(worker, parameter), where)};
}

[[noreturn]] inline void refuse_replaced(Worker& worker, const at::Tensor& parameter, std::string_view where) {
  throw ConfigError{
      compose("optimizer.step() on rank {}/{}: the weights of \"{}\" have been replaced since prepare_optimizer() (by "
              "torch::load(), .to() or set_data()), so the update would not reach them: load weights before "
              "prepare_optimizer(), or copy them with copy_() {}",
              worker.rank(), worker.world_size(), name_of_weight(worker, parameter), where)};
}

// Throws: ConfigError if what an update would use holds the gradient of the step before as well.
inline void refuse_mixed(Worker& worker, const at::Tensor& parameter, const GradientPiece& piece) {
  if (!piece.is_mixed || !piece.updated().grad().defined()) return;
  throw ConfigError{compose(
      "optimizer.step() on rank {}/{}: the gradient of \"{}\" still holds that of the step before. The gradients of "
      "a prepared optimizer are divided among the ranks, so that zero_grad() of the model does not reach them: call "
      "zero_grad() of the optimizer in each step",
      worker.rank(), worker.world_size(), name_of_weight(worker, parameter))};
}

}  // namespace detail

}  // namespace railyard::inline v0_1
