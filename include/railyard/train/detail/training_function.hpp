// SPDX-License-Identifier: MIT
// Keeps a training function of any type, move-only ones too, behind one type. Train room.
#pragma once

#include "railyard/train/worker_of.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"

#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
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

  /// Is there nothing to be called, as in an empty std::function, or a null pointer?
  [[nodiscard]] virtual bool is_empty() const = 0;
  virtual void call(WorkerOf<B>& worker) = 0;
  /// Returns a copy, or nothing if this kind of workers needs none. Throws: ConfigError if its copy constructor does.
  [[nodiscard]] virtual std::unique_ptr<TrainingFunction> copy() const = 0;
};

/// Is one of type F. Only where MustCopy is true, F needs a copy constructor.
template <class B, class F, bool MustCopy>
class TrainingFunctionOf final : public TrainingFunction<B> {
 public:
  template <class From>
  explicit TrainingFunctionOf(std::in_place_t /*tag*/, From&& function) : function_(std::forward<From>(function)) {}

  [[nodiscard]] bool is_empty() const override {
    if constexpr (std::is_pointer_v<F> || std::is_member_pointer_v<F>) {
      return function_ == nullptr;
    } else if constexpr (requires { static_cast<bool>(function_.operator bool()); }) {  // unlike a lambda's pointer
      return !static_cast<bool>(function_.operator bool());
    } else {
      return false;
    }
  }
  void call(WorkerOf<B>& worker) override { static_cast<void>(std::invoke(function_, worker)); }
  [[nodiscard]] std::unique_ptr<TrainingFunction<B>> copy() const override {
    if constexpr (MustCopy) {
      try {
        return std::make_unique<TrainingFunctionOf>(std::in_place, function_);
      } catch (...) {
        throw ConfigError{
            compose("copying the training function, which each worker thread has its own copy of, threw: {}",
                    exit_of(std::current_exception()).message)};
      }
    } else {
      return nullptr;
    }
  }

 private:
  F function_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
