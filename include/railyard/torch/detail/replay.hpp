// SPDX-License-Identifier: MIT
// Puts a thread back to where it was when something was computed, to compute it anew. Torch room.
#pragma once

#include "railyard/torch/detail/autocast_settings.hpp"

#include "railyard/core/error.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Autocasting on CPUs and GPUs, and whether it keeps the casts of weights.
struct AutocastState {
  AutocastSettings cpu = AutocastSettings::of(at::DeviceType::CPU);
  AutocastSettings cuda = AutocastSettings::of(at::DeviceType::CUDA);
  bool keeps_casts = at::autocast::is_autocast_cache_enabled();

  [[nodiscard]] bool is_enabled() const noexcept { return cpu.is_enabled || cuda.is_enabled; }
  void apply() const {
    cpu.apply(at::DeviceType::CPU);
    cuda.apply(at::DeviceType::CUDA);
    at::autocast::set_autocast_cache_enabled(keeps_casts);
  }
};

// Casts as it was done before, for as long as it lives. What is cast meanwhile belongs to a graph of its own, and so
// does what was cast around it.
class ReplayedAutocast {
 public:
  explicit ReplayedAutocast(const AutocastState& then) {
    forget_casts();
    then.apply();
    at::autocast::increment_nesting();
  }
  ReplayedAutocast(const ReplayedAutocast&) = delete;
  ReplayedAutocast& operator=(const ReplayedAutocast&) = delete;
  ~ReplayedAutocast() {
    forget_casts();
    at::autocast::decrement_nesting();
    before_.apply();
  }

 private:
  AutocastState before_{};
};

// Keeps no casts for as long as it lives: a cast of a weight that is made while gradients are off leads nowhere.
class NoKeptCasts {
 public:
  NoKeptCasts() { at::autocast::set_autocast_cache_enabled(false); }
  NoKeptCasts(const NoKeptCasts&) = delete;
  NoKeptCasts& operator=(const NoKeptCasts&) = delete;
  ~NoKeptCasts() { at::autocast::set_autocast_cache_enabled(before_); }

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

// The random numbers that a computation has drawn: of the default generator on CPUs, and those of the given GPUs.
class DrawnNumbers {
  struct Drawn {
    at::Device device;
    at::Tensor before{};
    at::Tensor after{};
  };

 public:
  // Called before the computation.
  void begin(const std::vector<at::Tensor>& inputs) {
    add(at::Device{at::kCPU});
    for (const at::Tensor& input : inputs) {
      if (input.is_cuda()) add(input.device());
    }
  }
  // Called after it. What has drawn nothing need not be replayed.
  void end() {
    std::erase_if(drawn_, [](Drawn& one) {
      one.after = state_of(one.device);
      return at::equal(one.before, one.after);
    });
  }

  // Draws the same once more, for as long as it lives.
  class Replay {
   public:
    explicit Replay(const DrawnNumbers& numbers) : drawn_(&numbers.drawn_) {
      for (const Drawn& one : *drawn_) {
        now_.push_back(state_of(one.device));
        set(one.device, one.before);
      }
    }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;
    ~Replay() {
      for (std::size_t i = 0; i < now_.size(); ++i) set((*drawn_)[i].device, now_[i]);
    }

    // Throws: ConfigError if what was drawn are other numbers. A computation that draws none may have seen another
    // thread draw.
    void check() const {
      for (const Drawn& one : *drawn_) {
        const at::Tensor end = state_of(one.device);
        if (at::equal(end, one.after) || at::equal(end, one.before)) continue;
        throw ConfigError{
            "recompute(): the function has drawn other random numbers in backward() than before, so that its gradients "
            "would be those of another dropout. Threads of a process draw from one generator: let workers be processes "
            "(ry::Processes), and let the function draw equally often each time"};
      }
    }

   private:
    const std::vector<Drawn>* drawn_;
    std::vector<at::Tensor> now_{};
  };

 private:
  void add(at::Device device) {
    const auto is_it = [&](const Drawn& one) { return one.device == device; };
    if (std::any_of(drawn_.begin(), drawn_.end(), is_it)) return;
    drawn_.push_back({.device = device, .before = state_of(device)});
  }

  [[nodiscard]] static at::Tensor state_of(at::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock{generator.mutex()};
    return generator.get_state();
  }
  static void set(at::Device device, const at::Tensor& state) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock{generator.mutex()};
    generator.set_state(state);
  }

  std::vector<Drawn> drawn_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
