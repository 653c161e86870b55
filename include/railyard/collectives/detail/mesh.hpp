// SPDX-License-Identifier: MIT
// Collectives made of messages between any two ranks, for whatever can carry such messages. Collectives room.
#pragma once

#include "railyard/collectives/detail/reduce.hpp"

#include "railyard/core/buffer.hpp"

#include <concepts>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Moves messages between the ranks in steps. Both ends of a message name the same peers and sizes in the same step. A
/// step's send() and receive() never wait, and finish() returns when all of them are done.
template <class M>
concept Mesh = requires(M& mesh, const void* from, void* to, std::size_t size_bytes, int peer) {
  { mesh.rank() } -> std::convertible_to<int>;
  { mesh.size() } -> std::convertible_to<int>;
  { mesh.scratch(size_bytes) } -> std::convertible_to<std::byte*>;
  mesh.step(from, size_bytes, to, size_bytes).send(peer, std::size_t{}, size_bytes);
  mesh.step(from, size_bytes, to, size_bytes).receive(peer, std::size_t{}, size_bytes);
  mesh.step(from, size_bytes, to, size_bytes).finish();
};

/// Up to this size, and in groups up to that, everybody sends everything to everybody: one step instead of two.
inline constexpr std::size_t direct_limit_bytes = 32 * 1024;
inline constexpr int direct_limit_ranks = 8;
/// The most that one rank reduces at a time; bounds the scratch memory to (size - 1) times as much.
inline constexpr std::size_t slice_limit_bytes = 4 * 1024 * 1024;
/// From this size on, a broadcast scatters and gathers, which takes the load off the root.
inline constexpr std::size_t tree_limit_bytes = 256 * 1024;

// The other ranks, each rank's next one first, so that not all of them write to the same one at once.
template <Mesh M, class Visit>
void for_each_peer(M& mesh, const Visit& visit) {
  for (int i = 1; i < mesh.size(); ++i) visit((mesh.rank() + i) % mesh.size());
}

[[nodiscard]] inline std::size_t index_of(int rank) noexcept { return static_cast<std::size_t>(rank); }

// Where a peer's part lies in scratch memory, which has no part of this rank's own.
[[nodiscard]] inline std::size_t place_of(int peer, int rank) noexcept {
  return index_of(peer > rank ? peer - 1 : peer);
}

/// Divides count elements among the ranks into slices of whole cache lines.
class Slices {
 public:
  Slices(std::size_t count, int size) noexcept
      : count_(count), slice_(((count + index_of(size) - 1) / index_of(size) + 63) / 64 * 64) {}
  [[nodiscard]] std::size_t begin(int rank) const noexcept { return std::min(count_, index_of(rank) * slice_); }
  [[nodiscard]] std::size_t count(int rank) const noexcept { return std::min(slice_, count_ - begin(rank)); }

 private:
  std::size_t count_;
  std::size_t slice_;
};

/// Combines this rank's part with the peers' parts in scratch, in the order of ranks.
template <Mesh M>
void reduce_parts(M& mesh, void* out, const std::byte* own, const std::byte* scratch, std::size_t count, Dtype dtype,
                  ReduceOp op) {
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::byte* theirs = scratch + place_of(rank, mesh.rank()) * count * size_of(dtype);
    sources.push_back(rank == mesh.rank() ? own : theirs);
  }
  reduce(out, sources, count, dtype, op);
}

template <Mesh M>
void all_reduce_directly(M& mesh, std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) {
  const std::size_t size_bytes = count * size_of(dtype);
  const std::size_t scratch_bytes = size_bytes * index_of(mesh.size() - 1);
  std::byte* scratch = mesh.scratch(scratch_bytes);
  auto step = mesh.step(data, size_bytes, scratch, scratch_bytes);
  for_each_peer(mesh, [&](int peer) { step.receive(peer, place_of(peer, mesh.rank()) * size_bytes, size_bytes); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, 0, size_bytes); });
  step.finish();
  reduce_parts(mesh, data, data, scratch, count, dtype, op);
}

