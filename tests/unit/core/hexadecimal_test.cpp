// SPDX-License-Identifier: MIT
#include "railyard/core/detail/hexadecimal.hpp"

#include "support/catch.hpp"

#include <span>
#include <string>

TEST_CASE("from_hexadecimal: reads what hexadecimal() has written, and nothing else") {
  const std::string text{"\0\x7f\xff railyard", 12};
  CHECK(railyard::detail::from_hexadecimal(railyard::detail::hexadecimal(std::as_bytes(std::span{text}))) == text);
  CHECK(railyard::detail::from_hexadecimal("") == "");
  for (const char* const other : {"0", "0g", "g0", "+1", "-1", " 1", "0x10", "00 "}) {
    CHECK_FALSE(railyard::detail::from_hexadecimal(other));
  }
}
