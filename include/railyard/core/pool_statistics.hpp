// SPDX-License-Identifier: MIT
// What a pool of memory holds. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <cstdint>

namespace railyard::inline v0_1 {

/// Says what a pool of memory holds, and what it has been asked for since it was made. Blocks are a little larger than
/// what was asked for.
struct PoolStatistics {
  std::size_t in_use_bytes = 0;   ///< in blocks that have been given out
  std::size_t peak_bytes = 0;     ///< the most that ever was in use
  std::size_t held_bytes = 0;     ///< in use, or kept for the next block instead of going back to the system
  std::uint64_t allocations = 0;  ///< blocks that have ever been given out
  std::uint64_t exhausted = 0;  ///< requests for which there was no room, and which LibTorch's own allocator has served
};

}  // namespace railyard::inline v0_1
