// SPDX-License-Identifier: MIT
// Optimised in any build: where a product may be fused with a sum, g++ does so from -O2 on.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2")
#endif
#include "railyard/collectives/detail/vector_reduce.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <cstring>
#include <vector>

namespace ry = railyard;

TEST_CASE("sum: a value has the same bits whatever number of others is summed with it (FAULTS D31)") {
  constexpr std::size_t count = 67;
  std::vector<float> one(count);
  std::vector<float> other(count);
  std::vector<float> together(count);
  for (std::size_t i = 0; i < count; ++i) {
    one[i] = std::sin(static_cast<float>(i) + 1.0F);
    other[i] = std::cos(static_cast<float>(i) * 3.3F);
  }
  const std::vector<float> weights{3, 7};
  const auto sum = [&](float* target, std::size_t first, std::size_t number) {
    const std::array<const float*, 2> sources{one.data() + first, other.data() + first};
    const std::array<float*, 1> targets{target};
    return ry::detail::sum(ry::detail::SumTask<float>{
        .targets = targets, .sources = sources, .weights = weights.data(), .divisor = 10, .count = number});
  };
  CHECK(sum(together.data(), 0, count));
  for (std::size_t i = 0; i < count; ++i) {
    float alone = 0;
    CHECK(sum(&alone, i, 1));
    INFO("element " << i);
    CHECK(std::memcmp(&alone, &together[i], sizeof alone) == 0);
  }
}
