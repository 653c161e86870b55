// SPDX-License-Identifier: MIT
#include "railyard/data/fit.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include "railyard/core/error.hpp"
#include "railyard/data/chain.hpp"
#include "railyard/data/concatenator.hpp"
#include "railyard/data/scalers.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace fit_test {

/// Has the numbers from 0 in "x", and whether they are odd in "label".
inline ry::Dataset numbers(std::size_t count) {
  std::vector<double> x(count);
  std::iota(x.begin(), x.end(), 0.0);
  std::vector<std::int64_t> labels;
  for (std::size_t at = 0; at < count; ++at) labels.push_back(static_cast<std::int64_t>(at % 2));
  return ry::Dataset::from_columns({{"x", x}, {"label", labels}}).with_label("label");
}

inline ry::Block only_block(const ry::Dataset& dataset) {
  ry::EpochReader reader{dataset, {.global_batch_size = 1U << 20U}};
  return reader.next()->block;
}

TEST_CASE("fit: learns from all samples of a dataset, in several blocks and after its operations") {
  const ry::Dataset evens =
      numbers(20'001).filter([](const ry::Sample& sample) { return sample.number("label") == 0; });
  ry::MinMaxScaler scaler{{.columns = {"x"}}};
  ry::StandardScaler standard{{.columns = {"x"}}};
  ry::fit(scaler, evens);
  ry::fit(standard, evens);
  CHECK(scaler.learned()[0].smallest == 0);
  CHECK(scaler.learned()[0].largest == 20'000);
  CHECK(standard.learned()[0].mean == Approx(10'000).epsilon(1e-13));
}

TEST_CASE("fit: learns in as many passes as a Chain needs") {
  ry::Chain chain{ry::MinMaxScaler{{.columns = {"x"}}}, ry::MaxAbsScaler{{.columns = {"x"}}}};
  REQUIRE(chain.passes() == 2);
  ry::fit(chain, numbers(5));
  CHECK(only_block(numbers(5).transform(chain)).column("x").values<double>()[1] == 0.25);
}

TEST_CASE("fit: refuses a dataset without samples") {
  ry::StandardScaler scaler{{.columns = {"x"}}};
  CHECK_THROWS_AS(ry::fit(scaler, numbers(3).take(0)), ry::DataError);
}

TEST_CASE("Dataset: transform changes samples by what was learned, and keeps what else the dataset is") {
  ry::Chain chain{ry::MinMaxScaler{{.columns = {"x"}}}, ry::Concatenator{{.columns = {"x"}}}};
  ry::fit(chain, numbers(11));
  const ry::Dataset changed = numbers(21).undivided().transform(chain);
  CHECK(changed.label() == "label");
  CHECK_FALSE(changed.is_divided());
  CHECK(changed.is_indexed());
  CHECK(changed.count() == 21);
  CHECK(changed.schema().names() == "\"label\", \"data\"");
  CHECK(only_block(changed).column("data").values<float>()[20] == 2);
}

TEST_CASE("Dataset: transform takes what has been learned by then") {
  ry::MaxAbsScaler scaler{{.columns = {"x"}}};
  ry::fit(scaler, numbers(3));
  const ry::Dataset changed = numbers(3).transform(scaler);
  ry::fit(scaler, numbers(101));
  CHECK(only_block(changed).column("x").values<double>()[2] == 1);
}

TEST_CASE("Dataset: transform refuses what has learned nothing, or from other columns") {
  ry::StandardScaler scaler{{.columns = {"x"}}};
  CHECK_THROWS_AS(numbers(3).transform(scaler), ry::ConfigError);
  ry::fit(scaler, numbers(3));
  CHECK_THROWS_WITH(numbers(3).drop({"x"}).transform(scaler), ContainsSubstring("-> transform: "));
}

}  // namespace fit_test

TEST_CASE("fit: refuses a dataset that has no end") {
  ry::MaxAbsScaler scaler{{.columns = {"x"}}};
  const auto endless = ry::Dataset::from_columns({{"x", std::vector<float>{1, 2}}}).repeat();
  CHECK_THROWS_WITH(ry::fit(scaler, endless), ContainsSubstring("fit()") && ContainsSubstring("no end"));
  ry::fit(scaler, endless.take(3));
  CHECK(scaler.learned()[0].largest == 2);
}
