// SPDX-License-Identifier: MIT
// How the state of LibTorch's modules, optimizers, schedulers and random numbers is saved and put back. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradients.hpp"
#include "railyard/torch/detail/optimizer_state.hpp"
#include "railyard/torch/detail/tensor_state.hpp"
#include "railyard/torch/detail/worker_gpu.hpp"
#include "railyard/torch/prepare_model.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#endif

#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] inline State module_state(const torch::nn::Module& module) {
  State state;
  for (const NamedTensor& named : tensors_of(module)) {
    if (!named.tensor.defined()) continue;
    if (named.tensor.is_complex()) state.values.set("complex." + named.name, true);
    state.tensors.push_back(whole_state(named.name, named.tensor));
  }
  return state;
}

// Writes a saved tensor to where a module's is: of weights that ranks share, this rank's piece.
inline void put_tensor(const SavedTensor& saved, const at::Tensor& target) {
  const auto piece = GradientExchange::piece_of(target);
  if (!piece || piece->has_whole_weights) return saved.read_into(target);
  if (!piece->is_empty()) saved.read_piece(target, piece->begin, piece->end, piece->weights);
}

inline void put_module_state(torch::nn::Module& module, const State& state) {
  const at::NoGradGuard no_grad;
  UnreadTensors unread{state};
  std::vector<std::pair<SavedTensor, at::Tensor>> fitting;
  std::vector<std::string> problems;
  for (const NamedTensor& named : tensors_of(module)) {
    if (!named.tensor.defined()) continue;
    const StateTensor* tensor = unread.take(named.name);
    if (tensor == nullptr) {
      problems.push_back(compose("\"{}\" {} was not saved", named.name, shape_of(named.tensor)));
      continue;
    }
    const SavedTensor saved = saved_rows(*tensor);
    const bool was_complex = state.values.find("complex." + named.name) != nullptr;
    if (saved.fits(as_real(named.tensor.detach())) && was_complex == named.tensor.is_complex()) {
      fitting.emplace_back(saved, named.tensor);
    } else {
      problems.push_back(compose("\"{}\" was saved as {}{} and is {} here", named.name, saved.text(),
                                 was_complex ? " (of complex numbers)" : "", shape_of(named.tensor)));
    }
  }
  unread.name_surplus(problems);
  if (!problems.empty()) {
    throw ConfigError{
        compose("the saved state of a module does not fit it: {}. Nothing was changed. Build the module "
                "as it was when it was saved, or begin without its state",
                joined(problems, "; "))};
  }
  for (const auto& [saved, target] : fitting) put_tensor(saved, target);
}

// The module that a model is, or holds.
template <class T>
[[nodiscard]] auto& module_in(T& model) {
  if constexpr (IsModule<std::remove_const_t<T>>) {
    return model;
  } else {
    const bool is_empty = [&] {
      if constexpr (IsModuleHolder<std::remove_const_t<T>>) {
        return model.is_empty();
      } else {
        return model == nullptr;
      }
    }();
    if (is_empty)
      throw ConfigError{"an empty module holder or pointer has no state: give a module that has been built"};
    return *model;
  }
}

// LibTorch keeps this number to its derived classes.
struct StepCount : torch::optim::LRScheduler {
  static constexpr auto member() noexcept { return &StepCount::step_count_; }
};

inline void add_generator(State& state, std::string_view name, at::Generator generator) {
  const std::lock_guard lock{generator.mutex()};
  state.is_own = true;
  state.tensors.push_back(whole_state(std::string{name}, generator.get_state()));
}

inline void put_generator(at::Generator generator, const State& state, std::string_view name) {
  const StateTensor* saved = state.find_tensor(name);
  if (saved == nullptr) throw ConfigError{"the saved state is not that of a generator of random numbers"};
  const std::lock_guard lock{generator.mutex()};
  const at::Tensor bytes = generator.get_state().clone();
  if (!saved_rows(*saved).fits(bytes)) {
    throw ConfigError{
        compose("the saved state of a generator of random numbers is {} and must be {}: it comes from "
                "another release of LibTorch or another kind of generator",
                saved_rows(*saved).text(), shape_of(bytes))};
  }
  saved_rows(*saved).read_into(bytes);
  generator.set_state(bytes);
}

}  // namespace detail

/// Saves modules, also behind a std::shared_ptr or a holder: parameters and buffers under the names that
/// named_parameters() and named_buffers() give them, frozen ones too. They are put back into the memory where they are;
/// of weights that ranks share each rank writes its piece, so that all of them are right once all ranks have done so.
/// Of buffers that ranks have each for themselves, rank 0's are saved: see ModelOptions::buffers and sync_batch_norm().
/// Throws: ConfigError that names every tensor that is missing, too many, or of another shape or type; nothing is
/// changed then.
template <detail::IsModel T>
requires(!Stateful<T>) struct StateAccess<T> {
  static State take(const T& part) { return detail::module_state(detail::module_in(part)); }
  static void put(T& part, const State& state) { detail::put_module_state(detail::module_in(part), state); }
};