template <Mesh M>
void all_reduce_in_slices(M& mesh, std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) {
  const std::size_t element = size_of(dtype);
  const Slices slices{count, mesh.size()};
  const std::size_t own_begin = slices.begin(mesh.rank()) * element;
  const std::size_t own_count = slices.count(mesh.rank());
  const std::size_t own_bytes = own_count * element;
  const std::size_t scratch_bytes = own_bytes * index_of(mesh.size() - 1);
  std::byte* scratch = mesh.scratch(scratch_bytes);
  {
    auto step = mesh.step(data, count * element, scratch, scratch_bytes);
    for_each_peer(mesh, [&](int peer) { step.receive(peer, place_of(peer, mesh.rank()) * own_bytes, own_bytes); });
    for_each_peer(mesh, [&](int peer) { step.send(peer, slices.begin(peer) * element, slices.count(peer) * element); });
    step.finish();
  }
  reduce_parts(mesh, data + own_begin, data + own_begin, scratch, own_count, dtype, op);
  auto step = mesh.step(data, count * element, data, count * element);
  for_each_peer(mesh,
                [&](int peer) { step.receive(peer, slices.begin(peer) * element, slices.count(peer) * element); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, own_begin, own_bytes); });
  step.finish();
}

/// Cost: small: 1 step, size - 1 times the data sent per rank; else 2 steps per 4 MiB x size, 2 (size-1)/size times.
template <Mesh M>
void mesh_all_reduce(M& mesh, const Buffer& data, ReduceOp op) {
  auto* bytes = static_cast<std::byte*>(data.data);
  if (data.size_bytes() <= direct_limit_bytes && mesh.size() <= direct_limit_ranks) {
    return all_reduce_directly(mesh, bytes, data.count, data.dtype, op);
  }
  const std::size_t element = size_of(data.dtype);
  const std::size_t segment = slice_limit_bytes / element * index_of(mesh.size());
  for (std::size_t begin = 0; begin < data.count; begin += segment) {
    all_reduce_in_slices(mesh, bytes + begin * element, std::min(segment, data.count - begin), data.dtype, op);
  }
}

/// Cost: 1 step per 4 MiB of out, (size-1) times out sent per rank.
template <Mesh M>
void mesh_reduce_scatter(M& mesh, const ConstBuffer& in, const Buffer& out, ReduceOp op) {
  const auto* from = static_cast<const std::byte*>(in.data);
  auto* to = static_cast<std::byte*>(out.data);
  const std::size_t element = size_of(out.dtype);
  const std::size_t segment = slice_limit_bytes / element;
  for (std::size_t begin = 0; begin < out.count; begin += segment) {
    const std::size_t count = std::min(segment, out.count - begin);
    const std::size_t size_bytes = count * element;
    const auto offset_of = [&](int rank) { return (index_of(rank) * out.count + begin) * element; };
    const std::size_t scratch_bytes = size_bytes * index_of(mesh.size() - 1);
    std::byte* scratch = mesh.scratch(scratch_bytes);
    auto step = mesh.step(from, in.size_bytes(), scratch, scratch_bytes);
    for_each_peer(mesh, [&](int peer) { step.receive(peer, place_of(peer, mesh.rank()) * size_bytes, size_bytes); });
    for_each_peer(mesh, [&](int peer) { step.send(peer, offset_of(peer), size_bytes); });
    step.finish();
    reduce_parts(mesh, to + begin * element, from + offset_of(mesh.rank()), scratch, count, out.dtype, op);
  }
}

// A binomial tree: in round k, the ranks that have the data send it 2^k further. Ranks count from the root. All edges
// of the tree belong to one step, because the ends of an edge are at different depths.
template <Mesh M>
void broadcast_by_tree(M& mesh, std::byte* data, std::size_t size_bytes, int root) {
  const int size = mesh.size();
  const int place = (mesh.rank() - root + size) % size;
  int reach = 1;
  while (reach <= place) reach *= 2;
  auto step = mesh.step(data, size_bytes, data, size_bytes);
  if (place > 0) {
    step.receive((place - reach / 2 + root) % size, 0, size_bytes);
    step.finish();
  }
  for (; place + reach < size; reach *= 2) step.send((place + reach + root) % size, 0, size_bytes);
  step.finish();
}

// The root gives every rank one slice; then all exchange theirs.
template <Mesh M>
void broadcast_by_slices(M& mesh, std::byte* data, std::size_t size_bytes, int root) {
  const Slices slices{size_bytes, mesh.size()};
  const bool is_root = mesh.rank() == root;
  const std::size_t own_begin = slices.begin(mesh.rank());
  const std::size_t own_bytes = slices.count(mesh.rank());
  {
    auto step = mesh.step(data, size_bytes, data, size_bytes);
    if (is_root) {
      for_each_peer(mesh, [&](int peer) { step.send(peer, slices.begin(peer), slices.count(peer)); });
    } else {
      step.receive(root, own_begin, own_bytes);
    }
    step.finish();
  }
  auto step = mesh.step(data, size_bytes, data, size_bytes);
  for_each_peer(mesh, [&](int peer) {
    if (!is_root) step.receive(peer, slices.begin(peer), slices.count(peer));
  });
  for_each_peer(mesh, [&](int peer) {
    if (peer != root) step.send(peer, own_begin, own_bytes);
  });
  step.finish();
}

