// SPDX-License-Identifier: MIT
// A random order of any number of samples that is asked for one place at a time. Data room.
#pragma once

#include "railyard/data/shuffle.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Is an order of 0 to count - 1, a function of count and seed only. Up to 65536 samples it is a list, drawn evenly from
// all orders. Larger ones are computed place by place: a list of 10^9 would take 8 GB in every worker, and a run that
// goes on in the middle would wait for it. That is a Feistel network on the smallest square that holds count, gone
// through again while its result is none of the samples, which is at most 4 times on average.
// Source: Black, Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking).
class Permutation {
 public:
  Permutation(std::uint64_t count, std::uint64_t seed) : count_(count) {
    for (std::size_t round = 0; round < keys_.size(); ++round) keys_[round] = derive_seed(seed, round);
    if (count <= largest_list) {
      list_ = std::make_shared<const std::vector<std::size_t>>(shuffled_indices(static_cast<std::size_t>(count), seed));
    } else {
      half_bits_ = static_cast<unsigned>(std::bit_width(count - 1) + 1) / 2;
    }
  }

  // Which sample stands at the place, which is below count.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t place) const noexcept {
    if (list_ != nullptr) return (*list_)[static_cast<std::size_t>(place)];
    std::uint64_t at = scramble(place);
    while (at >= count_) at = scramble(at);
    return at;
  }

 private:
  static constexpr std::uint64_t largest_list = 65536;

  [[nodiscard]] std::uint64_t scramble(std::uint64_t at) const noexcept {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = at >> half_bits_;
    std::uint64_t right = at & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (mix_bits(key + right) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t count_;
  std::array<std::uint64_t, 6> keys_{};                     // of the rounds
  std::shared_ptr<const std::vector<std::size_t>> list_{};  // so that copies cost nothing
  unsigned half_bits_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
