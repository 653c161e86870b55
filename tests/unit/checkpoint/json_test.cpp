// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/detail/json_values.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <random>

namespace ry = railyard;
using ry::detail::Damage;
using ry::detail::Json;
using ry::detail::parse_json;

namespace {

ry::NamedValues written_and_read(const ry::NamedValues& values) {
  ry::detail::JsonWriter writer{true};
  ry::detail::write_values(writer.name("values"), values);
  return ry::detail::read_values(parse_json(writer.finish()).at("values"));
}

std::uint64_t bits_of(const ry::Value& value) { return std::bit_cast<std::uint64_t>(value.as<double>()); }

}  // namespace

TEST_CASE("JSON of values: each comes back with its type, all bits, and in its place") {
  const ry::NamedValues values{
      {"truth", true},
      {"lie", false},
      {"least", std::numeric_limits<std::int64_t>::min()},
      {"most", std::numeric_limits<std::int64_t>::max()},
      {"whole", 3.0},
      {"large", 1e300},
      {"third", 1.0 / 3},
      {"smallest", std::numeric_limits<double>::denorm_min()},
      {"text", "a \"quoted\" \\ line\nand another, \xC3\xA9"},
      {"empty", ""},
      {"zeros", std::string{"\0x\0", 3}},
      {"no text", std::string{"\xFF\x00\x80 and so on", 13}},
      {"a \"name\"/of\tits own", 1},
  };
  CHECK(written_and_read(values) == values);
  CHECK(written_and_read({}) == ry::NamedValues{});
}

TEST_CASE("JSON of values: numbers that JSON lacks come back bit by bit") {
  const auto payload = std::bit_cast<double>(std::uint64_t{0xFFF0'0000'DEAD'BEEFU});
  const ry::NamedValues values{{"nan", std::nan("")},
                               {"payload", payload},
                               {"infinity", std::numeric_limits<double>::infinity()},
                               {"minus infinity", -std::numeric_limits<double>::infinity()},
                               {"minus zero", -0.0}};
  const auto back = written_and_read(values);
  for (const auto& [name, value] : values) {
    INFO(name);
    CHECK(bits_of(back.at(name)) == bits_of(value));
  }
}

TEST_CASE("JSON of values: a hundred thousand numbers of all sizes come back bit by bit") {
  std::mt19937_64 random{7};
  ry::NamedValues values;
  for (int round = 0; round < 1000; ++round) {
    ry::NamedValues hundred;
    for (int i = 0; i < 100; ++i) hundred.set(std::to_string(i), std::bit_cast<double>(random()));
    const auto back = written_and_read(hundred);
    for (const auto& [name, value] : hundred) {
      if (bits_of(back.at(name)) != bits_of(value)) FAIL(bits_of(value));
    }
  }
}

TEST_CASE("parse_json: reads all forms of texts and numbers, and spaces wherever they may be") {
  const Json json = parse_json(" \t\r\n{ \"a\" : [ ] , \"b\":{},\"c\" :[1 , -0,0.5,1E+2,2e-1] } ");
  CHECK(json.names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(json.at("a").array().empty());
  CHECK(json.at("b").names().empty());
  const auto& numbers = json.at("c").array();
  CHECK(numbers[0].as<int>() == 1);
  CHECK(numbers[1].as<int>() == 0);
  CHECK(numbers[2].as<double>() == 0.5);
  CHECK(numbers[3].number() == "1E+2");
  CHECK(numbers[4].as<double>() == 0.2);
  CHECK(parse_json(R"("\"\\\/\b\f\n\r\t")").text() == "\"\\/\b\f\n\r\t");
  CHECK(parse_json(R"("\u0041\u00e9\u20AC\ud83d\ude00\u0000")").text() ==
        std::string{"A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\0", 11});
  CHECK(parse_json(" null ").kind() == Json::Kind::null);
  CHECK(parse_json("true").boolean());
}

TEST_CASE("parse_json: refuses what is no JSON, or has a name twice, or is nested without end") {
  for (const auto* text : {"",
                           "{",
                           "{\"a\":1,}",
                           "{\"a\" 1}",
                           "[1 2]",
                           "nul",
                           "{\"a\":1}x",
                           "\"\xFF\"",
                           "{\"a\":NaN}",
                           "01",
                           "-",
                           "1.",
                           ".5",
                           "1e",
                           "+1",
                           "[1,]",
                           "{1:2}",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\u+123\"",
                           "\"a\nb\"",
                           "\"a",
                           "\"\\",
                           "\"\\ud83dx\"",
                           "\"\\ud83d\\u0041\"",
                           "\"\\udc00\"",
                           "{\"a\":1,\"a\":2}",
                           "\"\\ud800\"",
                           "{\"a\":1,\"\\u0061\":2}"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_json(text), Damage);
  }
  CHECK_THROWS_AS(parse_json(std::string_view{"{}\0{}", 5}), Damage);
  CHECK_THROWS_WITH(parse_json(std::string(1'000'000, '[')), ContainsSubstring("16 levels"));
  std::string many = "[";
  for (int i = 0; i < (2 << 20); ++i) many += "1,";
  CHECK_THROWS_WITH(parse_json(many + "1]"), ContainsSubstring("1048576 values"));
}

TEST_CASE("Json: says what stands where something else is expected") {
  const Json json = parse_json(R"({"number": 1.5, "large": 18446744073709551616, "list": [1, null], "text": "x"})");
  CHECK_THROWS_WITH(json.at("nothing"), ContainsSubstring("\"nothing\" is missing"));
  CHECK_THROWS_AS(json.at("number").as<std::int64_t>(), Damage);
  CHECK_THROWS_AS(json.at("large").as<std::uint64_t>(), Damage);
  CHECK_THROWS_AS(json.at("text").as<double>(), Damage);
  CHECK_THROWS_AS(json.at("text").names(), Damage);
  CHECK_THROWS_AS(json.at("list").text(), Damage);
  CHECK_THROWS_AS(ry::detail::read_value(json.at("list")), Damage);
  CHECK_THROWS_AS(ry::detail::read_value(json), Damage);
  CHECK_THROWS_AS(ry::detail::read_value(parse_json(R"({"f64": "12"})")), Damage);
  CHECK_THROWS_AS(ry::detail::read_value(parse_json(R"({"bytes": "123"})")), Damage);
  CHECK_THROWS_AS(ry::detail::read_value(parse_json("1e999")), Damage);
  CHECK_THROWS_AS(ry::detail::read_value(parse_json("9223372036854775808")), Damage);
}
