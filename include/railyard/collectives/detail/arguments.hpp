// SPDX-License-Identifier: MIT
// The checks of a collective's arguments, made before anything is sent, shared by all backends. Collectives room.
#pragma once

#include "railyard/collectives/detail/signature.hpp"

#include "railyard/core/buffer.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/world.hpp"

#include <functional>
#include <limits>

namespace railyard::inline v0_1 {
namespace detail {

/// Checks the arguments of one call. Every member throws ConfigError if a backend's laws forbid them, and returns the
/// signature of the operation otherwise. A checker costs nothing to make: it holds what messages need.
class Arguments {
 public:
  Arguments(const World& world, DeviceKind device_kind) noexcept : world_(&world), device_kind_(device_kind) {}

  [[nodiscard]] Signature all_reduce(const Buffer& data, ReduceOp op) const {
    const Signature signature{.operation = Operation::all_reduce, .op = op, .dtype = data.dtype, .count = data.count};
    memory(signature, data, "data");
    reduction(signature);
    return signature;
  }

  [[nodiscard]] Signature reduce_scatter(const ConstBuffer& in, const Buffer& out, ReduceOp op) const {
    const Signature signature{.operation = Operation::reduce_scatter, .op = op, .dtype = out.dtype, .count = out.count};
    pair(signature, in, out);
    times_size(signature, "in", in.count, "out", out.count);
    reduction(signature);
    return signature;
  }

  [[nodiscard]] Signature broadcast(const Buffer& data, int root) const {
    const Signature signature{
        .operation = Operation::broadcast, .dtype = data.dtype, .count = data.count, .root = root};
    memory(signature, data, "data");
    rank(signature, root, "root");
    return signature;
  }

  [[nodiscard]] Signature all_gather(const ConstBuffer& in, const Buffer& out) const {
    const Signature signature{.operation = Operation::all_gather, .dtype = in.dtype, .count = in.count};
    pair(signature, in, out);
    times_size(signature, "out", out.count, "in", in.count);
    return signature;
  }
  /// The same where in may be this rank's part of out.
  [[nodiscard]] Signature all_gather_in_place(const ConstBuffer& in, const Buffer& out) const {
    const auto* own =
        static_cast<const std::byte*>(out.data) + in.size_bytes() * static_cast<std::size_t>(world_->rank);
    if (in.data != own) return all_gather(in, out);
    const Signature signature{.operation = Operation::all_gather, .dtype = in.dtype, .count = in.count};
    types(signature, in, out);
    times_size(signature, "out", out.count, "in", in.count);
    return signature;
  }

  [[nodiscard]] Signature all_gather_uneven(const ConstBuffer& in, const Buffer& out,
                                            std::span<const std::size_t> counts) const {
    Signature signature{.operation = Operation::all_gather_uneven, .dtype = in.dtype, .count = out.count};
    for (const std::size_t count : counts) signature.counts_digest = mix(signature.counts_digest, count);
    pair(signature, in, out);
    if (counts.size() != static_cast<std::size_t>(world_->size)) {
      refuse(signature,
             compose("counts has {} entries; it needs one for each of the {} ranks", counts.size(), world_->size));
    }
    if (counts[static_cast<std::size_t>(world_->rank)] != in.count) {
      refuse(signature, compose("in has {} elements, but counts[{}] says {}", in.count, world_->rank,
                                counts[static_cast<std::size_t>(world_->rank)]));
    }
    std::size_t sum = 0;
    for (const std::size_t count : counts) sum += count;
    if (sum != out.count) {
      refuse(signature, compose("out has {} elements; the sum of counts is {}", out.count, sum));
    }
    return signature;
  }

  /// out matters at root only.
  [[nodiscard]] Signature gather(const ConstBuffer& in, const Buffer& out, int root) const {
    const Signature signature{.operation = Operation::gather, .dtype = in.dtype, .count = in.count, .root = root};
    rank(signature, root, "root");
    memory(signature, in, "in");
    if (world_->rank == root) {
      pair(signature, in, out);
      times_size(signature, "out", out.count, "in", in.count);
    }
    return signature;
  }

  /// in matters at root only.
  [[nodiscard]] Signature scatter(const ConstBuffer& in, const Buffer& out, int root) const {
    const Signature signature{.operation = Operation::scatter, .dtype = out.dtype, .count = out.count, .root = root};
    rank(signature, root, "root");
    memory(signature, out, "out");
    if (world_->rank == root) {
      pair(signature, in, out);
      times_size(signature, "in", in.count, "out", out.count);
    }
    return signature;
  }

