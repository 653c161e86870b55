// SPDX-License-Identifier: MIT
// Reductions that read and write several arrays at once, with the widest vectors of this processor. Collectives room.
#pragma once

#include "railyard/collectives/detail/reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// The most arrays that are read, or written, at once.
inline constexpr std::size_t most_arrays = 256;

/// Is a sum over arrays of T: each target gets, element by element, the sum of the sources in their order, each times
/// its weight if there are weights, divided by the divisor if that is not one. Targets may be sources.
template <class T>
struct SumTask {
  std::span<T* const> targets{};
  std::span<const T* const> sources{};
  const T* weights = nullptr;
  T divisor{1};
  std::size_t count = 0;
};

// What a vector of T with Width bytes looks like to the compiler, and its bits as integers.
template <class T, std::size_t Width>
struct Vector {
  typedef T type __attribute__((vector_size(Width)));
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  typedef Bits bits __attribute__((vector_size(Width)));
  static constexpr Bits exponent =
      sizeof(T) == 8 ? static_cast<Bits>(0x7FF0000000000000) : static_cast<Bits>(0x7F800000);
  static constexpr Bits lowest = sizeof(T) == 8 ? static_cast<Bits>(0x0010000000000000) : static_cast<Bits>(0x00800000);
};

// Keeps a product from being fused with the addition that follows, which rounds once instead of twice: the same values
// would have other bits with another instruction set or compiler option. clang++ fuses within one statement only.
template <class V>
[[gnu::always_inline]] inline void round_here([[maybe_unused]] V& product) noexcept {
#if defined(__clang__)
#elif defined(__x86_64__)
  asm("" : "+v"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
}

// Is put into each of the functions below, and compiled there for that function's instruction set. The same sums in
// the same order with every one of them: vectors change which elements go together, never how one is made.
// Returns whether all results are finite. Num: of sources and targets, where it is known; 0 elsewhere. All that is read
// through a pointer is copied first: for the compiler every store to a target may change it.
template <class T, std::size_t Width, std::size_t NumSources, std::size_t NumTargets, bool is_scaled>
[[gnu::always_inline]] inline bool sum_vectors(const SumTask<T>& task) {
  using V = typename Vector<T, Width>::type;
  using B = typename Vector<T, Width>::bits;
  constexpr std::size_t lanes = Width / sizeof(T);
  constexpr std::size_t unroll = 4;
  constexpr std::size_t group = lanes * unroll;
  constexpr std::size_t most = most_arrays;
  const std::size_t num_sources = NumSources > 0 ? NumSources : task.sources.size();
  const std::size_t num_targets = NumTargets > 0 ? NumTargets : task.targets.size();
  const T* sources[NumSources > 0 ? NumSources : most];
  T* targets[NumTargets > 0 ? NumTargets : most];
  T weights[NumSources > 0 ? NumSources : most];
  for (std::size_t i = 0; i < num_sources; ++i) sources[i] = task.sources[i];
  for (std::size_t i = 0; i < num_targets; ++i) targets[i] = task.targets[i];
  for (std::size_t i = 0; i < num_sources; ++i) weights[i] = task.weights != nullptr ? task.weights[i] : T{1};
  const T divisor = task.divisor;
  const std::size_t count = task.count;
  B marks{};
  alignas(Width) T tail[group] = {};
  for (std::size_t at = 0; at < count; at += group) {
    const bool is_tail = count - at < group;
    const std::size_t tail_bytes = is_tail ? (count - at) * sizeof(T) : 0;
    V sum[unroll];
#pragma GCC unroll 4
    for (std::size_t source = 0; source < num_sources; ++source) {
      const T* from = sources[source] + at;
      if (is_tail) {
        std::memcpy(tail, from, tail_bytes);
        from = tail;
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < unroll; ++i) {
        V next;
        std::memcpy(&next, from + i * lanes, Width);
        if constexpr (is_scaled) {
          next *= weights[source];
          round_here(next);
        }
        sum[i] = source == 0 ? next : sum[i] + next;
      }
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < unroll; ++i) {
      if constexpr (is_scaled) sum[i] /= divisor;
      // Where a value is not finite its exponent is all ones, and one more carries into the sign. No comparison, which
      // g++ 12 takes apart for AVX-512F.
      B pattern;
      std::memcpy(&pattern, &sum[i], Width);
      marks |= (pattern & Vector<T, Width>::exponent) + Vector<T, Width>::lowest;
    }
    if (is_tail) {
      std::memcpy(tail, sum, sizeof sum);
      for (std::size_t target = 0; target < num_targets; ++target) std::memcpy(targets[target] + at, tail, tail_bytes);
      break;
    }
#pragma GCC unroll 4
    for (std::size_t target = 0; target < num_targets; ++target) {
#pragma GCC unroll 4
      for (std::size_t i = 0; i < unroll; ++i) std::memcpy(targets[target] + at + i * lanes, &sum[i], Width);
    }
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    if (marks[lane] >> (sizeof(T) * 8 - 1) != 0) return false;
  }
  return true;
}

template <class T, std::size_t Width>
[[gnu::always_inline]] inline bool sum_vectors_of_any(const SumTask<T>& task) {
  const std::size_t sources = task.sources.size();
  const std::size_t targets = task.targets.size();
  if (task.weights != nullptr || task.divisor != T{1}) {
    if (sources == 2 && targets == 2) return sum_vectors<T, Width, 2, 2, true>(task);
    if (sources == 2 && targets == 1) return sum_vectors<T, Width, 2, 1, true>(task);
    return sum_vectors<T, Width, 0, 0, true>(task);
  }
  if (sources == 2 && targets == 2) return sum_vectors<T, Width, 2, 2, false>(task);
  if (sources == 2 && targets == 1) return sum_vectors<T, Width, 2, 1, false>(task);
  if (sources == 4 && targets == 4) return sum_vectors<T, Width, 4, 4, false>(task);
  return sum_vectors<T, Width, 0, 0, false>(task);
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx512f")]] bool sum_avx512(const SumTask<T>& task) {
  return sum_vectors_of_any<T, 64>(task);
}
template <class T>
[[gnu::target("avx2")]] bool sum_avx2(const SumTask<T>& task) {
  return sum_vectors_of_any<T, 32>(task);
}
#endif
template <class T>
bool sum_baseline(const SumTask<T>& task) {
  return sum_vectors_of_any<T, 16>(task);
}

// One value after another: for so few that vectors take longer to set up.
template <class T>
bool sum_few(const SumTask<T>& task) {
  bool is_finite = true;
  for (std::size_t at = 0; at < task.count; ++at) {
    T sum{};
    for (std::size_t source = 0; source < task.sources.size(); ++source) {
      T next = task.sources[source][at];
      if (task.weights != nullptr) {
        next *= task.weights[source];
        round_here(next);
      }
      sum = source == 0 ? next : sum + next;
    }
    if (task.divisor != T{1}) sum /= task.divisor;
    for (T* target : task.targets) target[at] = sum;
    using Bits = typename Vector<T, 16>::Bits;
    is_finite &= (std::bit_cast<Bits>(sum) & Vector<T, 16>::exponent) != Vector<T, 16>::exponent;
  }
  return is_finite;
}

/// Does the task with what the processor offers. Returns whether all results are finite.
template <class T>
bool sum(const SumTask<T>& task) {
  if (task.count <= 4) return sum_few(task);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512(task);
  if (__builtin_cpu_supports("avx2")) return sum_avx2(task);
#endif
  return sum_baseline(task);
}

// Arrays of bytes at any address, seen as arrays of T if all of them are aligned for that.
template <class T>
[[nodiscard]] inline bool are_aligned(std::span<std::byte* const> targets, std::span<const std::byte* const> sources) {
  const auto is_aligned = [](const std::byte* data) {
    return reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0;
  };
  return std::all_of(targets.begin(), targets.end(), is_aligned) &&
         std::all_of(sources.begin(), sources.end(), is_aligned);
}

template <class T>
void sum_bytes(std::span<std::byte* const> targets, std::span<const std::byte* const> sources, std::size_t count,
               T divisor) {
  // A pointer to bytes and one to T are alike, but an array of one is no array of the other.
  T* to[most_arrays];
  const T* from[most_arrays];
  for (std::size_t i = 0; i < targets.size(); ++i) to[i] = reinterpret_cast<T*>(targets[i]);
  for (std::size_t i = 0; i < sources.size(); ++i) from[i] = reinterpret_cast<const T*>(sources[i]);
  sum(SumTask<T>{
      .targets = {to, targets.size()}, .sources = {from, sources.size()}, .divisor = divisor, .count = count});
}

/// Combines count elements of all sources, in their order, into every target. Targets may be sources.
/// Cost: reads every source once and writes every target once.
template <class = void>
void reduce_into(std::span<std::byte* const> targets, std::span<const std::byte* const> sources, std::size_t count,
                 Dtype dtype, ReduceOp op) {
  if (count == 0) return;
  const bool is_sum = op == ReduceOp::sum || op == ReduceOp::average;
  if (is_sum && sources.size() <= most_arrays && targets.size() <= most_arrays) {
    const auto divisor = op == ReduceOp::average ? sources.size() : 1;
    if (dtype == Dtype::f32 && are_aligned<float>(targets, sources)) {
      return sum_bytes<float>(targets, sources, count, static_cast<float>(divisor));
    }
    if (dtype == Dtype::f64 && are_aligned<double>(targets, sources)) {
      return sum_bytes<double>(targets, sources, count, static_cast<double>(divisor));
    }
  }
  const std::size_t block = std::max<std::size_t>(1, (std::size_t{16} << 10U) / size_of(dtype));
  std::vector<const std::byte*> at{sources.begin(), sources.end()};
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    const std::size_t offset = begin * size_of(dtype);
    for (std::size_t i = 0; i < at.size(); ++i) at[i] = sources[i] + offset;
    reduce(targets[0] + offset, at, n, dtype, op);
    for (std::byte* target : targets.subspan(1)) std::memcpy(target + offset, targets[0] + offset, n * size_of(dtype));
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
