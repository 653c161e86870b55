// SPDX-License-Identifier: MIT
// Memory that was there before: how much it is, and that it costs no page faults.
#include "railyard/collectives/detail/segment.hpp"

#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/memory_flags.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace ry = railyard;

#if !defined(__SANITIZE_THREAD__)  // which has pages of its own for each that is written to
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t num_pages = 256;

std::shared_ptr<ry::detail::Mapping> map_small_pages(const ry::detail::Descriptor& file, std::size_t count) {
  auto mapping = ry::detail::map_shared(file, count * page, "a test");
  ::madvise(mapping->base(), mapping->size(), MADV_NOHUGEPAGE);  // which are counted below
  return mapping;
}

// Writes to every page, and returns how many of them the system had to bring.
long faults_of_writing(const ry::detail::Mapping& mapping, std::size_t first, std::size_t count) {
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const long before = faults();
  for (std::size_t at = first; at < first + count; ++at) mapping.base()[at * page] = std::byte{1};
  return faults() - before;
}

}  // namespace

TEST_CASE("Segment: pages that a file has already are mapped at once, and holes take no memory") {
  ry::detail::Descriptor file = ry::detail::size_memory_file({}, 4 * num_pages * page, "a test");
  {
    const auto first = map_small_pages(file, 4 * num_pages);
    CHECK(faults_of_writing(*first, 0, num_pages) >= static_cast<long>(num_pages));
    CHECK(faults_of_writing(*first, 2 * num_pages, num_pages) >= static_cast<long>(num_pages));
  }
  CHECK(ry::detail::memory_of(file) == 2 * num_pages * page);
  file = ry::detail::size_memory_file(std::move(file), 3 * num_pages * page, "a test");
  const auto second = map_small_pages(file, 3 * num_pages);
  ry::detail::map_pages(file, *second);
  CHECK(ry::detail::memory_of(file) == 2 * num_pages * page);
  CHECK(faults_of_writing(*second, 0, num_pages) < static_cast<long>(num_pages) / 4);
  CHECK(faults_of_writing(*second, 2 * num_pages, num_pages) < static_cast<long>(num_pages) / 4);
}
#endif

TEST_CASE("Segment: a file that is not there takes no memory") {
  CHECK(ry::detail::memory_of(ry::detail::Descriptor{}) == 0);
}

TEST_CASE("Segment: one that is larger than files may be is an error with the remedy and no signal") {
  const FileSizeLimit limit{4096};
  CHECK_THROWS_WITH(ry::detail::size_memory_file({}, 8192, "a test"),
                    ContainsSubstring("ftruncate()") && ContainsSubstring("ulimit -f"));
}

TEST_CASE("Segment: is left out of core dumps, each of which would hold the memory of all ranks (TRAPS 26)") {
  const ry::detail::Descriptor file = ry::detail::size_memory_file({}, 4096, "a test");
  const auto mapping = ry::detail::map_shared(file, 4096, "a test");
  CHECK(is_left_out_of_core_dumps(mapping->base()));
}

TEST_CASE(
    "Segment: arenas of a group lie at other places within a page, or the cache took their lines for one another") {
  constexpr int most_ranks = 32;  // after so many the places come again
  const ry::detail::SegmentLayout layout{.world_size = most_ranks, .arena_size = std::size_t{1} << 30U};
  std::vector<std::size_t> places;
  for (int rank = 0; rank < most_ranks; ++rank) {
    CHECK(layout.arena(rank) % 64 == 0);
    places.push_back(layout.arena(rank) % 4096);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) CHECK(places[i] - places[i - 1] >= 64);
}
