// SPDX-License-Identifier: MIT
#include "railyard/core/error.hpp"

#include "support/catch.hpp"

namespace ry = railyard;

TEST_CASE("Error: every kind can be caught as Error and as std::runtime_error") {
  CHECK_THROWS_AS(throw ry::ConfigError{"x"}, ry::Error);
  CHECK_THROWS_AS(throw ry::DataError{"x"}, ry::Error);
  CHECK_THROWS_AS((throw ry::CollectiveError{"barrier", 0, {}, "x"}), ry::Error);
  CHECK_THROWS_AS((throw ry::WorkerError{0, "x"}), std::runtime_error);
}

TEST_CASE("CollectiveError: keeps operation, rank and who is to blame") {
  const ry::CollectiveError error{"all_reduce(sum, 8 x f32)", 1, {0, 3}, "ranks 0 and 3 did not answer"};
  CHECK(error.operation() == "all_reduce(sum, 8 x f32)");
  CHECK(error.rank() == 1);
  CHECK(error.blamed() == std::vector<int>{0, 3});
  CHECK(std::string{error.what()} == "ranks 0 and 3 did not answer");
}
