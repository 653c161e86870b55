// SPDX-License-Identifier: MIT
// Numbers that tell bytes from other bytes, without a promise to anybody who looks for two that are taken for one. Core
// room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace railyard::inline v0_1 {
namespace detail {

/// Mixes bits so that neighbouring inputs (seed 1 and 2, epoch 0 and 1) give unrelated outputs.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014 (the finaliser of SplitMix64).
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t bits) noexcept {
  bits += 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

/// Adds bytes to a number that is another, then, for nearly all other bytes.
[[nodiscard]] inline std::uint64_t digest_of(std::span<const std::byte> bytes, std::uint64_t digest = 0) noexcept {
  std::array<std::uint64_t, 4> words{};
  std::array<std::uint64_t, 4> lanes{digest ^ bytes.size(), 1, 2, 3};  // several, or each word would wait for the last
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), sizeof words);
    if (size < sizeof words) words = {};
    std::memcpy(words.data(), bytes.data(), size);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = mix_bits(lanes[lane] ^ words[lane]);
    bytes = bytes.subspan(size);
  }
  digest = 0;
  for (const std::uint64_t lane : lanes) digest = mix_bits(digest ^ lane);
  return digest;
}

/// Does the same nearly as fast as memory is read, for what is compared within a run: values change between releases.
/// Source: Wang Yi's wyhash (public domain) for the step, a product of two words whose halves are folded.
[[nodiscard]] inline std::uint64_t quick_digest_of(std::span<const std::byte> bytes,
                                                   std::uint64_t digest = 0) noexcept {
  __extension__ using Product = unsigned __int128;
  constexpr std::uint64_t odd = 0xA0761D6478BD642FU;
  std::array<std::uint64_t, 8> words{};
  std::array<std::uint64_t, 4> lanes{digest ^ bytes.size(), 1, 2, 3};  // several, or each word would wait for the last
  const auto add_words = [&] {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const Product product = static_cast<Product>(words[2 * lane] ^ odd) * (words[2 * lane + 1] ^ lanes[lane]);
      lanes[lane] = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
      lanes[lane] += words[2 * lane];  // a factor of 0 hides the other one
    }
  };
  for (; bytes.size() >= sizeof words; bytes = bytes.subspan(sizeof words)) {
    std::memcpy(words.data(), bytes.data(), sizeof words);  // a size that is known: no call
    add_words();
  }
  words = {};
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  add_words();
  digest = 0;
  for (const std::uint64_t lane : lanes) digest = mix_bits(digest ^ lane);
  return digest;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
