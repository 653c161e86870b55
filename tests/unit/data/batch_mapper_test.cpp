// SPDX-License-Identifier: MIT
#include "railyard/data/batch_mapper.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace batch_mapper_test {
using preprocessing::Rows;
using preprocessing::values_of;

inline ry::Block with_sum(const ry::Block& block) {
  std::vector<double> sums = values_of(block, "a");
  const std::vector<double> other = values_of(block, "b");
  for (std::size_t row = 0; row < sums.size(); ++row) sums[row] += other[row];
  const ry::Field field{.name = "sum", .dtype = ry::Dtype::f64};
  return ry::detail::with_columns(block, {field}, {ry::Column{field, sums}});
}

TEST_CASE("BatchMapper: applies a function, and asks it for the columns that it makes") {
  const ry::Block block =
      Rows{}.numbers<float>("a", {1, 2}).texts("t", {"x", "y"}).numbers<double>("b", {10, 20}).block();
  const ry::BatchMapper mapper{with_sum};
  CHECK(values_of(mapper.transform(block), "sum") == std::vector<double>{11, 22});
  CHECK(mapper.schema(block.schema()) == mapper.transform(block).schema());
}

TEST_CASE("BatchMapper: refuses a function that drops samples or changes their order, and none") {
  const ry::Block block = Rows{}.numbers<float>("a", {1, 2}).block();
  CHECK_THROWS_AS(ry::BatchMapper{[](const ry::Block& all) { return all.slice(0, 1); }}.transform(block),
                  ry::DataError);
  CHECK_THROWS_AS(ry::BatchMapper{[](const ry::Block& all) {
                    return all.take(std::vector<std::size_t>{1, 0});
                  }}.transform(block),
                  ry::DataError);
  CHECK_THROWS_AS(ry::BatchMapper{nullptr}, ry::ConfigError);
}
}  // namespace batch_mapper_test
