// SPDX-License-Identifier: MIT
#include "railyard/data/normalizer.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <vector>

namespace ry = railyard;

namespace normalizer_test {
using preprocessing::are_near;
using preprocessing::Rows;
using preprocessing::values_of;

inline ry::Block normalized(ry::Norm norm, const std::vector<double>& a, const std::vector<double>& b) {
  const ry::Block block = Rows{}.numbers("a", a).numbers("b", b).block(30);
  return ry::Normalizer{{.columns = {"a", "b"}, .norm = norm}}.transform(block);
}

// The expected numbers are those of sklearn.preprocessing.normalize, scikit-learn 1.2.1.
TEST_CASE("Normalizer: gives scikit-learn's values for each norm, and leaves zeros alone") {
  const auto check = [](ry::Norm norm, const std::vector<double>& a, const std::vector<double>& b) {
    const ry::Block block = normalized(norm, {3, 0, 1}, {-4, 0, 2});
    CHECK(are_near(values_of(block, "a"), a));
    CHECK(are_near(values_of(block, "b"), b));
  };
  check(ry::Norm::l1, {0.42857142857142855, 0, 0.3333333333333333}, {-0.5714285714285714, 0, 0.6666666666666666});
  check(ry::Norm::l2, {0.6, 0, 0.4472135954999579}, {-0.8, 0, 0.8944271909999159});
  check(ry::Norm::max, {0.75, 0, 0.5}, {-1, 0, 1});
}

TEST_CASE("Normalizer: takes numbers whose squares do not fit") {
  CHECK(are_near(values_of(normalized(ry::Norm::l2, {3e200}, {4e200}), "a"), {0.6}));
}

// As sklearn.preprocessing.normalize, scikit-learn 1.9.1, does: for f32 it is f32's rounding that counts.
TEST_CASE("Normalizer: leaves samples alone that are next to nothing") {
  for (const ry::Norm norm : {ry::Norm::l1, ry::Norm::l2, ry::Norm::max}) {
    CHECK(values_of(normalized(norm, {3e-200, 5e-311, 1e-16}, {4e-200, 0, 0}), "a") ==
          std::vector<double>{3e-200, 5e-311, 1e-16});
  }
  CHECK(are_near(values_of(normalized(ry::Norm::l2, {3e-14}, {4e-14}), "a"), {0.6}));
  const auto of_floats = [](float number) {
    return values_of(ry::Normalizer{{.columns = {"a"}}}.transform(Rows{}.numbers<float>("a", {number}).block()), "a")
        .front();
  };
  CHECK(of_floats(1e-6F) == double{1e-6F});
  CHECK(of_floats(2e-6F) == 1);
}

TEST_CASE("Normalizer: takes all elements of all columns together, and makes f64 of integers") {
  const ry::Block block = Rows{}.numbers<float>("a", {1, 1, 2, 0}, {2}).numbers<std::int32_t>("n", {2, 2}).block();
  const ry::Normalizer normalizer{{.columns = {"a", "n"}, .norm = ry::Norm::l1}};
  const ry::Block result = normalizer.transform(block);
  CHECK(result.schema() == normalizer.schema(block.schema()));
  CHECK(result.schema()[0] == block.schema()[0]);
  CHECK(result.schema()[1].dtype == ry::Dtype::f64);
  CHECK(values_of(result, "a") == std::vector<double>{0.25, 0.25, 0.5, 0});
  CHECK(values_of(result, "n") == std::vector<double>{0.5, 0.5});
}

TEST_CASE("Normalizer: names the sample that has no norm") {
  CHECK_THROWS_WITH(normalized(ry::Norm::l2, {1, preprocessing::nan}, {1, 1}),
                    ContainsSubstring("sample 31: column \"a\" is missing"));
  CHECK_THROWS_WITH(normalized(ry::Norm::max, {1, 1}, {-preprocessing::infinity, 1}),
                    ContainsSubstring("sample 30: column \"b\" is infinite"));
}

TEST_CASE("Normalizer: takes numbers whose norm does not fit") {
  CHECK(are_near(values_of(normalized(ry::Norm::l1, {1.5e308}, {-1.5e308}), "a"), {0.5}));
  CHECK(are_near(values_of(normalized(ry::Norm::l2, {1.5e308}, {1.5e308}), "b"), {0.7071067811865475}));
  CHECK(are_near(values_of(normalized(ry::Norm::max, {1.5e308}, {0.75e308}), "b"), {0.5}));
}

}  // namespace normalizer_test
