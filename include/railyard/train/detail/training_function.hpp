// SPDX-License-Identifier: MIT
// Keeps a training function of any type, move-only ones too, behind one type. Train room.
#pragma once

#include "railyard/train/worker_of.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a training function of any type.
template <class B>
class TrainingFunction {
 public:
  TrainingFunction() = default;
  TrainingFunction(const TrainingFunction&) = delete;
  TrainingFunction& operator=(const TrainingFunction&) = delete;
  virtual ~TrainingFunction() = default;

  virtual void call(WorkerOf<B>& worker) = 0;
  /// Returns a copy, or nothing if this kind of workers needs none.
  [[nodiscard]] virtual std::unique_ptr<TrainingFunction> copy() const = 0;
};

/// Is one of type F. Only where MustCopy is true, F needs a copy constructor.
template <class B, class F, bool MustCopy>
class TrainingFunctionOf final : public TrainingFunction<B> {
 public:
  template <class From>
  explicit TrainingFunctionOf(std::in_place_t /*tag*/, From&& function) : function_(std::forward<From>(function)) {}

  void call(WorkerOf<B>& worker) override { static_cast<void>(std::invoke(function_, worker)); }
  [[nodiscard]] std::unique_ptr<TrainingFunction<B>> copy() const override {
    if constexpr (MustCopy) {
      return std::make_unique<TrainingFunctionOf>(std::in_place, function_);
    } else {
      return nullptr;
    }
  }

 private:
  F function_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
