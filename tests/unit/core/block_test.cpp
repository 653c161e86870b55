// SPDX-License-Identifier: MIT
#include "railyard/core/block.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

ry::Block digits() {
  const auto schema = std::make_shared<const ry::Schema>(
      ry::Schema{{.name = "pixels", .dtype = ry::Dtype::f32, .shape = {2}}, ry::Field::text("name")});
  const std::vector<std::string> names{"zero", "", "two"};
  return {
      schema, {ry::Column{(*schema)[0], std::vector<float>{0, 1, 2, 3, 4, 5}}, ry::Column::texts(names)}, {7, 8, 9}};
}

}  // namespace

TEST_CASE("Schema: names the columns that exist when one does not") {
  const ry::Schema schema{{.name = "age"}, {.name = "income"}};
  CHECK(schema.index_of("income") == 1);
  CHECK_THROWS_WITH(schema.index_of("incme"), R"(there is no column "incme": there are "age", "income")");
  CHECK_THROWS_AS((ry::Schema{{.name = "age"}, {.name = "age"}}), ry::ConfigError);
  CHECK_THROWS_AS((ry::Schema{{.name = ""}}), ry::ConfigError);
}

TEST_CASE("Column: refuses elements that are no whole rows") {
  const ry::Field field{.name = "pixels", .dtype = ry::Dtype::f32, .shape = {2}};
  CHECK_THROWS_AS((ry::Column{field, std::vector<float>{1, 2, 3}}), ry::ConfigError);
  CHECK_THROWS_AS((ry::Column{field, std::vector<double>{1, 2}}), ry::ConfigError);
}

TEST_CASE("Block: slices share, and take() copies in the order asked for") {
  const ry::Block block = digits();
  const ry::Block tail = block.slice(1, 3);
  CHECK(tail.rows() == 2);
  CHECK(tail.ids()[0] == 8);
  CHECK(tail[0].values<float>(0)[1] == 3.0F);
  CHECK(tail[0].bytes().data() == block[0].sample(1).data());
  CHECK(tail[1].text(0).empty());
  CHECK(tail[1].text(1) == "two");

  const std::vector<std::size_t> rows{1, 0, 1};
  const ry::Block taken = tail.take(rows);
  CHECK(taken.column("name").text(0) == "two");
  CHECK(taken.column("name").text(1).empty());
  CHECK(taken.column("name").text(2) == "two");
  CHECK(taken[0].values<float>().size() == 6);
  CHECK(taken[0].values<float>(2)[0] == 4.0F);
  CHECK(taken.ids()[1] == 8);
}

TEST_CASE("Block: refuses columns of different lengths") {
  const ry::Block block = digits();
  CHECK_THROWS_AS((ry::Block{block.shared_schema(), {block[0], block[1].slice(0, 2)}, {7, 8, 9}}), ry::ConfigError);
  CHECK_THROWS_AS((ry::Block{block.shared_schema(), {block[0]}, {7, 8, 9}}), ry::ConfigError);
}
