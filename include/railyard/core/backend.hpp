// SPDX-License-Identifier: MIT
// The concept of a collective backend, built from named parts. Core room.
#pragma once

#include "railyard/core/buffer.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <concepts>
#include <memory>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {

/// Names the queue of a device on which an operation is ordered: a cudaStream_t for NCCL, nothing on CPUs.
struct Stream {
  void* handle = nullptr;
};

/// Goes with every collective: when to give up, and behind which work of the device to start.
struct Call {
  Deadline deadline = Deadline::after(std::chrono::minutes{10});
  Stream stream{};
};

/// Is an operation that has been started. wait() returns when the buffers may be used by the host again, or throws
/// CollectiveError. A GPU backend returns at once and orders the work on the stream; a CPU backend is done on return.
template <class W>
concept Work = std::movable<W> && requires(W& work, const Deadline& deadline) {
  { work.is_done() } -> std::convertible_to<bool>;
  work.wait(deadline);
};

/// Is the Work of every backend that has finished when its call returns.
struct FinishedWork {
  [[nodiscard]] static constexpr bool is_done() noexcept { return true; }
  static constexpr void wait(const Deadline& /*deadline*/) noexcept {}
};
static_assert(Work<FinishedWork>);

/// Can be built: has a name, a reach, a kind of memory, options, and joins the group through a store. check() throws
/// ConfigError that names the option if the options cannot work on this host; it starts nothing.
template <class B>
concept ConnectingBackend = requires(const typename B::Options& options, const World& world, Store& store,
                                     const Deadline& deadline) {
  { B::name } -> std::convertible_to<std::string_view>;
  { B::reach } -> std::convertible_to<Reach>;
  { B::device_kind } -> std::convertible_to<DeviceKind>;
  B::check(options);
  { B::connect(options, world, store, deadline) } -> std::same_as<std::unique_ptr<B>>;
}
&&std::default_initializable<typename B::Options>;

/// Combines the values of all ranks.
template <class B>
concept ReducingBackend = requires(B& backend, Buffer out, ConstBuffer in, ReduceOp op, const Call& call) {
  { backend.all_reduce(out, op, call) } -> Work;
  { backend.reduce_scatter(in, out, op, call) } -> Work;
};

/// Moves values between all ranks.
template <class B>
concept MovingBackend = requires(B& backend, Buffer out, ConstBuffer in, std::span<const std::size_t> counts, int root,
                                 const Call& call) {
  { backend.broadcast(out, root, call) } -> Work;
  { backend.all_gather(in, out, call) } -> Work;
  { backend.all_gather_uneven(in, out, counts, call) } -> Work;
  { backend.gather(in, out, root, call) } -> Work;
  { backend.scatter(in, out, root, call) } -> Work;
  { backend.all_to_all(in, out, call) } -> Work;
  { backend.barrier(call) } -> Work;
};

/// Moves values between two ranks.
template <class B>
concept PairingBackend = requires(B& backend, Buffer out, ConstBuffer in, int peer, const Call& call) {
  { backend.send(in, peer, call) } -> Work;
  { backend.receive(out, peer, call) } -> Work;
};

/// Can be given up: every wait on this rank ends.
template <class B>
concept AbortableBackend = requires(B& backend, std::string_view reason) {
  { backend.abort(reason) }
  noexcept;
};

/// Is how the tensors of all ranks are combined. One object per rank and group; it is used by one thread at a time,
/// only abort() may come from any thread.
///
/// Laws, each of them checked by the conformance suite:
///  1. connect() returns on every rank or throws CollectiveError on every rank that is alive, by the deadline.
///  2. Operations are matched in the order in which each rank calls them. All ranks call the same operation with the
///  same
///     dtype and count; whoever does not makes every rank throw CollectiveError, and the process lives on.
///  3. all_reduce(data): in place, equal bits on every rank. reduce_scatter(in, out): in.count == size * out.count,
///  rank r
///     gets slice r. Counts of 0 and a world of 1 work; average divides by the number of ranks, not of elements.
///  4. all_gather: out.count == size * in.count, rank r's part is slice r. all_gather_uneven: counts, equal on all
///  ranks,
///     says how many elements each rank gives; out.count is their sum. all_to_all: slice r of in goes to rank r.
///  5. gather and scatter: the larger buffer matters at root only. broadcast, gather, scatter: root is equal on all
///  ranks.
///  6. send and receive between two ranks are matched in order, per direction; counts are equal on both sides.
///  7. in and out do not overlap. Nothing is kept after the Work is done.
///  8. Past the deadline, or when a rank has died or left, every other rank's call throws CollectiveError that names
///  that
///     rank; later calls throw at once. abort(reason) does the same to this rank from outside, at any time, and the
///     message carries the reason.
///  9. Wrong arguments (counts that do not fit, an unknown root, a null pointer with a count) throw ConfigError before
///     anything is sent, and the group stays usable.
template <class B>
concept Backend =
    ConnectingBackend<B> && ReducingBackend<B> && MovingBackend<B> && PairingBackend<B> && AbortableBackend<B>;

}  // namespace railyard::inline v0_1
