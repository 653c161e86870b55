// SPDX-License-Identifier: MIT
#include "railyard/train/detail/json.hpp"

#include "support/catch.hpp"

#include <limits>

namespace ry = railyard;

namespace {

std::string json_of(const ry::Metrics& metrics) { return ry::detail::JsonObject{}.add(metrics).text(); }

}  // namespace

TEST_CASE("JsonObject: writes every kind of value") {
  CHECK(json_of({}) == "{}");
  CHECK(json_of({{"a", 1}, {"b", 0.5}, {"c", true}, {"val/d", "x"}}) ==
        R"({"a": 1, "b": 0.5, "c": true, "val/d": "x"})");
  CHECK(json_of({{"a", 0.1}, {"b", 1e300}, {"c", -0.0}}) == R"({"a": 0.1, "b": 1e+300, "c": -0})");
}

TEST_CASE("JsonObject: what is not finite becomes null") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(json_of({{"a", nan}, {"b", inf}, {"c", -inf}, {"d", std::numeric_limits<double>::max()}}) ==
        R"({"a": null, "b": null, "c": null, "d": 1.7976931348623157e+308})");
}

TEST_CASE("JsonObject: text is escaped, and what is no UTF-8 is replaced") {
  CHECK(json_of({{"a\"b", "c\\d\ne\tf"}}) == "{\"a\\\"b\": \"c\\\\d\\ne\\u0009f\"}");
  CHECK(json_of({{"a", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x82"}}) ==
        "{\"a\": \"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x82\"}");
  const std::string mark = "\xEF\xBF\xBD";
  CHECK(json_of({{"a", "\xFFz"}}) == "{\"a\": \"" + mark + "z\"}");
  CHECK(json_of({{"a", "\xC3"}}) == "{\"a\": \"" + mark + "\"}");                        // cut short
  CHECK(json_of({{"a", "\xC0\x80"}}) == "{\"a\": \"" + mark + mark + "\"}");             // overlong
  CHECK(json_of({{"a", "\xED\xA0\x80"}}) == "{\"a\": \"" + mark + mark + mark + "\"}");  // a surrogate
  CHECK(json_of({{"a", std::string(1, '\0')}}) == "{\"a\": \"\\u0000\"}");
}
