// SPDX-License-Identifier: MIT
// Forgets the parameters of models that are gone. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/watched_models.hpp"

#include "railyard/train/worker.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Drops the models that are gone on all ranks, and the slots that nobody but the exchange knows of on any, so that a
// run which makes many models remembers few. All ranks call it. Returns whether there were such slots.
[[nodiscard]] inline bool drop_ended(Worker& worker, std::vector<GradientSlot>& slots, WatchedModels& models) {
  std::string ended = models.ended();
  const std::size_t num_models = ended.size();
  for (const GradientSlot& slot : slots) ended += slot.is_ended() ? '1' : '0';
  if (worker.world_size() > 1) {
    for (const std::string& theirs : gather_texts(worker, Topic::ended_models, ended)) {
      if (theirs.size() != ended.size()) return false;  // whoever compares the models will say so
      std::transform(ended.begin(), ended.end(), theirs.begin(), ended.begin(),
                     [](char one, char other) { return std::min(one, other); });
    }
  }
  models.forget(ended.substr(0, num_models));
  std::vector<GradientSlot> kept;
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (ended[num_models + index] == '0') kept.push_back(std::move(slots[index]));
  }
  slots.swap(kept);
  return slots.size() < kept.size();
}

}  // namespace detail

}  // namespace railyard::inline v0_1
