// SPDX-License-Identifier: MIT
#include "railyard/data/sample_random.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <random>

namespace ry = railyard;

static_assert(std::uniform_random_bit_generator<ry::SampleRandom>);

TEST_CASE("SampleRandom: draws the same numbers on every machine") {
  ry::SampleRandom random{ry::detail::EpochKey{1, 2}.derive(3)};
  CHECK(random() == 17164994377923315769U);  // written down once: whoever changes it changes what runs go on with
}

TEST_CASE("SampleRandom: draws evenly and normally") {
  ry::SampleRandom random{7};
  double sum = 0;
  double normal_sum = 0;
  double squares = 0;
  int hits = 0;
  const int draws = 100000;
  for (int draw = 0; draw < draws; ++draw) {
    const double even = random.uniform(-1, 3);
    REQUIRE((even >= -1 && even < 3));
    sum += even;
    const double normal = random.normal(2, 3);
    normal_sum += normal;
    squares += (normal - 2) * (normal - 2);
    hits += random.chance(0.25) ? 1 : 0;
    REQUIRE(random.below(3) < 3);
  }
  // Six standard deviations each.
  CHECK(std::abs(sum / draws - 1) < 6 * 1.155 / std::sqrt(draws));
  CHECK(std::abs(normal_sum / draws - 2) < 6 * 3 / std::sqrt(draws));
  CHECK(std::abs(squares / draws - 9) < 6 * 9 * std::sqrt(2.0 / draws));
  CHECK(std::abs(hits - draws / 4) < 6 * std::sqrt(draws * 0.1875));
}

TEST_CASE("EpochKey: derives other seeds for other seeds, epochs and uses") {
  const auto seed = ry::detail::EpochKey{1, 2}.derive(3);
  CHECK(seed != ry::detail::EpochKey{2, 2}.derive(3));
  CHECK(seed != ry::detail::EpochKey{1, 3}.derive(3));
  CHECK(seed != ry::detail::EpochKey{1, 2}.derive(4));
}
