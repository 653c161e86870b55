// SPDX-License-Identifier: MIT
// What prepare_model() can be told. Torch room.
#pragma once

#include "railyard/torch/buffer_sync.hpp"
#include "railyard/torch/comm_hook.hpp"

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
  /// From here on this worker's CPU tensors come from a pool (see Pool), which is also where the other ranks of the
  /// host see its gradients. false leaves LibTorch's allocator alone; gradients are then copied.
  bool memory_pool = true;
  /// What happens to buffers, such as BatchNorm's statistics, after each exchange of gradients.
  BufferSync buffers = BufferSync::leave;
  /// How gradients are summed, such as Bf16Hook{}; exactly, if empty. With a hook they are copied into flat buckets,
  /// and optimizers are not divided among the ranks.
  AnyCommHook comm_hook{};
};

}  // namespace railyard::inline v0_1
