// SPDX-License-Identifier: MIT
#include "railyard/data/any_preprocessor.hpp"

#include "railyard/data/concatenator.hpp"
#include "railyard/data/scalers.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <vector>

namespace ry = railyard;

namespace any_preprocessor_test {
using preprocessing::Rows;
using preprocessing::values_of;

TEST_CASE("AnyPreprocessor: does what the one inside does") {
  const ry::Block block = Rows{}.numbers<double>("a", {1, 2, 4}).block();
  const ry::AnyPreprocessor scaler =
      preprocessing::fitted_by_workers(ry::AnyPreprocessor{ry::MaxAbsScaler{{.columns = {"a"}}}}, block, 2);
  CHECK(scaler.passes() == 1);
  CHECK(values_of(scaler.transform(block), "a") == std::vector<double>{0.25, 0.5, 1});
  CHECK(scaler.schema(block.schema()) == block.schema());
  const ry::AnyPreprocessor loaded = preprocessing::reloaded(scaler, ry::AnyPreprocessor{ry::MaxAbsScaler{}});
  CHECK(values_of(loaded.transform(block), "a") == std::vector<double>{0.25, 0.5, 1});
}

TEST_CASE("AnyPreprocessor: has no state and needs no samples where the one inside learns nothing") {
  const ry::AnyPreprocessor concatenator{ry::Concatenator{{.columns = {"a"}}}};
  CHECK(concatenator.passes() == 0);
  CHECK(concatenator.state().tensors.empty());
  CHECK(concatenator.statistics().empty());
}
}  // namespace any_preprocessor_test
