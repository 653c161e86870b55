// SPDX-License-Identifier: MIT
#include "railyard/core/value.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

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

TEST_CASE("Metrics: very many names keep their order, and each is found, also in copies and in what was moved") {
  const auto name_of = [](int at) { return "metric/" + std::to_string(at); };
  constexpr int count = 1000;
  ry::Metrics metrics;
  for (int at = 0; at < count; ++at) {
    metrics.set(name_of(at), at);
    metrics.set(name_of(at / 2), -1);  // given before: keeps its place
    REQUIRE(metrics.size() == static_cast<std::size_t>(at) + 1);
  }
  const ry::Metrics copy = metrics;
  metrics.set(name_of(count), 0);
  CHECK(copy.find(name_of(count)) == nullptr);
  CHECK_FALSE(copy == metrics);
  const ry::Metrics moved = std::move(metrics);
  REQUIRE(moved.size() == count + 1U);
  int place = 0;
  for (const auto& [name, value] : moved) {
    const int expected = place < count / 2 ? -1 : place == count ? 0 : place;
    const bool is_right = name == name_of(place) && value == ry::Value{expected} && moved.find(name) == &value;
    if (!is_right) FAIL("entry " << place << " is " << name);
    ++place;
  }
  ry::Metrics anew;  // the order of the names counts, and not how the values came there
  for (int at = 0; at <= count; ++at) anew.set(name_of(at), moved.at(name_of(at)));
  CHECK(anew == moved);
}

TEST_CASE("Metrics: those that have been moved away can be filled again") {
  ry::Metrics metrics;
  for (int at = 0; at < 100; ++at) metrics.set(std::to_string(at), at);
  const ry::Metrics moved = std::exchange(metrics, ry::Metrics{});
  CHECK(metrics.find("7") == nullptr);
  metrics.set("7", 8);
  CHECK(metrics == ry::Metrics{{"7", 8}});
  CHECK(moved.at("7").number() == 7);
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
