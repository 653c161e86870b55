// SPDX-License-Identifier: MIT
#include "railyard/data/concatenator.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <vector>

namespace ry = railyard;

namespace concatenator_test {
using preprocessing::Rows;
using preprocessing::values_of;

inline ry::Block parts() {
  return Rows{}
      .numbers<double>("a", {1, 2})
      .numbers<std::int64_t>("label", {7, 8})
      .numbers<float>("b", {3, 4, 5, 6}, {2})
      .texts("c", {"x", "y"})
      .block(9);
}

TEST_CASE("Concatenator: puts columns into one of f32 behind those that are left") {
  const ry::Concatenator concatenator{{.columns = {"b", "a"}}};
  const ry::Block block = concatenator.transform(parts());
  CHECK(block.schema() == concatenator.schema(parts().schema()));
  CHECK(block.schema().names() == "\"label\", \"c\", \"data\"");
  CHECK(block.schema()[2] == ry::Field{.name = "data", .dtype = ry::Dtype::f32, .shape = {3}});
  CHECK(values_of(block, "data") == std::vector<double>{3, 4, 1, 5, 6, 2});
  CHECK(block.column("c").text(1) == "y");
  CHECK(block.ids()[0] == 9);
}

TEST_CASE("Concatenator: can leave the columns, take all but some, and give another dtype and name") {
  const ry::Concatenator concatenator{
      {.except = {"label"}, .output = "all", .dtype = ry::Dtype::f64, .keeps_columns = true}};
  const ry::Block block = concatenator.transform(parts());
  CHECK(block.schema().size() == 5);
  CHECK(block.schema()[4] == ry::Field{.name = "all", .dtype = ry::Dtype::f64, .shape = {3}});
  CHECK(values_of(block, "all") == std::vector<double>{1, 3, 4, 2, 5, 6});
}

TEST_CASE("Concatenator: takes the name of a column that it joins, and no other's") {
  const ry::Block block = ry::Concatenator{{.columns = {"a", "b"}, .output = "a"}}.transform(parts());
  CHECK(values_of(block, "a") == std::vector<double>{1, 3, 4, 2, 5, 6});
  CHECK_THROWS_AS((ry::Concatenator{{.columns = {"a"}, .output = "c"}}.transform(parts())), ry::ConfigError);
}

TEST_CASE("Concatenator: refuses text, other dtypes than real ones, and to join nothing") {
  CHECK_THROWS_WITH((ry::Concatenator{{.columns = {"a", "c"}}}.transform(parts())),
                    ContainsSubstring("column \"c\" has text"));
  CHECK_THROWS_AS((ry::Concatenator{{.columns = {"a"}, .dtype = ry::Dtype::i64}}), ry::ConfigError);
  CHECK_THROWS_AS(ry::Concatenator{}.transform(parts()), ry::ConfigError);
}
}  // namespace concatenator_test
