// SPDX-License-Identifier: MIT
// Gives every rank what each of them has. Train room.
#pragma once

#include "railyard/train/worker.hpp"

#include "railyard/core/buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Returns what each rank gives, in the order of ranks.
[[nodiscard]] inline std::vector<std::vector<std::byte>> gather_bytes(Worker& worker, std::vector<std::byte> mine) {
  const auto world_size = static_cast<std::size_t>(worker.world_size());
  const auto size = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(world_size);
  worker.all_gather(ConstBuffer{&size, 1, Dtype::i64}, buffer_of(sizes));
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  worker.all_gather_uneven(ConstBuffer{mine.data(), mine.size(), Dtype::u8},
                           Buffer{all.data(), all.size(), Dtype::u8, {}}, counts);
  std::vector<std::vector<std::byte>> parts;
  auto at = all.begin();
  for (const std::size_t count : counts) {
    parts.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return parts;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
