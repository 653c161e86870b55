// SPDX-License-Identifier: MIT
#include "railyard/core/pool_statistics.hpp"
#include "railyard/core/detail/heap.hpp"

#include "support/catch.hpp"

#include <cstddef>
#include <memory>

namespace ry = railyard;

TEST_CASE("PoolStatistics: tells bytes in use, the most there were, those that are kept, and requests by number") {
  constexpr std::size_t one_mib = std::size_t{1} << 20U;
  const std::shared_ptr<ry::detail::Heap> heap = ry::detail::make_private_heap(64 * one_mib, 64 * one_mib);
  REQUIRE(heap != nullptr);
  void* one = heap->allocate(one_mib);
  void* other = heap->allocate(2 * one_mib);
  const ry::PoolStatistics both = heap->statistics();
  CHECK((both.in_use_bytes >= 3 * one_mib && both.in_use_bytes < 3 * one_mib + 4096));
  CHECK(both.peak_bytes == both.in_use_bytes);
  CHECK(both.held_bytes >= both.in_use_bytes);
  CHECK((both.allocations == 2 && both.exhausted == 0));

  heap->deallocate(other);
  const ry::PoolStatistics after = heap->statistics();
  CHECK((after.in_use_bytes >= one_mib && after.in_use_bytes < one_mib + 4096));
  CHECK(after.peak_bytes == both.peak_bytes);
  CHECK(after.held_bytes == both.held_bytes);

  CHECK(heap->allocate(100 * one_mib) == nullptr);
  CHECK(heap->statistics().exhausted == 1);
  CHECK(heap->statistics().allocations == 2);
  heap->deallocate(one);
}
