// SPDX-License-Identifier: MIT
// The order of an epoch and who gets which part of a batch: pure arithmetic, equal on every machine. Data room.
#pragma once

#include "railyard/core/detail/digest.hpp"
#include "railyard/core/version.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Derives the seed of one use of a run's seed.
[[nodiscard]] constexpr std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t use) noexcept {
  return mix_bits(mix_bits(seed) ^ mix_bits(~use));
}

// Draws numbers. Neither LibTorch's generator nor std::shuffle would do: the first differs between its releases, the
// second between standard libraries, and an order must be the same wherever a run goes on.
class Draws {
 public:
  constexpr explicit Draws(std::uint64_t seed) noexcept : state_(seed) {}

  // Draws a number below limit, each with equal probability.
  [[nodiscard]] constexpr std::uint64_t below(std::uint64_t limit) noexcept {
    const std::uint64_t excess = (0 - limit) % limit;  // 2^64 mod limit: the lowest draws, which would come once more
    std::uint64_t draw = next();
    while (draw < excess) draw = next();
    return draw % limit;
  }

 private:
  constexpr std::uint64_t next() noexcept {
    const std::uint64_t drawn = mix_bits(state_);
    state_ += 0x9E3779B97F4A7C15U;
    return drawn;
  }

  std::uint64_t state_;
};

// Returns 0 to count - 1 in order.
[[nodiscard]] inline std::vector<std::size_t> ordered_indices(std::size_t count) {
  std::vector<std::size_t> indices(count);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

// Returns 0 to count - 1 in an order that is a function of count and seed only.
[[nodiscard]] inline std::vector<std::size_t> shuffled_indices(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> indices = ordered_indices(count);
  Draws draws{seed};
  for (std::size_t left = count; left > 1; --left) std::swap(indices[left - 1], indices[draws.below(left)]);
  return indices;
}

// A half-open range of positions.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return end - begin; }
  friend constexpr bool operator==(const Range&, const Range&) noexcept = default;
};

// Returns part number `part` of `parts` of the range: contiguous, sizes differ by at most one, larger ones first.
[[nodiscard]] constexpr Range part_of(Range whole, std::size_t part, std::size_t parts) noexcept {
  const std::size_t smaller = whole.size() / parts;
  const std::size_t larger_ones = whole.size() % parts;
  const std::size_t begin = whole.begin + part * smaller + (part < larger_ones ? part : larger_ones);
  return {begin, begin + smaller + (part < larger_ones ? 1 : 0)};
}

}  // namespace detail

}  // namespace railyard::inline v0_1
