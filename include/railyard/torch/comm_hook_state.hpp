// SPDX-License-Identifier: MIT
// What a communication hook remembers, as a part of what checkpoints hold. Torch room.
#pragma once

#include "railyard/torch/detail/gradients.hpp"

#include "railyard/core/stateful.hpp"
#include "railyard/train/worker.hpp"

namespace railyard::inline v0_1 {

/// Is the memory of the CommHook that the prepared models of a worker use, such as what PowerSgdHook has not sent yet;
/// empty where there is no hook, or one without a memory. Made after prepare_model(); must not outlive the training
/// function. Example: ry::CommHookState comm_hook{worker}; and a part {"comm_hook", comm_hook} of the state.
class CommHookState {
 public:
  explicit CommHookState(Worker& worker) : worker_(&worker) {}

  [[nodiscard]] State state() const { return hook().state(*worker_); }
  void load_state(const State& state) { hook().load_state(*worker_, state); }

 private:
  [[nodiscard]] AnyCommHook& hook() const { return detail::gradient_exchange_of(*worker_)->comm_hook(); }

  Worker* worker_;
};
static_assert(Stateful<CommHookState>);

}  // namespace railyard::inline v0_1
