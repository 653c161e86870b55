// SPDX-License-Identifier: MIT
#include "railyard/data/table.hpp"

#include "support/catch.hpp"

#include <set>

namespace ry = railyard;

namespace {

ry::Table numbered(std::size_t rows) {
  std::vector<float> values;
  std::vector<std::int64_t> labels;
  for (std::size_t row = 0; row < rows; ++row) {
    values.push_back(static_cast<float>(row));
    values.push_back(static_cast<float>(row) + 0.5F);
    labels.push_back(static_cast<std::int64_t>(row));
  }
  return {{"a", "b"}, values, "class", labels};
}

std::vector<std::int64_t> labels_of(const ry::Table& table) {
  std::vector<std::int64_t> labels;
  for (std::size_t row = 0; row < table.num_rows(); ++row) labels.push_back(table.label_of(row));
  return labels;
}

}  // namespace

TEST_CASE("Table: shows its rows and names") {
  const ry::Table table = numbered(3);
  CHECK(table.num_rows() == 3);
  CHECK(table.num_columns() == 2);
  CHECK(table.columns() == std::vector<std::string>{"a", "b"});
  CHECK(table.label() == "class");
  CHECK(table.row(2)[1] == 2.5F);
  CHECK(table.label_of(2) == 2);
}

TEST_CASE("Table: copies share the numbers") {
  const ry::Table table = numbered(3);
  const ry::Table copy = table;  // NOLINT
  CHECK(copy.row(0).data() == table.row(0).data());
}

TEST_CASE("Table: select() gives rows in the order asked for, also of a selection") {
  const std::vector<std::size_t> first{3, 1, 1};
  const std::vector<std::size_t> second{2, 0};
  const ry::Table part = numbered(4).select(first);
  CHECK(labels_of(part) == std::vector<std::int64_t>{3, 1, 1});
  CHECK(labels_of(part.select(second)) == std::vector<std::int64_t>{1, 3});
  CHECK(part.row(0)[0] == 3.0F);
  const std::vector<std::size_t> beyond{3};
  CHECK_THROWS_WITH(part.select(beyond), Catch::ContainsSubstring("row 3") && Catch::ContainsSubstring("3 rows"));
}

TEST_CASE("Table: refuses sizes that do not fit") {
  CHECK_THROWS_AS(ry::Table({"a"}, {1, 2, 3}, "class", {0, 1}), ry::ConfigError);
  CHECK_THROWS_AS(ry::Table({}, {}, "class", {}), ry::ConfigError);
}

TEST_CASE("split: puts every row into exactly one part, and can be bound by name") {
  const auto [training, test] = ry::split(numbered(10), {0.8, 0.2}, 1);
  CHECK(training.num_rows() == 8);
  CHECK(test.num_rows() == 2);
  std::multiset<std::int64_t> all;
  for (const auto label : labels_of(training)) all.insert(label);
  for (const auto label : labels_of(test)) all.insert(label);
  CHECK(all == std::multiset<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("split: is a function of the seed") {
  const auto table = numbered(100);
  const std::vector<double> halves{0.5, 0.5};
  CHECK(labels_of(ry::split(table, halves, 1)[0]) == labels_of(ry::split(table, {0.5, 0.5}, 1)[0]));
  CHECK(labels_of(ry::split(table, halves, 1)[0]) != labels_of(ry::split(table, halves, 2)[0]));
}

TEST_CASE("split: leaves no row over when fractions do not divide the rows") {
  const auto parts = ry::split(numbered(101), {0.3, 0.3, 0.4});
  CHECK(parts[0].num_rows() + parts[1].num_rows() + parts[2].num_rows() == 101);
  CHECK(parts[0].num_rows() == 30);
}

TEST_CASE("split: refuses fractions that are no division, with their values in the message") {
  const auto table = numbered(10);
  CHECK_THROWS_WITH(ry::split(table, {0.8, 0.3}), Catch::ContainsSubstring("0.8, 0.3"));
  CHECK_THROWS_AS(ry::split(table, {1.2, -0.2}), ry::ConfigError);
  CHECK_THROWS_AS(ry::split(table, std::vector<double>{}), ry::ConfigError);
  CHECK_THROWS_WITH(ry::split(numbered(1), {0.8, 0.2}), Catch::ContainsSubstring("without a row"));
}
