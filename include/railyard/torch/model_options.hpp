// SPDX-License-Identifier: MIT
// What prepare_model() can be told. Torch room.
#pragma once

#include "railyard/torch/buffer_sync.hpp"
#include "railyard/torch/comm_hook.hpp"

#include "railyard/core/detail/compose.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace railyard::inline v0_1 {

/// Says what happens when an averaged gradient is not finite (NaN, or an overflow), which all ranks see alike. With a
/// GradScaler an overflow is nothing to tell of, or to stop for, unless it goes on. On a GPU `skip` and `stop` have the
/// host wait, once in each backward pass, until the device has come to its end: an optimizer that is to leave a step
/// out must know before it begins. With `allow`, and without a GradScaler, the host waits for nothing.
enum class NonFinite : std::uint8_t {
  /// Every gradient becomes undefined on all ranks, so that the optimizer leaves the step out, and the running
  /// statistics of normalising modules go back to what they were when samples() began the step. StepTimes::skipped
  /// counts such steps, and Result::warnings() tells of them.
  skip,
  stop,   ///< backward() throws on all ranks
  allow,  ///< it stays, as in a loop without Railyard
};

/// Says whether gradients are exchanged while the backward pass goes on: by a thread of its own for each worker, or on
/// a GPU by a stream of its own.
enum class Overlap : std::uint8_t {
  automatic,  ///< on GPUs; on CPUs where there is a core for that thread, and between hosts, where the network is
              ///< waited for
  off,        ///< no: all are exchanged when the pass has ended
  on,         ///< wherever the backend and the model allow it
};

/// Says how the gradients of a prepared model are exchanged. Equal on all ranks.
struct ModelOptions {
  NonFinite non_finite = NonFinite::skip;
  /// From here on this worker's CPU tensors come from a pool (see Pool), which is also where the other ranks of the
  /// host see its gradients. false leaves LibTorch's allocator alone; gradients are then copied.
  bool memory_pool = true;
  /// What happens to buffers, such as BatchNorm's statistics, after each exchange of gradients. Those that a model has
  /// when it is prepared; with others than leave, a buffer that comes later is an error.
  BufferSync buffers = BufferSync::leave;
  /// How gradients are summed, such as Bf16Hook{}; exactly, if empty. With a hook they are copied into flat buckets,
  /// and optimizers are not divided among the ranks.
  AnyCommHook comm_hook{};
  /// Whether gradients are exchanged, bucket by bucket, as soon as all ranks have them. The same bits either way. It
  /// begins when one whole step has shown the order in which they come. Not used with a comm_hook, whose collectives
  /// would come among those of the user's own thread, by backends other than Gloo, SharedMemory and Nccl (Checked
  /// ones are others), where a model lies on the CPU in part and on a GPU in part, and where that step has shown a
  /// gradient that comes in several parts in one backward pass (re-entrant checkpointing of a shared parameter); where
  /// one does so later, backward() throws. A backward pass that ends by an exception ends the group.
  ///
  /// By Nccl, on or off, .grad of each parameter is from then on a part of a flat tensor, which stays from step to
  /// step.
  Overlap overlap = Overlap::automatic;
  /// The most bytes of gradients in a bucket, and in the first one, which is ready when the pass has barely begun. A
  /// larger parameter has a bucket to itself. Between hosts it is an eighth of all gradients (256 KiB at least) where
  /// that is less.
  std::size_t bucket_bytes = std::size_t{25} << 20U;
  std::size_t first_bucket_bytes = std::size_t{1} << 20U;
  /// Whether the ranks look, in each step, at a sixty-fourth of the weights (of those on the CPU, frozen ones as well)
  /// and backward() throws on all of them if they have other ones: something has then written to weights on some ranks
  /// alone. Of more than 2000 parameters they look at 64 or fewer, so that each has its turn later. What differs by
  /// less than about 1e-4 of the size of what is looked at (1e-2 in half types) is taken for rounding. false where
  /// weights are meant to differ.
  bool compare_weights = true;
};

namespace detail {

// What all ranks must have chosen alike, in words.
[[nodiscard]] inline std::string describe(const ModelOptions& options) {
  const auto number = [](auto option) { return static_cast<int>(option); };
  return compose(
      "non_finite {}, memory_pool {}, buffers {}, comm_hook {}, overlap {}, bucket_bytes {}, "
      "first_bucket_bytes {}, compare_weights {}",
      number(options.non_finite), number(options.memory_pool), number(options.buffers), options.comm_hook.type(),
      number(options.overlap), options.bucket_bytes, options.first_bucket_bytes, options.compare_weights);
}

}  // namespace detail

}  // namespace railyard::inline v0_1
