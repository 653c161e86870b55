// SPDX-License-Identifier: MIT
// Calls a run's callbacks, whatever they throw. Train room.
#pragma once

#include "railyard/train/any_callback.hpp"
#include "railyard/train/controller.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/scaling.hpp"

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is all of them together. One that throws ends the run; the others still hear of everything.
class RunCallbacks {
 public:
  /// callbacks must outlive it. fail: told what one has thrown.
  RunCallbacks(const std::vector<AnyCallback>& callbacks, std::function<void(Failure)> fail)
      : callbacks_(&callbacks), fail_(std::move(fail)) {}

  /// hook: its name, for messages.
  template <class Call>
  void tell(std::string_view hook, const Call& call) const {
    for (const AnyCallback& callback : *callbacks_) {
      try {
        call(callback);
      } catch (...) {
        const std::string what = exit_of(std::current_exception()).message;
        fail_({.what = compose("a callback's {} threw: {}", hook, what), .kind = Failure::Kind::final});
      }
    }
  }

 private:
  const std::vector<AnyCallback>* callbacks_;
  std::function<void(Failure)> fail_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
