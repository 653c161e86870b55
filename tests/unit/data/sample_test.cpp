// SPDX-License-Identifier: MIT
#include "railyard/data/sample.hpp"

#include "support/catch.hpp"

#include <memory>
#include <vector>

namespace ry = railyard;

namespace {

ry::Block block_of_two() {
  const auto schema = std::make_shared<const ry::Schema>(
      ry::Schema{{"x", ry::Dtype::f16}, {"v", ry::Dtype::i32, {2}}, ry::Field::text("t")});
  return {schema,
          {ry::Column{(*schema)[0], std::vector{ry::Float16{0.5F}, ry::Float16{-2.0F}}},
           ry::Column{(*schema)[1], std::vector<std::int32_t>{1, 2, 3, 4}},
           ry::Column::texts(std::vector<std::string>{"a", "bc"})},
          {10, 11}};
}

}  // namespace

TEST_CASE("Sample: gives numbers, values and texts by the name or the number of their column") {
  const auto block = block_of_two();
  const ry::Sample sample{block, 1};
  CHECK(sample.id() == 11);
  CHECK(sample.number("x") == -2);
  CHECK(sample.number(0) == -2);
  CHECK(sample.values<std::int32_t>("v")[1] == 4);
  CHECK(sample.text(std::string{"t"}) == "bc");
  CHECK(sample.bytes(2).size() == 2);
}

TEST_CASE("Sample: names the column where it is read as what it does not hold") {
  const auto block = block_of_two();
  const ry::Sample sample{block, 0};
  CHECK_THROWS_WITH(sample.number("v"), ContainsSubstring("column \"v\" was read as one number and holds 2 x i32"));
  CHECK_THROWS_WITH(sample.number("t"), ContainsSubstring("was read as one number and holds 1 x characters of text"));
  CHECK_THROWS_WITH(sample.values<float>("v"), ContainsSubstring("was read as f32"));
  CHECK_THROWS_WITH(sample.text("x"), ContainsSubstring("was read as text"));
  CHECK_THROWS_WITH(sample.number("y"), ContainsSubstring("there is no column \"y\""));
  CHECK_THROWS_WITH(sample.number(3), ContainsSubstring("there is no column 3: there are 3"));
}
