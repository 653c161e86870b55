// SPDX-License-Identifier: MIT
#include "railyard/core/value.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <limits>
#include <string>

namespace ry = railyard;

TEST_CASE("Metrics: an initialiser list takes any arithmetic type and any literal (TRAPS 33)") {
  const std::string owned = "adam";
  const ry::Metrics metrics{{"loss", 0.25F}, {"epoch", 3},      {"samples", std::size_t{7}},
                            {"done", true},  {"name", "abc"},   {"op", owned},
                            {"letter", 'a'}, {"val/loss", 1.0L}};
  CHECK(metrics.at("loss").as<double>() == 0.25);
  CHECK(metrics.at("epoch").as<std::int64_t>() == 3);
  CHECK(metrics.at("samples").as<std::int64_t>() == 7);
  CHECK(metrics.at("done").as<bool>());
  CHECK(metrics.at("name").as<std::string>() == "abc");  // a literal must not become a truth value
  CHECK(metrics.at("op").as<std::string>() == "adam");
  CHECK(metrics.at("letter").is<std::int64_t>());
  CHECK(metrics.at("val/loss").as<double>() == 1.0);
}

TEST_CASE("Metrics: a list of one pair of texts is one metric, not a copy or a range of characters (TRAPS 33)") {
  const ry::Metrics metrics{{"name", "abc"}};
  REQUIRE(metrics.size() == 1);
  CHECK(metrics.at("name").as<std::string>() == "abc");
}

TEST_CASE("Metrics: a name given twice keeps its place and its last value") {
  const ry::Metrics metrics{{"a", 1}, {"b", 2}, {"a", 3}};
  REQUIRE(metrics.size() == 2);
  CHECK(metrics.begin()->first == "a");
  CHECK(metrics.at("a").number() == 3);
}

TEST_CASE("Metrics: an unknown name is answered with those that exist") {
  const ry::Metrics metrics{{"loss", 1}, {"accuracy", 2}};
  CHECK(metrics.find("los") == nullptr);
  CHECK_THROWS_WITH(metrics.at("los"), ContainsSubstring("\"los\"") && ContainsSubstring("loss, accuracy"));
  CHECK_THROWS_WITH(ry::Metrics{}.at("x"), ContainsSubstring("none"));
}

TEST_CASE("Value: reading another type than it has is refused") {
  CHECK_THROWS_WITH(ry::Value(1).as<double>(), ContainsSubstring("an integer"));
  CHECK_THROWS_AS(ry::Value("text").number(), ry::Error);
  CHECK(ry::Value(true).number() == 1.0);
  CHECK(ry::Value(-2).number() == -2.0);
}

TEST_CASE("Value: an unsigned number beyond 63 bits stays positive") {
  CHECK(ry::Value(std::numeric_limits<std::uint64_t>::max()).number() > 1.8e19);
  CHECK(ry::Value(std::uint64_t{1} << 62U).as<std::int64_t>() == std::int64_t{1} << 62U);
}
