// SPDX-License-Identifier: MIT
// Makes every BatchNorm of a model normalise over the batches of all workers. Torch room.
#pragma once

#include "railyard/torch/batch_norm.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Lets modules hold their worker weakly: they may outlive it.
struct JoinedNorms {
  static constexpr std::string_view extension_name = "torch.joined_norms";
  std::shared_ptr<Worker> worker{};  // owns nothing
};

[[nodiscard]] inline std::weak_ptr<Worker> weak_worker(Worker& worker) {
  auto& joined = worker.extension<JoinedNorms>();
  if (!joined.worker) joined.worker = std::shared_ptr<Worker>(std::make_shared<int>(), &worker);
  return joined.worker;
}

// Finds what has to be done to a tree of modules before anything of it is done: a model is changed whole or not at all.
class NormPlan {
 public:
  explicit NormPlan(torch::nn::Module& root) {
    visit(root, "", nullptr);
    for (const Place& place : places_) {
      // One reference is the container's, one its dictionary's; whoever has another would go on using a module that
      // is not synchronised.
      if (place.plain.use_count() > 2 * mentions_.at(place.identity)) refuse(place.path, held_elsewhere);
    }
  }

  // Empty, or what cannot be synchronised and why: one line each.
  [[nodiscard]] const std::string& refusals() const noexcept { return refusals_; }

  std::size_t apply(const std::weak_ptr<Worker>& worker) {
    for (const Place& place : places_) {
      auto& made = made_[place.identity];
      if (!made.pointer) made = place.make(*place.plain.lock(), worker, place.path);
      place.container->replace_module(place.key, made.pointer);
      *(place.container->begin() + static_cast<std::ptrdiff_t>(place.index)) = made.any;
    }
    for (const auto& join : joins_) join(worker);
    return made_.size() + joins_.size();
  }

 private:
  using Sequential = torch::nn::SequentialImpl;
  static constexpr std::string_view held_elsewhere =
      "is in a Sequential and held by something else as well, which would go on with a BatchNorm of its own: build it "
      "inside the Sequential alone, or as ry::nn::BatchNorm1d, 2d or 3d";

  struct Made {
    std::shared_ptr<torch::nn::Module> pointer{};
    torch::nn::AnyModule any{};
  };

  // A plain BatchNorm inside a Sequential, which calls whatever lies there.
  struct Place {
    std::shared_ptr<Sequential> container{};
    std::size_t index = 0;
    std::string key{};
    std::string path{};
    std::weak_ptr<torch::nn::Module> plain{};
    const torch::nn::Module* identity = nullptr;
    Made (*make)(torch::nn::Module& plain, const std::weak_ptr<Worker>& worker, const std::string& path) = nullptr;
  };

  template <std::size_t D, class Plain>
  [[nodiscard]] static Made make(torch::nn::Module& module, const std::weak_ptr<Worker>& worker,
                                 const std::string& path) {
    const auto& plain = dynamic_cast<Plain&>(module);
    auto norm = std::make_shared<nn::BatchNormImpl<D>>(plain.options);
    norm->adopt(plain);
    norm->join(worker, path);
    return {norm, torch::nn::AnyModule(norm)};
  }

  void refuse(const std::string& path, std::string_view why) {
    refusals_ += compose("\n  {} {}", path.empty() ? "the model itself" : path, why);
  }

  template <std::size_t D>
  [[nodiscard]] bool plan_join(torch::nn::Module& module, const std::string& path) {
    auto* norm = dynamic_cast<nn::BatchNormImpl<D>*>(&module);
    if (norm == nullptr) return false;
    if (++mentions_[norm] == 1) joins_.push_back([norm, path](const auto& worker) { norm->join(worker, path); });
    return true;
  }

