// SPDX-License-Identifier: MIT
// Updates weights on this rank's GPU: its part of them, in few kernels. Torch room.
#pragma once

#include "railyard/torch/detail/device_shard.hpp"
#include "railyard/torch/detail/listed_update.hpp"
#include "railyard/torch/detail/optimizer_fields.hpp"
#include "railyard/torch/detail/optimizer_state.hpp"

#include "railyard/core/buffer.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Divides what of an optimizer's parameters is on a GPU among the ranks, and makes X's updates of it. Made before X is,
// which is to have the pieces; see OptimizedTensor.
template <ElementwiseOptimizer X>
class DeviceOptimizer {
 public:
  // groups: unique parameters, which know whether they are to have copies in f32. All ranks call it with the same.
  DeviceOptimizer(Worker& worker, const OptimizedGroups& groups, std::size_t block_bytes) : block_bytes_(block_bytes) {
    Tensors cut;
    bool has_masters = false;
    for (const auto& group : groups) {
      for (const OptimizedTensor& one : group) {
        has_masters = has_masters || one.has_master;
        if (lies_in_block(worker, one)) cut.push_back(one.whole);
      }
    }
    if (!cut.empty()) shard_.emplace(worker, std::move(cut), has_masters, block_bytes);
    is_divided_ = shard_.has_value() && worker.world_size() > 1;
  }

  // Whether it is worth one: some parameters are on a GPU.
  [[nodiscard]] static bool is_for(const OptimizedGroups& groups) {
    return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
      return std::any_of(group.begin(), group.end(), [](const auto& one) { return one.whole.is_cuda(); });
    });
  }

  // Plans the updates, when the groups know their pieces and copies.
  void plan(const OptimizedGroups& groups) {
    std::unordered_set<const void*> in_blocks;
    if (shard_) {
      for (const auto& block : shard_->blocks()) {
        const std::unordered_set<const void*> members = addresses_of(block.parameters);
        block_parts_.push_back(parts_of(groups, [&members](const OptimizedTensor& one) {
          return members.contains(one.whole.unsafeGetTensorImpl());
        }));
        in_blocks.insert(members.begin(), members.end());
      }
    }
    whole_parts_ = parts_of(groups, [&in_blocks](const OptimizedTensor& one) {
      return is_listable(one.whole) && !in_blocks.contains(one.whole.unsafeGetTensorImpl());
    });
    for (const auto& group : groups) {
      for (const OptimizedTensor& one : group) has_others_ = has_others_ || !is_listable(one.whole);
    }
  }

  // Whether each rank updates a part of the weights.
  [[nodiscard]] bool is_divided() const noexcept { return is_divided_; }
  // Whether some gradients are so, once taken.
  [[nodiscard]] bool divides_gradients() const noexcept { return is_divided_ && shard_->has_masters(); }

  // Gives the gradients of weights that have a copy in f32 to that.
  void take_gradients() const {
    if (shard_) shard_->take_gradients();
  }

  // Makes one update of all that has a gradient.
  void update(X& optimizer) const {
    if (shard_) {
      for (const auto& block : shard_->blocks()) shard_->begin_update(block);
    }
    if (has_others_) update_others(optimizer);
    for (const Part& part : whole_parts_) update(optimizer, part);
    for (std::size_t at = 0; at < block_parts_.size(); ++at) {
      for (const Part& part : block_parts_[at]) update(optimizer, part);
      shard_->end_update(shard_->blocks()[at]);
    }
    if (shard_) shard_->end_updates();
  }

 private:
  // What is updated together: tensors of one group.
  struct Part {
    std::size_t group = 0;
    std::vector<OptimizedTensor> tensors{};
  };

  // Where the ranks exchange by the memory of their GPUs.
  [[nodiscard]] static bool lies_in_block(const Worker& worker, const OptimizedTensor& one) {
    return worker.device().kind == DeviceKind::cuda && one.whole.is_cuda() && one.whole.requires_grad() &&
           is_cuttable(one.whole) && (worker.world_size() > 1 || one.has_master);
  }
  [[nodiscard]] static bool is_listable(const at::Tensor& tensor) { return tensor.is_cuda() && is_cuttable(tensor); }

  [[nodiscard]] static std::unordered_set<const void*> addresses_of(const Tensors& tensors) {
    std::unordered_set<const void*> addresses;
    for (const at::Tensor& tensor : tensors) addresses.insert(tensor.unsafeGetTensorImpl());
    return addresses;
  }

  // Of those of a group that belong, as many together as a block has: what lies between two kernels takes memory, too.
  template <class Belongs>
  [[nodiscard]] std::vector<Part> parts_of(const OptimizedGroups& groups, const Belongs& belongs) const {
    std::vector<Part> parts;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      std::size_t bytes = block_bytes_;
      for (const OptimizedTensor& one : groups[group]) {
        if (!belongs(one) || !one.own().defined()) continue;
        if (bytes >= block_bytes_) {
          parts.push_back({.group = group});
          bytes = 0;
        }
        parts.back().tensors.push_back(one);
        bytes += one.own().nbytes();
      }
    }
    return parts;
  }

  static void update(X& optimizer, const Part& part) {
    std::vector<UpdatedTensor> tensors;
    for (const OptimizedTensor& one : part.tensors) {
      at::Tensor gradient = gradient_of(one);
      if (gradient.defined()) tensors.push_back({.weights = one.own(), .gradient = std::move(gradient)});
    }
    if (!tensors.empty()) update_listed(optimizer, optimizer.param_groups()[part.group].options(), tensors);
  }

  [[nodiscard]] static at::Tensor gradient_of(const OptimizedTensor& one) {
    if (one.piece) return DeviceShard::gradient_of(one.whole, *one.piece);
    const at::Tensor& gradient = one.own().grad();
    return gradient.defined() ? laid_as(one.own(), gradient) : at::Tensor{};
  }

  // Lets X update what is in no part: complex weights, and those on the CPU.
  void update_others(X& optimizer) const {
    std::vector<std::pair<at::Tensor, at::Tensor>> hidden;
    const auto hide = [&hidden](const Part& part) {
      for (const OptimizedTensor& one : part.tensors) {
        hidden.emplace_back(one.own(), one.own().grad());
        one.own().mutable_grad().reset();
      }
    };
    for (const Part& part : whole_parts_) hide(part);
    for (const auto& parts : block_parts_) std::for_each(parts.begin(), parts.end(), hide);
    optimizer.step();
    for (const auto& [tensor, gradient] : hidden) tensor.mutable_grad() = gradient;
  }

  std::size_t block_bytes_;
  std::optional<DeviceShard> shard_{};
  bool is_divided_ = false;
  std::vector<std::vector<Part>> block_parts_{};  // by block
  std::vector<Part> whole_parts_{};               // what every rank updates by itself
  bool has_others_ = false;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
