// SPDX-License-Identifier: MIT
#include "railyard/data/detail/quantile_sketch.hpp"

#include "railyard/data/detail/byte_archive.hpp"

#include "support/catch.hpp"
#include "support/sanitizers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace quantile_sketch_test {
using railyard::detail::QuantileSketch;

inline std::vector<double> random_values(std::size_t count, unsigned seed) {
  std::mt19937_64 generator{seed};
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = std::round(normal(generator) * 1000) / 1000;
  return values;
}
/// How far the rank of a value among the sorted ones is from what it should be, as a part of all.
inline double rank_error(const std::vector<double>& sorted, double value, double part) {
  const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), value);
  const double wanted = part * static_cast<double>(sorted.size() - 1);
  const double off = std::max(
      {0.0, static_cast<double>(first - sorted.begin()) - wanted, wanted - static_cast<double>(last - sorted.begin())});
  return off / static_cast<double>(sorted.size());
}

TEST_CASE("QuantileSketch: is exact up to its capacity, however it was merged") {
  // Expected: numpy.percentile([1, 2, 4, 10, 20, 21, 40], [0, 10, 25, 50, 90, 100]), numpy 1.24.2.
  const std::vector<double> values{40, 1, 2, 20, 21, 10, 4};
  const std::array parts{0.0, 0.1, 0.25, 0.5, 0.9, 1.0};
  for (std::size_t cut = 0; cut <= values.size(); ++cut) {
    QuantileSketch sketch{7};
    QuantileSketch other{7};
    sketch.add(std::span{values}.first(cut));
    other.add(std::span{values}.subspan(cut));
    sketch.merge(other);
    CHECK(sketch.error_bound() == 0);
    CHECK(sketch.quantiles(parts) == std::vector<double>{1, 1.6, 3, 10, 28.60000000000001, 40});
  }
}

TEST_CASE("QuantileSketch: keeps its bounds beyond its capacity, for values in any order and by any workers") {
  constexpr std::size_t capacity = 256;
  std::vector<double> values = random_values(railyard_test::fewer(200'000U), 1);
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const int order = GENERATE(0, 1, 2);
  if (order == 1) values = sorted;
  if (order == 2) std::reverse_copy(sorted.begin(), sorted.end(), values.begin());
  const std::size_t workers = GENERATE(1U, 3U, 50U);
  QuantileSketch sketch{capacity};
  for (std::size_t worker = 0; worker < workers; ++worker) {
    QuantileSketch part{capacity};
    const std::size_t begin = values.size() * worker / workers;
    part.add(std::span{values}.subspan(begin, values.size() * (worker + 1) / workers - begin));
    sketch.merge(railyard::detail::from_bytes<QuantileSketch>(railyard::detail::to_bytes(part)));
  }
  CHECK(sketch.count() == values.size());
  const auto n = static_cast<double>(values.size());
  CHECK(sketch.error_bound() > 0);
  CHECK(sketch.error_bound() < (std::log2(n / capacity) + 1) / capacity);
  for (const double part : {0.0, 0.001, 0.05, 0.25, 0.5, 0.75, 0.99, 1.0}) {
    CAPTURE(order, workers, part);
    CHECK(rank_error(sorted, sketch.quantiles(std::array{part}).front(), part) <= sketch.error_bound() + 1 / n);
  }
}

TEST_CASE("QuantileSketch: takes bounded memory") {
  QuantileSketch sketch{128};
  for (unsigned block = 0; block < 1000; ++block) sketch.add(random_values(1000, block));
  CHECK(railyard::detail::to_bytes(sketch).size() < 128 * 8 * 14 + 1000);  // levels of a million by 128, and one
}

TEST_CASE("QuantileSketch: refuses one of another capacity") {
  QuantileSketch sketch{128};
  CHECK_THROWS_AS(sketch.merge(QuantileSketch{64}), railyard::ConfigError);
}
}  // namespace quantile_sketch_test
