// SPDX-License-Identifier: MIT
#include "railyard/core/confusion_matrix.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

namespace ry = railyard;

namespace confusion_matrix_test {

inline ry::ConfusionMatrix eight_samples() {
  ry::ConfusionMatrix matrix{5};
  matrix.add(std::vector<std::int64_t>{0, 2, 2, 1, 1, 0, 2, 0}, std::vector<std::int64_t>{0, 1, 2, 2, 1, 0, 2, 4});
  return matrix;
}

// The expected numbers are those of sklearn.metrics, scikit-learn 1.2.1, with zero_division=0.
TEST_CASE("ConfusionMatrix: gives scikit-learn's counts and ratios") {
  const ry::ConfusionMatrix matrix = eight_samples();
  CHECK(matrix.count(1, 2) == 1);
  CHECK(matrix.count(2, 2) == 2);
  CHECK(matrix.count(4, 0) == 1);
  CHECK(matrix.count(0, 4) == 0);
  CHECK(matrix.support(2) == 3);
  CHECK(matrix.precision(0) == Approx(2.0 / 3));
  CHECK(matrix.recall(0) == 1);
  CHECK(matrix.f1(0) == Approx(0.8));
  CHECK(matrix.f1(1) == Approx(0.5));
  CHECK(matrix.f1(2) == Approx(2.0 / 3));
  CHECK(matrix.macro_f1() == Approx(0.4916666666666667).epsilon(1e-15));
  CHECK(matrix.weighted_f1() == Approx(0.575).epsilon(1e-15));
  CHECK(matrix.accuracy() == 0.625);
}

TEST_CASE("ConfusionMatrix: a class that there is not has ratios of 0") {
  CHECK(eight_samples().precision(3) == 0);
  CHECK(eight_samples().recall(3) == 0);
  CHECK(eight_samples().f1(3) == 0);
  CHECK(ry::ConfusionMatrix{2}.macro_f1() == 0);
  CHECK(std::isnan(ry::ConfusionMatrix{2}.accuracy()));
  CHECK_FALSE(std::signbit(ry::ConfusionMatrix{2}.accuracy()));
}

TEST_CASE("ConfusionMatrix: leaves padding out and refuses what is no class") {
  ry::ConfusionMatrix matrix{2};
  matrix.add(std::vector<std::int64_t>{1, 7}, std::vector<std::int64_t>{1, ry::ignored_label});
  CHECK(matrix.accuracy() == 1);
  CHECK_THROWS_WITH(matrix.add(std::vector<std::int64_t>{2}, std::vector<std::int64_t>{0}),
                    ContainsSubstring("of 2 classes was given the prediction 2"));
  CHECK_THROWS_AS(matrix.add(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{-1}), ry::DataError);
  CHECK_THROWS_AS(matrix.add({}, std::vector<std::int64_t>{0}), ry::ConfigError);
  CHECK_THROWS_AS(matrix.merge(ry::ConfusionMatrix{3}), ry::ConfigError);
  CHECK_THROWS_AS(ry::ConfusionMatrix{0}, ry::ConfigError);
  for (const std::size_t many : {SIZE_MAX, std::size_t{1} << 32U, std::size_t{65'537}}) {  // products wrap
    CHECK_THROWS_WITH(ry::ConfusionMatrix{many}, ContainsSubstring("1 to 65536"));
  }
  CHECK_THROWS_AS(matrix.add(std::vector<std::int64_t>{0, 2}, std::vector<std::int64_t>{0, 0}), ry::DataError);
  CHECK(matrix.count(0, 0) == 0);  // nothing of a batch that is refused is added
}

TEST_CASE("ConfusionMatrix: goes on from a saved state of its size") {
  const ry::ConfusionMatrix saved = eight_samples();
  ry::ConfusionMatrix loaded{5};
  loaded.load_state(saved.state());
  loaded.merge(eight_samples());
  CHECK(loaded.count(2, 2) == 4);
  ry::ConfusionMatrix other{4};
  CHECK_THROWS_AS(other.load_state(saved.state()), ry::DataError);
}
}  // namespace confusion_matrix_test
