// SPDX-License-Identifier: MIT
// Makes autocasting forget what it has cast. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <c10/macros/Export.h>

namespace at {
namespace autocast {
// As <ATen/autocast_mode.h> has it, which takes seconds to compile.
TORCH_API void clear_cache();
}  // namespace autocast
}  // namespace at

namespace railyard::inline v0_1 {

namespace detail {

// Inside an autocast scope LibTorch keeps the casts of weights until the outermost one is left. Where weights are
// updated inside, the next forward pass would go on with the old ones. Cost: nothing worth naming outside a scope.
inline void forget_casts() { at::autocast::clear_cache(); }

}  // namespace detail

}  // namespace railyard::inline v0_1
