// SPDX-License-Identifier: MIT
// The prepared models of a worker: their buffers, and whether they still are what was prepared. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_refusals.hpp"

#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The same models in the same order on all ranks: one that is gone on some of them stays until it is so on all.
class WatchedModels {
 public:
  // Takes a model in, or one that is known already anew.
  void add(const torch::nn::Module& module) {
    const auto known = std::find_if(models_.begin(), models_.end(),
                                    [&module](const auto& weak) { return weak.lock().get() == &module; });
    if (known != models_.end()) erase(static_cast<std::size_t>(known - models_.begin()));
    models_.push_back(module.weak_from_this());
    buffers_of_.push_back(module.buffers());
    note_buffers();
  }

  [[nodiscard]] const std::vector<std::weak_ptr<const torch::nn::Module>>& models() const noexcept { return models_; }
  // Of all models, one after another.
  [[nodiscard]] const std::vector<at::Tensor>& buffers() const noexcept { return buffers_; }

  // '1' for each model that is gone on this rank, '0' for others.
  [[nodiscard]] std::string ended() const {
    std::string ended;
    for (const auto& weak : models_) ended += weak.expired() ? '1' : '0';
    return ended;
  }
  // Forgets those that are marked so on all ranks.
  void forget(const std::string& ended) {
    for (std::size_t index = ended.size(); index-- > 0;) {
      if (ended[index] == '1') erase(index);
    }
    note_buffers();
  }

  // Throws: ConfigError if a model has a parameter that is not in `known`, or, where buffers are kept equal, a buffer
  // that it did not have when it was prepared.
  template <class Index>
  void check(const Worker& worker, const std::unordered_map<const void*, Index>& known, bool checks_buffers) const {
    for (const auto& weak : models_) {
      const auto module = weak.lock();
      if (!module || knows_all_of(*module, known, checks_buffers)) continue;
      for (const auto& item : module->named_parameters()) {
        if (!known.contains(item.value().unsafeGetTensorImpl())) refuse_newcomer(worker, item.key());
      }
      for (const auto& item : module->named_buffers()) {
        if (!known_buffers_.contains(item.value().unsafeGetTensorImpl())) refuse_new_buffer(worker, item.key());
      }
    }
  }

 private:
  // Walks by itself and looks at the members, for named_parameters() would copy them with their names in every step.
  template <class Known>
  [[nodiscard]] bool knows_all_of(const torch::nn::Module& module, const Known& known, bool checks_buffers) const {
    struct Access : torch::nn::Module {
      static const auto& parameters_of(const torch::nn::Module& other) { return other.*(&Access::parameters_); }
    };
    for (const auto& item : Access::parameters_of(module)) {
      if (item.value().defined() && !known.contains(item.value().unsafeGetTensorImpl())) return false;
    }
    if (checks_buffers) {
      for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
        if (!known_buffers_.contains(buffer.unsafeGetTensorImpl())) return false;
      }
    }
    const auto children = module.children();
    return std::all_of(children.begin(), children.end(),
                       [&](const auto& child) { return knows_all_of(*child, known, checks_buffers); });
  }

  void erase(std::size_t index) {
    models_.erase(models_.begin() + static_cast<std::ptrdiff_t>(index));
    buffers_of_.erase(buffers_of_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void note_buffers() {
    buffers_.clear();
    known_buffers_.clear();
    for (const auto& buffers : buffers_of_) {
      for (const at::Tensor& buffer : buffers) {
        buffers_.push_back(buffer);
        known_buffers_.insert(buffer.unsafeGetTensorImpl());
      }
    }
  }

  std::vector<std::weak_ptr<const torch::nn::Module>> models_{};
  std::vector<std::vector<at::Tensor>> buffers_of_{};  // by model
  std::vector<at::Tensor> buffers_{};
  std::unordered_set<const void*> known_buffers_{};  // which buffers_ keeps alive
};

}  // namespace detail

}  // namespace railyard::inline v0_1
