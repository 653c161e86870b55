// SPDX-License-Identifier: MIT
// How gradients are summed over the ranks where bandwidth is dear: exactly, in half precision, or by a type of one's
// own. Torch room.
#pragma once

#include "railyard/torch/tensor.hpp"

#include "railyard/callbacks/detail/number.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace railyard::inline v0_1 {

/// Is a piece of the gradients that is summed at once: the same piece, at the same place of the order, on all ranks.
struct GradientBucket {
  /// Contiguous, f32 or f64: this rank's gradients, each already times the rank's share of the step's samples, so that
  /// the sum over all ranks is the mean. Zeros where it has none.
  at::Tensor flat{};
  /// Views into flat, one per parameter, in the parameter's shape (with a last dimension of 2 for a complex one).
  std::span<const at::Tensor> parts{};
  /// What each part is called from step to step, however the gradients are divided into buckets.
  std::span<const std::size_t> ids{};
};

/// Is a way to sum gradients over the ranks.
///
/// Checked: it can be copied, and all_reduce(worker, bucket) leaves the sum, or what stands for it, in bucket.flat.
/// Laws:
/// 1. Afterwards flat has equal bits on all ranks.
/// 2. All ranks make the same collectives, whatever values each of them has.
/// 3. What is not finite on any rank is not finite in the sum, and is forgotten by the next step.
/// 4. It adds up to the exact sum: over many steps of one gradient the mean of the sums tends to it, or is off by the
///    rounding of the type that travels.
/// 5. A copy shares nothing with its original: workers that are threads have one each.
template <class H>
concept CommHook = std::copy_constructible<H> && requires(H& hook, Worker& worker, const GradientBucket& bucket) {
  { hook.all_reduce(worker, bucket) } -> std::same_as<void>;
};

/// Is a CommHook that remembers something from step to step, which a run that is resumed goes on with.
///
/// Law: after load_state(worker, state) of what state(worker) has returned on each rank, with pieces put together, it
/// goes on as the saved one. On another number of ranks laws 1 to 4 hold all the same.
template <class H>
concept StatefulCommHook = CommHook<H> && requires(H& hook, const H& saved, Worker& worker, const State& state) {
  { saved.state(worker) } -> std::convertible_to<State>;
  hook.load_state(worker, state);
};

/// Sums exactly: what happens without a hook, and what others are compared with.
struct ExactHook {
  /// Cost: one all-reduce of flat.
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    worker.all_reduce(buffer_of(bucket.flat), ReduceOp::sum);
  }
};
static_assert(CommHook<ExactHook>);

/// Sends bfloat16, the range of f32 with 8 bits: each value is rounded before and after the sum, which is made in f32.
/// The error is at most 2^-7 of the sum of the ranks' absolute values.
struct Bf16Hook {
  /// Cost: one all-reduce of half the bytes (f64: a quarter), and a pass to convert each way.
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    const at::NoGradGuard no_grad;
    const at::Tensor small = bucket.flat.to(at::ScalarType::BFloat16);
    worker.all_reduce(buffer_of(small), ReduceOp::sum);
    bucket.flat.copy_(small);
  }
};
static_assert(CommHook<Bf16Hook>);

/// Sends float16, which has 11 bits and little range: the bucket is scaled by a power of two, the same on all ranks,
/// such that the largest possible sum just fits (no overflow, FAULTS D11) and small values keep their digits (D12).
/// The error is at most 2^-10 of the sum of the ranks' absolute values, and of the order of 2^-39 of world size x
/// largest value.
struct F16Hook {
  /// Cost: one all-reduce of one f64, one of half the bytes (f64: a quarter), and three passes.
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    const at::NoGradGuard no_grad;
    double largest = bucket.flat.numel() == 0 ? 0.0 : bucket.flat.abs().max().item<double>();
    if (!detail::is_finite(largest)) largest = std::numeric_limits<double>::infinity();  // max need not keep a NaN
    worker.all_reduce(buffer_of_value(largest), ReduceOp::max);
    const double scale = scale_for(largest * worker.world_size());
    const at::Tensor small = bucket.flat.mul(scale).to(at::ScalarType::Half);
    worker.all_reduce(buffer_of(small), ReduceOp::sum);
    bucket.flat.copy_(small).div_(scale);
  }

  /// Returns the power of two that takes `largest` to between 2^14 and 2^15, which f16 still holds.
  [[nodiscard]] static double scale_for(double largest) {
    if (largest == 0 || !detail::is_finite(largest)) return 1;
    return std::ldexp(1.0, std::clamp(15 - (std::ilogb(largest) + 1), -120, 120));
  }
};
static_assert(CommHook<F16Hook>);

/// Holds any CommHook, or none, which is an exact sum. A copy is a copy of what it holds.
class AnyCommHook {
 public:
  AnyCommHook() = default;
  template <class H>
  requires(!std::same_as<std::remove_cvref_t<H>, AnyCommHook>) && CommHook<std::decay_t<H>> AnyCommHook(H&& hook)
      : held_(std::make_unique<Holder<std::decay_t<H>>>(std::forward<H>(hook))) {}
  AnyCommHook(const AnyCommHook& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}
  AnyCommHook(AnyCommHook&&) noexcept = default;
  AnyCommHook& operator=(const AnyCommHook& other) { return *this = AnyCommHook{other}; }
  AnyCommHook& operator=(AnyCommHook&&) noexcept = default;
  ~AnyCommHook() = default;

  /// Says whether there is a hook.
  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }

  /// Returns the name of the type that it holds, "none" without.
  [[nodiscard]] std::string type() const { return held_ ? held_->type() : "none"; }

  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    held_ ? held_->all_reduce(worker, bucket) : ExactHook{}.all_reduce(worker, bucket);
  }

  /// What the hook remembers; nothing of one that is no StatefulCommHook.
  [[nodiscard]] State state(Worker& worker) const { return held_ ? held_->state(worker) : State{}; }
  void load_state(Worker& worker, const State& state) {
    if (held_) held_->load_state(worker, state);
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void all_reduce(Worker& worker, const GradientBucket& bucket) = 0;
    [[nodiscard]] virtual std::string type() const = 0;
    [[nodiscard]] virtual State state(Worker& worker) const = 0;
    virtual void load_state(Worker& worker, const State& state) = 0;
    [[nodiscard]] virtual std::unique_ptr<Base> copy() const = 0;
  };

  template <class H>
  struct Holder final : Base {
    template <class From>
    explicit Holder(From&& from) : hook(std::forward<From>(from)) {}
    void all_reduce(Worker& worker, const GradientBucket& bucket) override { hook.all_reduce(worker, bucket); }
    [[nodiscard]] std::string type() const override { return detail::demangled(typeid(H)); }
    [[nodiscard]] State state([[maybe_unused]] Worker& worker) const override {
      if constexpr (StatefulCommHook<H>) {
        return hook.state(worker);
      } else {
        return {};
      }
    }
    void load_state([[maybe_unused]] Worker& worker, [[maybe_unused]] const State& state) override {
      if constexpr (StatefulCommHook<H>) hook.load_state(worker, state);
    }
    [[nodiscard]] std::unique_ptr<Base> copy() const override { return std::make_unique<Holder>(hook); }
    H hook;
  };

  std::unique_ptr<Base> held_{};
};
static_assert(StatefulCommHook<AnyCommHook>);

}  // namespace railyard::inline v0_1