/// Cost: small: log2(size) steps; large: 2 steps, twice the data sent by the root and once by the others.
template <Mesh M>
void mesh_broadcast(M& mesh, const Buffer& data, int root) {
  auto* bytes = static_cast<std::byte*>(data.data);
  if (mesh.size() == 2 || data.size_bytes() < tree_limit_bytes) {
    return broadcast_by_tree(mesh, bytes, data.size_bytes(), root);
  }
  broadcast_by_slices(mesh, bytes, data.size_bytes(), root);
}

/// Gathers parts of different sizes: rank r's part lies at offsets[r] and ends where the next begins; offsets has
/// size + 1 entries, in bytes. Cost: 1 step, size - 1 times the own part sent per rank.
template <Mesh M>
void mesh_all_gather(M& mesh, const ConstBuffer& in, const Buffer& out, std::span<const std::size_t> offsets) {
  const auto bytes_of = [&](int rank) { return offsets[index_of(rank) + 1] - offsets[index_of(rank)]; };
  auto step = mesh.step(in.data, in.size_bytes(), out.data, out.size_bytes());
  for_each_peer(mesh, [&](int peer) { step.receive(peer, offsets[index_of(peer)], bytes_of(peer)); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, 0, in.size_bytes()); });
  if (in.count > 0) {
    std::memcpy(static_cast<std::byte*>(out.data) + offsets[index_of(mesh.rank())], in.data, in.size_bytes());
  }
  step.finish();
}

/// Cost: 1 step; root receives size - 1 parts.
template <Mesh M>
void mesh_gather(M& mesh, const ConstBuffer& in, const Buffer& out, int root) {
  const std::size_t part = in.size_bytes();
  const bool is_root = mesh.rank() == root;
  auto step = mesh.step(in.data, part, is_root ? out.data : nullptr, is_root ? out.size_bytes() : 0);
  if (is_root) {
    for_each_peer(mesh, [&](int peer) { step.receive(peer, index_of(peer) * part, part); });
    std::memcpy(static_cast<std::byte*>(out.data) + index_of(root) * part, in.data, part);
  } else {
    step.send(root, 0, part);
  }
  step.finish();
}

/// Cost: 1 step; root sends size - 1 parts.
template <Mesh M>
void mesh_scatter(M& mesh, const ConstBuffer& in, const Buffer& out, int root) {
  const std::size_t part = out.size_bytes();
  const bool is_root = mesh.rank() == root;
  auto step = mesh.step(is_root ? in.data : nullptr, is_root ? in.size_bytes() : 0, out.data, part);
  if (is_root) {
    for_each_peer(mesh, [&](int peer) { step.send(peer, index_of(peer) * part, part); });
    std::memcpy(out.data, static_cast<const std::byte*>(in.data) + index_of(root) * part, part);
  } else {
    step.receive(root, 0, part);
  }
  step.finish();
}

/// Cost: 1 step, (size-1)/size times the data sent per rank.
template <Mesh M>
void mesh_all_to_all(M& mesh, const ConstBuffer& in, const Buffer& out) {
  const std::size_t part = in.size_bytes() / index_of(mesh.size());
  const std::size_t own = index_of(mesh.rank()) * part;
  auto step = mesh.step(in.data, in.size_bytes(), out.data, out.size_bytes());
  for_each_peer(mesh, [&](int peer) { step.receive(peer, index_of(peer) * part, part); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, index_of(peer) * part, part); });
  std::memcpy(static_cast<std::byte*>(out.data) + own, static_cast<const std::byte*>(in.data) + own, part);
  step.finish();
}

/// Cost: log2(size) steps: in step k every rank tells the one 2^k further that it, and all it has heard of, have come.
template <Mesh M>
void mesh_barrier(M& mesh) {
  const int size = mesh.size();
  std::byte sent{};
  std::byte received{};
  for (int distance = 1; distance < size; distance *= 2) {
    auto step = mesh.step(&sent, 1, &received, 1);
    step.receive((mesh.rank() - distance + size) % size, 0, 1);
    step.send((mesh.rank() + distance) % size, 0, 1);
    step.finish();
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