  [[nodiscard]] Signature all_to_all(const ConstBuffer& in, const Buffer& out) const {
    const Signature signature{.operation = Operation::all_to_all, .dtype = in.dtype, .count = in.count};
    pair(signature, in, out);
    if (in.count != out.count) {
      refuse(signature, compose("in has {} elements and out has {}; they must be equal", in.count, out.count));
    }
    if (in.count % static_cast<std::size_t>(world_->size) != 0) {
      refuse(signature, compose("{} elements cannot be divided among {} ranks", in.count, world_->size));
    }
    return signature;
  }

  [[nodiscard]] Signature send(const ConstBuffer& data, int peer) const {
    return message(Operation::send, data, peer, "to");
  }
  [[nodiscard]] Signature receive(const Buffer& data, int peer) const {
    return message(Operation::receive, data, peer, "from");
  }

 private:
  [[noreturn]] void refuse(const Signature& signature, std::string_view what) const {
    throw ConfigError{
        compose("{}: {}; nothing was sent", place_text(describe(signature), world_->rank, world_->size), what)};
  }

  [[nodiscard]] Signature message(Operation operation, const ConstBuffer& data, int peer, std::string_view name) const {
    const Signature signature{.operation = operation, .dtype = data.dtype, .count = data.count, .root = peer};
    memory(signature, data, "data");
    rank(signature, peer, name);
    if (peer == world_->rank) refuse(signature, "a rank cannot exchange messages with itself: copy the data instead");
    return signature;
  }

  void memory(const Signature& signature, const ConstBuffer& buffer, std::string_view name) const {
    if (buffer.data == nullptr && buffer.count > 0) {
      refuse(signature, compose("{} is a null pointer with {} elements", name, buffer.count));
    }
    if (buffer.count > std::numeric_limits<std::size_t>::max() / size_of(buffer.dtype)) {
      refuse(signature, compose("{} has {} elements, more than memory can hold", name, buffer.count));
    }
    if (buffer.device.kind != device_kind_) {
      refuse(signature, compose("{} lies in {} memory; this backend works on {} memory", name,
                                device_name(buffer.device.kind), device_name(device_kind_)));
    }
  }

  void types(const Signature& signature, const ConstBuffer& in, const Buffer& out) const {
    memory(signature, in, "in");
    memory(signature, out, "out");
    if (in.dtype != out.dtype) {
      refuse(signature,
             compose("in is {} and out is {}; they must be of one dtype", name_of(in.dtype), name_of(out.dtype)));
    }
  }

  void pair(const Signature& signature, const ConstBuffer& in, const Buffer& out) const {
    types(signature, in, out);
    const auto* in_begin = static_cast<const std::byte*>(in.data);
    const auto* out_begin = static_cast<const std::byte*>(out.data);
    if (in.count == 0 || out.count == 0) return;
    const std::less<> before{};
    if (before(in_begin, out_begin + out.size_bytes()) && before(out_begin, in_begin + in.size_bytes())) {
      refuse(signature, "in and out overlap; give them memory of their own");
    }
  }

  void times_size(const Signature& signature, std::string_view large_name, std::size_t large,
                  std::string_view small_name, std::size_t small) const {
    const auto size = static_cast<std::size_t>(world_->size);
    if (large % size == 0 && large / size == small) return;
    refuse(signature, compose("{} has {} elements; it needs {} ranks x {} elements of {}", large_name, large, size,
                              small, small_name));
  }

  void rank(const Signature& signature, int rank, std::string_view name) const {
    if (rank >= 0 && rank < world_->size) return;
    refuse(signature, compose("{} is {}; the ranks of this group are 0 to {}", name, rank, world_->size - 1));
  }

  void reduction(const Signature& signature) const {
    const bool is_float = signature.dtype == Dtype::f16 || signature.dtype == Dtype::bf16 ||
                          signature.dtype == Dtype::f32 || signature.dtype == Dtype::f64;
    if (signature.op == ReduceOp::average && !is_float) {
      refuse(signature, compose("an average of {} would have to round; reduce with sum and divide, or convert to a "
                                "floating-point dtype first",
                                name_of(signature.dtype)));
    }
  }

  [[nodiscard]] static constexpr std::string_view device_name(DeviceKind kind) noexcept {
    return kind == DeviceKind::cpu ? "CPU" : "CUDA";
  }

  const World* world_;
  DeviceKind device_kind_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
