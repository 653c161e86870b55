// SPDX-License-Identifier: MIT
// The arithmetic of reductions: elements of several buffers become one. Collectives room.
#pragma once

#include "railyard/core/dtype.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns where the part of count elements begins that a rank reduces for all, and its size: slices of whole cache
/// lines, so that no two ranks write to one line of an aligned buffer.
[[nodiscard]] inline std::pair<std::size_t, std::size_t> slice_of(std::size_t count, const World& world) noexcept {
  const auto size = static_cast<std::size_t>(world.size);
  const std::size_t slice = ((count + size - 1) / size + 63) / 64 * 64;
  const std::size_t begin = std::min(count, static_cast<std::size_t>(world.rank) * slice);
  return {begin, std::min(slice, count - begin)};
}

/// Is the type in which elements of type T are combined: float for the half types, so that a sum is rounded once; a
/// byte for bool, because memory that a peer has sent may hold other values than 0 and 1.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float,
                                       std::conditional_t<std::is_same_v<T, bool>, unsigned char, T>>;

// By the bits, because -ffast-math lets the compiler believe that there are no NaNs.
template <class A>
[[nodiscard]] constexpr bool is_nan(A value) noexcept {
  if constexpr (std::is_same_v<A, float>) {
    return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) > 0x7F800000U;
  } else if constexpr (std::is_same_v<A, double>) {
    return (std::bit_cast<std::uint64_t>(value) & 0x7FFFFFFFFFFFFFFFU) > 0x7FF0000000000000U;
  } else {
    return false;
  }
}

/// Combines two values. A NaN wins over every number in min and max; signed integers wrap.
template <ReduceOp op, class A>
[[nodiscard]] constexpr A combine(A a, A b) noexcept {
  if constexpr (op == ReduceOp::min) {
    return b < a || is_nan(b) ? (is_nan(a) ? a : b) : a;
  } else if constexpr (op == ReduceOp::max) {
    return a < b || is_nan(b) ? (is_nan(a) ? a : b) : a;
  } else if constexpr (std::is_integral_v<A>) {
    // In 64 bits without a sign: neither the promotion of small types to int nor overflow can then be undefined.
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<A>(op == ReduceOp::product ? x * y : x + y);
  } else {
    return op == ReduceOp::product ? a * b : a + b;
  }
}

// Bytes are read by memcpy: a user's buffer may lie at any address (a slice of a packed record, a received message).
template <class T>
void load_block(Accumulator<T>* to, const std::byte* from, std::size_t count) noexcept {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    std::memcpy(to, from, count * sizeof(T));
  } else if constexpr (std::is_same_v<T, bool>) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i] != std::byte{0} ? 1 : 0;
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      T element{};
      std::memcpy(&element, from + i * sizeof(T), sizeof(T));
      to[i] = static_cast<float>(element);
    }
  }
}

template <class T>
void store_block(std::byte* to, const Accumulator<T>* from, std::size_t count) noexcept {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    for (std::size_t i = 0; i < count; ++i) {
      const T element{from[i]};
      std::memcpy(to + i * sizeof(T), &element, sizeof(T));
    }
  } else {
    std::memcpy(to, from, count * sizeof(T));
  }
}

template <class T, ReduceOp op>
void reduce_typed(std::byte* out, std::span<const std::byte* const> sources, std::size_t count) noexcept {
  using A = Accumulator<T>;
  constexpr std::size_t block = 4096 / sizeof(A);  // two blocks stay in the first-level cache
  alignas(64) A sum[block];
  alignas(64) A next[block];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    load_block<T>(sum, sources[0] + begin * sizeof(T), n);
    for (const std::byte* source : sources.subspan(1)) {
      load_block<T>(next, source + begin * sizeof(T), n);
      for (std::size_t i = 0; i < n; ++i) sum[i] = combine<op>(sum[i], next[i]);
    }
    if constexpr (op == ReduceOp::average && std::is_floating_point_v<A>) {
      const A divisor = static_cast<A>(sources.size());
      for (std::size_t i = 0; i < n; ++i) sum[i] /= divisor;
    }
    store_block<T>(out + begin * sizeof(T), sum, n);
  }
}

// On bool, sum is "any" and product is "all": what max and min are.
[[nodiscard]] constexpr ReduceOp effective_op(Dtype dtype, ReduceOp op) noexcept {
  if (dtype != Dtype::boolean) return op;
  return op == ReduceOp::sum || op == ReduceOp::average ? ReduceOp::max : op == ReduceOp::product ? ReduceOp::min : op;
}

/// Combines count elements of all sources, in their order, into out; out may be one of the sources. The order makes
/// results a function of the ranks' values alone: equal bits on every rank, with every backend and in every run.
/// Cost: reads every source once and writes out once.
template <class = void>
void reduce(void* out, std::span<const std::byte* const> sources, std::size_t count, Dtype dtype, ReduceOp op) {
  auto* bytes = static_cast<std::byte*>(out);
  visit_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (effective_op(dtype, op)) {
      case ReduceOp::sum:
        return reduce_typed<T, ReduceOp::sum>(bytes, sources, count);
      case ReduceOp::average:
        return reduce_typed<T, ReduceOp::average>(bytes, sources, count);
      case ReduceOp::min:
        return reduce_typed<T, ReduceOp::min>(bytes, sources, count);
      case ReduceOp::max:
        return reduce_typed<T, ReduceOp::max>(bytes, sources, count);
      case ReduceOp::product:
        return reduce_typed<T, ReduceOp::product>(bytes, sources, count);
    }
  });
}

}  // namespace detail
}  // namespace railyard::inline v0_1
