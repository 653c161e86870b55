// SPDX-License-Identifier: MIT
// Keeps batches that do not count out of the running statistics of a model. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
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
  enum class Of : std::uint8_t {
    modules_on_their_own,  // those that follow no batches of other ranks
    all_modules,
  };

  void keep(const std::vector<std::weak_ptr<const torch::nn::Module>>& roots, Of modules = Of::modules_on_their_own) {
    num_kept_ = 0;
    for (const auto& root : roots) {
      if (const auto module = root.lock()) visit(*module, modules);
    }
    kept_.resize(num_kept_);
  }
  void forget() noexcept {
    kept_.clear();
    num_kept_ = 0;
  }
  [[nodiscard]] bool has_any() const noexcept { return !kept_.empty(); }

  void put_back() const {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, values] : kept_) buffer.copy_(values);
  }

 private:
  void visit(const torch::nn::Module& module, Of modules) {
    const auto* follower = dynamic_cast<const FollowsAllRanks*>(&module);
    if (modules == Of::all_modules || follower == nullptr || !follower->is_joined()) {
      // The names that all of LibTorch's normalising modules share.
      for (const auto& item : module.named_buffers(/*recurse=*/false)) {
        const std::string& name = item.key();
        if (name != "running_mean" && name != "running_var" && name != "num_batches_tracked") continue;
        if (item.value().defined()) keep(item.value());
      }
    }
    for (const auto& child : module.children()) visit(*child, modules);
  }

  // In the memory of the last time, for this is done in every step.
  void keep(const at::Tensor& buffer) {
    if (num_kept_ == kept_.size()) kept_.emplace_back();
    auto& [tensor, values] = kept_[num_kept_++];
    if (tensor.is_same(buffer) && values.scalar_type() == buffer.scalar_type() && values.sizes() == buffer.sizes() &&
        values.device() == buffer.device()) {
      copy(values, buffer);
      return;
    }
    tensor = buffer;
    values = buffer.detach().clone();
  }

  // Between tensors of a few hundred bytes, one call of an operator costs more than copying a hundred of them.
  static void copy(const at::Tensor& to, const at::Tensor& from) {
    if (from.is_cpu() && from.is_contiguous() && to.is_contiguous()) {
      if (from.numel() > 0) std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
      return;
    }
    const at::NoGradGuard no_grad;
    to.copy_(from);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> kept_{};
  std::size_t num_kept_ = 0;  // where keep() is
};

}  // namespace detail

}  // namespace railyard::inline v0_1
