// SPDX-License-Identifier: MIT
// Keeps batches of weight zero out of the running statistics of a model. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Is a module that may follow the batches of all ranks; then its statistics are to move also where this rank's own
// batch counts nothing.
class FollowsAllRanks {
 public:
  FollowsAllRanks() = default;
  FollowsAllRanks(const FollowsAllRanks&) = default;
  FollowsAllRanks& operator=(const FollowsAllRanks&) = default;
  virtual ~FollowsAllRanks() = default;
  [[nodiscard]] virtual bool is_joined() const noexcept = 0;
};

// The statistics of all normalising modules under a few others, as they were before a batch.
class RunningStatistics {
 public:
  void keep(const std::vector<std::weak_ptr<const torch::nn::Module>>& roots) {
    kept_.clear();
    for (const auto& root : roots) {
      if (const auto module = root.lock()) visit(*module);
    }
  }
  void forget() noexcept { kept_.clear(); }
  [[nodiscard]] bool has_any() const noexcept { return !kept_.empty(); }

  void put_back() const {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, values] : kept_) buffer.copy_(values);
  }

 private:
  void visit(const torch::nn::Module& module) {
    const auto* follower = dynamic_cast<const FollowsAllRanks*>(&module);
    if (follower == nullptr || !follower->is_joined()) {
      // The names that all of LibTorch's normalising modules share.
      for (const auto& item : module.named_buffers(/*recurse=*/false)) {
        const std::string& name = item.key();
        if (name != "running_mean" && name != "running_var" && name != "num_batches_tracked") continue;
        if (item.value().defined()) kept_.emplace_back(item.value(), item.value().detach().clone());
      }
    }
    for (const auto& child : module.children()) visit(*child);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> kept_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
