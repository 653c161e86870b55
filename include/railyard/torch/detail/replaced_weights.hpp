// SPDX-License-Identifier: MIT
// Finds ranks whose weights differ since the memory of some was replaced. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/train/worker.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] inline bool has_replaced_storage(const std::vector<GradientSlot>& slots) {
  return std::any_of(slots.begin(), slots.end(),
                     [](const GradientSlot& slot) { return !slot.storage.is_of(slot.parameter); });
}

// All ranks call it when a pass has told them that one of them has replaced some; what all have replaced alike may
// stay, and what nobody has replaced is not looked at. Throws: ConfigError on all ranks if a weight is not rank 0's.
inline void compare_replaced(Worker& worker, std::vector<GradientSlot>& slots) {
  std::vector<std::int32_t> is_replaced;
  for (const GradientSlot& slot : slots) is_replaced.push_back(slot.storage.is_of(slot.parameter) ? 0 : 1);
  worker.all_reduce(buffer_of(is_replaced), ReduceOp::max);
  std::vector<std::int64_t> hashes;
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < slots.size(); ++place) {
    if (is_replaced[place] == 0) continue;
    const GradientSlot& slot = slots[place];
    hashes.push_back(static_cast<std::int64_t>(hash_of({{.name = slot.name, .tensor = slot.parameter}})));
    places.push_back(place);
  }
  const auto all = worker.world_size() > 1 ? gather_values(worker, hashes) : hashes;
  for (std::size_t entry = hashes.size(); entry < all.size(); ++entry) {
    const std::size_t index = entry % hashes.size();
    if (all[entry] == all[index]) continue;
    throw ConfigError{
        compose("backward() on rank {}/{}: the parameter \"{}\" of a prepared model has other values on rank {} than "
                "on rank 0, since weights were replaced in the middle of training (by set_data(), torch::load() or "
                ".to()): give all ranks the same, or call prepare_model(worker, model) again right after it, on all "
                "ranks, which gives them rank 0's",
                worker.rank(), worker.world_size(), slots[places[index]].name, entry / hashes.size())};
  }
  for (GradientSlot& slot : slots) slot.storage = StorageMark{slot.parameter};
}

}  // namespace detail

}  // namespace railyard::inline v0_1
