// SPDX-License-Identifier: MIT
#include "railyard/core/detail/compose.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace detail = railyard::detail;

TEST_CASE("compose: writes what fmt::format writes when it is given numbers and text") {
  const std::string text = "net";
  CHECK(detail::compose("rank {} of {}: {}", 1, std::size_t{4}, text) == "rank 1 of 4: net");
  CHECK(detail::compose("{} {} {}", "literal", std::string_view{"view"}, true) == "literal view true");
  CHECK(detail::compose("{} {}", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::uint64_t>::max()) ==
        "-9223372036854775808 18446744073709551615");
  CHECK(detail::compose("{} {:.4g} {:04x} {:02}", 0.1, 2.0 / 3, 0xABU, 7) == "0.1 0.6667 00ab 07");
  CHECK(detail::compose("{{{}}} }}{{", -1) == "{-1} }{");
  CHECK(detail::compose("nothing to add").size() == 14);
}

TEST_CASE("compose: keeps every piece when there are as many as it takes") {
  CHECK(detail::compose("{}{}{}{}{}{}{}{}{}{}{}{}", 1, "b", 3, "d", 5, "f", 7, "h", 9, "j", 0, "l") == "1b3d5f7h9j0l");
}

TEST_CASE("compose: refuses at compile time what would be written as something else") {
  STATIC_REQUIRE(std::is_constructible_v<detail::Piece, const char*>);
  STATIC_REQUIRE(!std::is_constructible_v<detail::Piece, char>);
  STATIC_REQUIRE(!std::is_constructible_v<detail::Piece, float>);
  STATIC_REQUIRE(!std::is_constructible_v<detail::Piece, int*>);
}

TEST_CASE("joined: puts the separator between values only") {
  CHECK(detail::joined(std::vector<int>{}, ", ").empty());
  CHECK(detail::joined(std::vector<double>{0.5}, ", ") == "0.5");
  CHECK(detail::joined(std::vector<std::string>{"", "b", "c"}, " ") == " b c");
}

TEST_CASE("joined_first: names the first of many, and how many more there are") {
  CHECK(detail::joined_first(std::vector<int>{}, 2).empty());
  CHECK(detail::joined_first(std::vector<int>{4, 5}, 2) == "4, 5");
  CHECK(detail::joined_first(std::vector<int>{4, 5, 6, 7}, 2) == "4, 5 and 2 more");
}
