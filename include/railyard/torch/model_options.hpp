// SPDX-License-Identifier: MIT
// What prepare_model() can be told. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstdint>

namespace railyard::inline v0_1 {

/// Says what happens when an averaged gradient is not finite (NaN, or an overflow), which all ranks see alike.
enum class NonFinite : std::uint8_t {
  skip,   ///< every gradient becomes undefined on all ranks, so that the optimizer leaves the step out; counted
  stop,   ///< backward() throws on all ranks
  allow,  ///< it stays, as in a loop without Railyard
};

/// Says how the gradients of a prepared model are exchanged. Equal on all ranks.
struct ModelOptions {
  NonFinite non_finite = NonFinite::skip;
};

}  // namespace railyard::inline v0_1
