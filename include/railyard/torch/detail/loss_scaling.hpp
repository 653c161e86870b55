// SPDX-License-Identifier: MIT
// What is known of a step whose loss was scaled. Torch room.
#pragma once

#include "railyard/train/worker.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Between two updates of a GradScaler. Optimizers are known by their addresses.
struct LossScaling {
  bool is_scaled = false;               // a loss, since the last update
  bool is_overflow = false;             // and a gradient has come of that which is not finite, on some rank: all know
  std::uint64_t step = 0;               // the last one in which that was so
  std::string parameter{};              // the first one then; empty if this rank has nothing of it
  std::vector<const void*> unscaled{};  // whose gradients have been divided by the scale
  std::vector<const void*> stepped{};

  void note_overflow(std::uint64_t at_step, const std::string& name) {
    is_overflow = true;
    step = at_step;
    parameter = name;
  }

  [[nodiscard]] static bool has(const std::vector<const void*>& optimizers, const void* optimizer) {
    return std::find(optimizers.begin(), optimizers.end(), optimizer) != optimizers.end();
  }
  // Whether the optimizer's gradients are those of the scaled loss.
  [[nodiscard]] bool are_scaled(const void* optimizer) const { return is_scaled && !has(unscaled, optimizer); }

  void begin() {
    is_scaled = is_overflow = false;
    unscaled.clear();
    stepped.clear();
  }
};

// The one that a worker has, as long as its GradScaler lives.
struct LossScalings {
  static constexpr std::string_view extension_name = "torch.loss_scaling";
  std::weak_ptr<LossScaling> current{};
  bool has_any = false;  // there is one or was
};

[[nodiscard]] inline std::shared_ptr<LossScaling> loss_scaling_of(Worker& worker) {
  return worker.extension<LossScalings>().current.lock();
}

}  // namespace detail

}  // namespace railyard::inline v0_1
