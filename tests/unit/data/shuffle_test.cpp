// SPDX-License-Identifier: MIT
#include "railyard/data/shuffle.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <array>

namespace ry = railyard;

TEST_CASE("shuffled_indices: holds every index once when count is small, odd or large") {
  for (const std::size_t count : {0U, 1U, 2U, 7U, 1000U, 65537U}) {
    auto indices = ry::detail::shuffled_indices(count, 5);
    std::sort(indices.begin(), indices.end());
    CHECK(indices == ry::detail::ordered_indices(count));
  }
}

TEST_CASE("shuffled_indices: is the same order on every machine") {
  // Written down once: whoever changes the generator breaks the resumption of runs, and sees it here.
  CHECK(ry::detail::shuffled_indices(10, 1) == std::vector<std::size_t>{4, 2, 8, 1, 9, 3, 0, 6, 7, 5});
}

TEST_CASE("shuffled_indices: differs when the seed differs by one") {
  const auto one = ry::detail::shuffled_indices(1000, 1);
  const auto two = ry::detail::shuffled_indices(1000, 2);
  int equal_places = 0;
  for (std::size_t i = 0; i < one.size(); ++i) equal_places += one[i] == two[i] ? 1 : 0;
  CHECK(equal_places < 12);  // one is expected; twelve has a probability below 1e-9
}

TEST_CASE("shuffled_indices: puts every index first equally often") {
  std::array<int, 5> firsts{};
  for (std::uint64_t seed = 0; seed < 5000; ++seed) ++firsts[ry::detail::shuffled_indices(5, seed).front()];
  for (const int count : firsts) CHECK(std::abs(count - 1000) < 170);  // six standard deviations of 28
}

TEST_CASE("Draws: stay below their limit when it is no power of two") {
  ry::detail::Draws draws{3};
  for (int i = 0; i < 1000; ++i) CHECK(draws.below(3) < 3);
  CHECK(draws.below(1) == 0);
}

TEST_CASE("derive_seed: separates uses and seeds") {
  CHECK(ry::detail::derive_seed(1, 2) != ry::detail::derive_seed(2, 1));
  CHECK(ry::detail::derive_seed(0, 0) != ry::detail::derive_seed(0, 1));
  CHECK(ry::detail::derive_seed(7, 7) != 0);
}

TEST_CASE("part_of: covers the range without gap or overlap, in sizes that differ by at most one") {
  for (std::size_t size = 0; size < 20; ++size) {
    for (const std::size_t parts : {1U, 2U, 3U, 4U, 7U}) {
      std::size_t at = 100;
      std::size_t smallest = size;
      std::size_t largest = 0;
      for (std::size_t part = 0; part < parts; ++part) {
        const auto range = ry::detail::part_of({100, 100 + size}, part, parts);
        CHECK(range.begin == at);
        at = range.end;
        smallest = std::min(smallest, range.size());
        largest = std::max(largest, range.size());
      }
      CHECK(at == 100 + size);
      CHECK(largest - smallest <= 1);
    }
  }
}
