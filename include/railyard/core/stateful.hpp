// SPDX-License-Identifier: MIT
// What has a state that can be saved and put back. Core room.
#pragma once

#include "railyard/core/value.hpp"

#include <concepts>

namespace railyard::inline v0_1 {

/// Is a saved state: values by name.
using State = NamedValues;

/// Has a state. Law: after b.load_state(a.state()), a and b behave alike.
template <class T>
concept Stateful = requires(T& part, const T& saved, const State& state) {
  { saved.state() } -> std::convertible_to<State>;
  part.load_state(state);
};

}  // namespace railyard::inline v0_1