/// Saves LibTorch's SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS: what they remember of each parameter, and the options
/// of each group as they are now, such as the learning rate that a scheduler has set. They win over those that the
/// optimizer was made with. Throws: ConfigError that names what differs if the optimizer has other parameters or is
/// another one; nothing is changed then.
template <detail::KnownOptimizer T>
struct StateAccess<T> {
  static State take(const T& part) {
    return detail::OptimizerState<T>::take(part, detail::parameters_of(part.param_groups()));
  }
  static void put(T& part, const State& state) {
    detail::OptimizerState<T>::put(part, detail::parameters_of(part.param_groups()), state);
  }
};

/// Saves how many steps a scheduler of LibTorch, or derived from its LRScheduler, has made; the learning rates that it
/// has set are the optimizer's. A class of one's own with more to remember has a state() and a load_state().
template <std::derived_from<torch::optim::LRScheduler> T>
requires(!Stateful<T>) struct StateAccess<T> {
  static State take(const T& part) { return {{"step_count", part.*detail::StepCount::member()}}; }
  static void put(T& part, const State& state) {
    part.*detail::StepCount::member() = static_cast<unsigned>(state.at("step_count").as<std::int64_t>());
  }
};

#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)  // LibTorch 2
namespace detail {

// What LibTorch keeps to itself, and offers no way to save. An explicit instantiation is where C++ lets anybody name a
// private member.
struct PlateauMembers {
  float torch::optim::ReduceLROnPlateauScheduler::*best{};
  int torch::optim::ReduceLROnPlateauScheduler::*num_bad_epochs{};
  int torch::optim::ReduceLROnPlateauScheduler::*cooldown_counter{};
  int torch::optim::ReduceLROnPlateauScheduler::*last_epoch{};
};
[[nodiscard]] inline PlateauMembers plateau_members();
template <auto best, auto num_bad_epochs, auto cooldown_counter, auto last_epoch>
struct OpenPlateau {
  friend PlateauMembers plateau_members() { return {best, num_bad_epochs, cooldown_counter, last_epoch}; }
};
template struct OpenPlateau<
    &torch::optim::ReduceLROnPlateauScheduler::best, &torch::optim::ReduceLROnPlateauScheduler::num_bad_epochs,
    &torch::optim::ReduceLROnPlateauScheduler::cooldown_counter, &torch::optim::ReduceLROnPlateauScheduler::last_epoch>;

}  // namespace detail

/// Saves what LibTorch's ReduceLROnPlateauScheduler knows of the metric so far.
template <>
struct StateAccess<torch::optim::ReduceLROnPlateauScheduler> {
  static State take(const torch::optim::ReduceLROnPlateauScheduler& part) {
    const detail::PlateauMembers members = detail::plateau_members();
    return {{"best", part.*members.best},
            {"num_bad_epochs", part.*members.num_bad_epochs},
            {"cooldown_counter", part.*members.cooldown_counter},
            {"last_epoch", part.*members.last_epoch}};
  }
  static void put(torch::optim::ReduceLROnPlateauScheduler& part, const State& state) {
    const detail::PlateauMembers members = detail::plateau_members();
    const auto integer = [&](const char* name) { return static_cast<int>(state.at(name).as<std::int64_t>()); };
    part.*members.best = static_cast<float>(state.at("best").number());
    part.*members.num_bad_epochs = integer("num_bad_epochs");
    part.*members.cooldown_counter = integer("cooldown_counter");
    part.*members.last_epoch = integer("last_epoch");
  }
};
#endif

/// Saves a generator of random numbers; each rank has its own.
template <>
struct StateAccess<at::Generator> {
  static State take(const at::Generator& part) {
    State state;
    detail::add_generator(state, "generator", part);
    return state;
  }
  static void put(at::Generator& part, const State& state) { detail::put_generator(part, state, "generator"); }
};

/// Is what dropout and torch::rand() draw from: LibTorch's default generator on CPUs, of which each process has one,
/// and that of the worker's GPU. Workers that are threads share the former and draw by turns that nobody can foresee,
/// so that only processes go on with equal numbers of CPUs. Example: ry::TorchRandom random; and a part {"random",
/// random} of the state.
class TorchRandom {
 public:
  [[nodiscard]] State state() const {
    State state;
    detail::add_generator(state, "generator", at::detail::getDefaultCPUGenerator());
    if (const auto gpu = detail::gpu_of_thread()) {
      detail::add_generator(state, "gpu_generator", at::globalContext().defaultGenerator(*gpu));
    }
    return state;
  }
  /// The part of a GPU is put back where there is one both times.
  void load_state(const State& state) {
    detail::put_generator(at::detail::getDefaultCPUGenerator(), state, "generator");
    const auto gpu = detail::gpu_of_thread();
    if (gpu && state.find_tensor("gpu_generator") != nullptr) {
      detail::put_generator(at::globalContext().defaultGenerator(*gpu), state, "gpu_generator");
    }
  }
};
static_assert(Stateful<TorchRandom>);

}  // namespace railyard::inline v0_1
