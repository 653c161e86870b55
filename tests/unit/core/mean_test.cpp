// SPDX-License-Identifier: MIT
#include "railyard/core/mean.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <limits>

namespace ry = railyard;

TEST_CASE("Mean: merging parts of different weight gives the mean of the whole") {
  ry::Mean left;
  ry::Mean right;
  left.add(1.0, 3);
  right.add(5.0, 1);
  right.add_sum(4.0, 4);
  left.merge(right);
  CHECK(left.value() == Approx(12.0 / 8.0));
}

TEST_CASE("Mean: a value of weight zero is left out, even NaN") {
  ry::Mean mean;
  mean.add(2.0, 1);
  mean.add(std::numeric_limits<double>::quiet_NaN(), 0);
  CHECK(mean.value() == 2.0);
}

TEST_CASE("Mean: is NaN while empty and after a reset") {
  ry::Mean mean;
  CHECK(std::isnan(mean.value()));
  CHECK_FALSE(std::signbit(mean.value()));  // which would be printed
  mean.add(1, 1);
  mean.reset();
  CHECK(mean.weight() == 0);
}

TEST_CASE("Mean: goes on from a saved state") {
  ry::Mean saved;
  saved.add(3.0, 2);
  ry::Mean loaded;
  loaded.load_state(saved.state());
  CHECK(loaded.sum() == 6.0);
  CHECK(loaded.weight() == 2.0);
  CHECK_THROWS_WITH(loaded.load_state({{"sum", 1.0}}), ContainsSubstring("weight"));
}
