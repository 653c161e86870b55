// SPDX-License-Identifier: MIT
#include "railyard/data/detail/permutation.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <vector>

namespace ry = railyard;

TEST_CASE("Permutation: holds every number once, as a list and computed place by place") {
  for (const std::uint64_t count : {0U, 1U, 2U, 65536U, 65537U, 100000U, 262144U, 262145U}) {
    const ry::detail::Permutation order{count, 9};
    std::vector<bool> seen(count);
    for (std::uint64_t place = 0; place < count; ++place) {
      const std::uint64_t sample = order(place);
      REQUIRE(sample < count);
      REQUIRE(!seen[sample]);
      seen[sample] = true;
    }
  }
}

TEST_CASE("Permutation: is the same order on every machine") {
  // Written down once: whoever changes them breaks the resumption of runs, and sees it here.
  const ry::detail::Permutation list{10, 1};
  CHECK(list(0) == 4);
  CHECK(list(9) == 5);
  const ry::detail::Permutation computed{1000000000, 1};
  CHECK(computed(0) == 182096979);
  CHECK(computed(999999999) == 471874262);
}

TEST_CASE("Permutation: looks random where it is computed") {
  const std::uint64_t count = 200000;
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const ry::detail::Permutation order{count, seed};
    const ry::detail::Permutation next{count, seed + 1};
    std::vector<int> cells(100);
    int stays = 0;
    int equal = 0;
    int rises = 0;
    double product = 0;
    for (std::uint64_t place = 0; place < count; ++place) {
      const std::uint64_t sample = order(place);
      // Which tenth goes into which tenth: 2000 each, with a standard deviation below 45.
      ++cells[place * 10 / count * 10 + sample * 10 / count];
      stays += sample == place ? 1 : 0;
      equal += sample == next(place) ? 1 : 0;
      if (place + 1 < count) rises += order(place + 1) > sample ? 1 : 0;
      product += (static_cast<double>(place) / count - 0.5) * (static_cast<double>(sample) / count - 0.5);
    }
    for (const int cell : cells) CHECK(std::abs(cell - 2000) < 270);
    CHECK(stays < 12);  // one is expected; twelve has a probability below 1e-9
    CHECK(equal < 12);
    CHECK(std::abs(rises - 100000) < 6 * 130);                     // a deviation of the root of count / 12
    CHECK(std::abs(product / count * 12) < 6 / std::sqrt(count));  // correlation of place and sample
  }
}
