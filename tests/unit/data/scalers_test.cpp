// SPDX-License-Identifier: MIT
#include "railyard/data/scalers.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace scalers_test {
using preprocessing::are_near;
using preprocessing::fitted;
using preprocessing::infinity;
using preprocessing::nan;
using preprocessing::Rows;
using preprocessing::values_of;

inline ry::Block numbers() {
  return Rows{}
      .numbers<double>("a", {1, 2, 4, 10, nan})
      .numbers<double>("b", {-2, 4, nan, 0, 3})
      .numbers<double>("large", {1e9 + 1, 1e9 + 2, 1e9 + 4, 1e9 + 7, 1e9 + 16})
      .numbers<std::int32_t>("label", {0, 1, 2, 3, 4})
      .block();
}
template <class Scaler>
ry::Block scaled(typename Scaler::Options options, const ry::Block& block) {
  return fitted(Scaler{std::move(options)}, block).transform(block);
}

// The expected numbers are scikit-learn 1.2.1's, as its repr() prints them.
TEST_CASE("StandardScaler: gives scikit-learn's values and leaves other columns alone") {
  const ry::Block block = scaled<ry::StandardScaler>({.except = {"label"}}, numbers());
  CHECK(are_near(values_of(block, "a"),
                 {-0.9309493362512627, -0.6445033866354896, -0.0716114874039433, 1.6470642102906956, nan}));
  CHECK(are_near(values_of(block, "b"),
                 {-1.3627702877384937, 1.1531133203941102, nan, -0.5241424183609592, 0.7337993857053429}));
  CHECK(are_near(values_of(block, "large"), {-0.9252915127470066, -0.7402332101976052, -0.3701166050988026,
                                             0.1850583025494013, 1.8505830254940132}));
  CHECK(values_of(block, "label") == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(block.schema() == numbers().schema());
}

TEST_CASE("StandardScaler: can center alone and scale alone") {
  const auto both = fitted(ry::StandardScaler{{.columns = {"a"}}}, numbers()).learned()[0];
  CHECK(both.mean == 4.25);
  CHECK(both.variance == 12.1875);
  CHECK(values_of(scaled<ry::StandardScaler>({.columns = {"a"}, .scales = false}, numbers()), "a")[0] == -3.25);
  CHECK(values_of(scaled<ry::StandardScaler>({.columns = {"a"}, .centers = false}, numbers()), "a")[0] ==
        Approx(1 / both.scale));
}

TEST_CASE("StandardScaler: keeps its digits where all numbers are large and close together") {
  const ry::Block block = Rows{}.numbers<double>("a", {1e15 + 4, 1e15 + 7, 1e15 + 13, 1e15 + 16}).block();
  for (const std::size_t workers : {1U, 2U, 4U}) {
    const auto scaler = preprocessing::fitted_by_workers(ry::StandardScaler{{.columns = {"a"}}}, block, workers);
    CHECK(scaler.learned()[0].variance == 22.5);  // sums of squares of such numbers lose all digits of it
  }
}

TEST_CASE("StandardScaler: refuses numbers whose squares do not fit") {
  const ry::Block block = Rows{}.numbers<double>("a", {-1e200, 1e200}).block();
  CHECK_THROWS_AS(fitted(ry::StandardScaler{{.columns = {"a"}}}, block), ry::DataError);
}

TEST_CASE("MinMaxScaler: gives scikit-learn's values") {
  const ry::Block block = scaled<ry::MinMaxScaler>({.except = {"label"}, .low = -1}, numbers());
  CHECK(are_near(values_of(block, "a"), {-1, -0.7777777777777779, -0.3333333333333335, 1, nan}));
  CHECK(are_near(values_of(block, "b"), {-1, 1, nan, -0.33333333333333337, 0.6666666666666666}));
  // Of numbers around 1e9 scikit-learn's own formula loses the last eight digits.
  CHECK(are_near(values_of(block, "large"), {-1, -13.0 / 15, -0.6, -0.2, 1}));
}

TEST_CASE("MinMaxScaler: keeps values that it did not learn from within the range when it is to") {
  const auto scaler = fitted(ry::MinMaxScaler{{.columns = {"a"}, .clips = true}}, numbers());
  const ry::Block block = Rows{}.numbers<double>("a", {-5, 1, 12, infinity, nan}).block();
  CHECK(are_near(values_of(scaler.transform(block), "a"), {0, 0, 1, 1, nan}));
  CHECK_THROWS_AS((ry::MinMaxScaler{{.columns = {"a"}, .low = 1}}), ry::ConfigError);
}

TEST_CASE("MaxAbsScaler: gives scikit-learn's values") {
  const ry::Block block = scaled<ry::MaxAbsScaler>({.columns = {"a", "b"}}, numbers());
  CHECK(are_near(values_of(block, "a"), {0.1, 0.2, 0.4, 1, nan}));
  CHECK(are_near(values_of(block, "b"), {-0.5, 1, nan, 0, 0.75}));
}

TEST_CASE("RobustScaler: gives scikit-learn's values") {
  const ry::Block block = scaled<ry::RobustScaler>({.columns = {"a", "b", "large"}}, numbers());
  CHECK(are_near(values_of(block, "a"),
                 {-0.5333333333333333, -0.26666666666666666, 0.26666666666666666, 1.8666666666666667, nan}));
  CHECK(are_near(values_of(block, "b"), {-0.9333333333333333, 0.6666666666666666, nan, -0.4, 0.4}));
  CHECK(are_near(values_of(block, "large"), {-0.6, -0.4, 0, 0.6, 2.4}));
  const auto wide = fitted(ry::RobustScaler{{.columns = {"a"}, .low = 0.1, .high = 0.8}}, numbers()).learned()[0];
  CHECK(wide.median == 3);
  CHECK(wide.scale == Approx(5.100000000000002).epsilon(1e-15));
  CHECK(wide.error_bound == 0);
  CHECK_THROWS_AS((ry::RobustScaler{{.columns = {"a"}, .low = 0.8, .high = 0.2}}), ry::ConfigError);
}

TEST_CASE("Scalers: give numbers for the largest there are, or say that they are too far apart") {
  constexpr double huge = 1.5e308;
  const ry::Block apart = Rows{}.numbers<double>("a", {-huge, 0, huge}).block();
  CHECK_THROWS_WITH(scaled<ry::MinMaxScaler>({.columns = {"a"}}, apart), ContainsSubstring("MinMaxScaler met numbers"));
  CHECK_THROWS_WITH(scaled<ry::RobustScaler>({.columns = {"a"}, .low = 0, .high = 1}, apart),
                    ContainsSubstring("RobustScaler met numbers too far apart"));
  CHECK_THROWS_WITH(scaled<ry::StandardScaler>({.columns = {"a"}}, apart), ContainsSubstring("too large or too far"));
  CHECK(values_of(scaled<ry::MaxAbsScaler>({.columns = {"a"}}, apart), "a") == std::vector<double>{-1, 0, 1});

  const ry::Block large = Rows{}.numbers<double>("a", {0.1e308, 0.2e308, 0.5e308}).block();
  const auto far = Rows{}.numbers<double>("a", {-huge}).block();
  const auto range = fitted(ry::MinMaxScaler{{.columns = {"a"}}}, large);
  CHECK(are_near(values_of(range.transform(large), "a"), {0, 0.25, 1}));
  CHECK(are_near(values_of(range.transform(far), "a"), {-4}));
  const auto robust = fitted(ry::RobustScaler{{.columns = {"a"}, .low = 0, .high = 1}}, large);
  CHECK(are_near(values_of(robust.transform(far), "a"), {-4.25}));

  for (const double wrong : {infinity, nan}) {
    CHECK_THROWS_WITH(ry::MinMaxScaler({.columns = {"a"}, .high = wrong}), ContainsSubstring("both finite"));
  }
  CHECK_THROWS_WITH(ry::MinMaxScaler({.columns = {"a"}, .low = -huge, .high = huge}), ContainsSubstring("both finite"));
}

}  // namespace scalers_test