  template <std::size_t D, class Plain>
  [[nodiscard]] bool plan_replacement(torch::nn::Module& module, const std::string& path, const Place* place) {
    if (dynamic_cast<Plain*>(&module) == nullptr) return false;
    if (place == nullptr) {
      refuse(path, compose("is a torch::nn::BatchNorm{}d that its parent calls by its own type: declare and build "
                           "it as ry::nn::BatchNorm{}d, with the same options",
                           D, D));
    } else if (typeid(module) != typeid(Plain)) {
      refuse(path, "is of a class derived from LibTorch's BatchNorm, whose forward() is not known");
    } else {
      ++mentions_[&module];
      places_.push_back(*place);
      places_.back().make = &NormPlan::make<D, Plain>;
    }
    return true;
  }

  void visit(torch::nn::Module& module, const std::string& path, const Place* place) {
    if (plan_join<1>(module, path) || plan_join<2>(module, path) || plan_join<3>(module, path) ||
        plan_replacement<1, torch::nn::BatchNorm1dImpl>(module, path, place) ||
        plan_replacement<2, torch::nn::BatchNorm2dImpl>(module, path, place) ||
        plan_replacement<3, torch::nn::BatchNorm3dImpl>(module, path, place)) {
      return;
    }
    if (++mentions_[&module] > 1) return;  // a part that several others share
    const bool is_sequential = dynamic_cast<Sequential*>(&module) != nullptr;
    std::size_t index = 0;
    for (const auto& child : module.named_children()) {
      const std::string child_path = path.empty() ? child.key() : path + "." + child.key();
      Place inside{.index = index++,
                   .key = child.key(),
                   .path = child_path,
                   .plain = child.value(),
                   .identity = child.value().get()};
      if (is_sequential) inside.container = std::dynamic_pointer_cast<Sequential>(module.shared_from_this());
      visit(*child.value(), child_path, is_sequential ? &inside : nullptr);
    }
  }

  std::string refusals_{};
  std::vector<Place> places_{};
  std::vector<std::function<void(const std::weak_ptr<Worker>&)>> joins_{};
  std::unordered_map<const torch::nn::Module*, long> mentions_{};
  std::unordered_map<const torch::nn::Module*, Made> made_{};
};

}  // namespace detail

/// Makes every BatchNorm of a model normalise, in training, over the batches of all ranks: outputs, gradients and
/// running statistics become those of one worker on the global batch. See nn::BatchNormImpl for what that means.
/// Returns how many there are.
///
/// LibTorch's modules are called by their own type (norm->forward(x)), so a BatchNorm cannot be exchanged behind a
/// member's back. What can be synchronised: members declared as ry::nn::BatchNorm1d, 2d or 3d, and
/// torch::nn::BatchNorm* inside a torch::nn::Sequential, which are replaced (parameters stay the same tensors; typed
/// access such as sequential->ptr<torch::nn::BatchNorm2dImpl>(1) then throws). Everything else is refused, and nothing
/// is changed. A member that is registered nowhere, and functional::batch_norm, are not seen.
///
/// Called on all ranks, inside the factory or after prepare_model(). Models that clone() makes are synchronised as
/// well. Throws: ConfigError that names every BatchNorm that cannot be synchronised. Example: auto net =
/// ry::prepare_model(worker, [] { return Net(); }); ry::sync_batch_norm(worker, net);
template <class Model>
std::size_t sync_batch_norm(Worker& worker, Model& model) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
    detail::NormPlan plan{model};
    if (!plan.refusals().empty()) {
      throw ConfigError{
          detail::compose("sync_batch_norm on rank {}/{}: these cannot be synchronised, so nothing was "
                          "changed:{}",
                          worker.rank(), worker.world_size(), plan.refusals())};
    }
    return plan.apply(detail::weak_worker(worker));
  } else {
    auto* module = [&] {
      if constexpr (torch::detail::is_module_holder<std::remove_const_t<Model>>::value) {
        return model.is_empty() ? nullptr : model.ptr().get();
      } else {
        return model.get();
      }
    }();
    if (module == nullptr) {
      throw ConfigError{
          detail::compose("sync_batch_norm on rank {}/{} was given an empty model: give one that was built",
                          worker.rank(), worker.world_size())};
    }
    return sync_batch_norm(worker, static_cast<torch::nn::Module&>(*module));
  }
}

}  // namespace railyard::inline v0_1
