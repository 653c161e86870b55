// SPDX-License-Identifier: MIT
#include "railyard/data/detail/csv_cutter.hpp"

#include "support/catch.hpp"

#include <random>
#include <string>

namespace ry = railyard;

TEST_CASE("copy_unquoted: takes the first of each pair of quotes, in blocks of 64 and one by one alike") {
  std::mt19937_64 random{9};
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string said;
    std::string field = "\"";
    for (std::size_t left = random() % (turn % 2 == 0 ? 24 : 200); left > 0; --left) {
      const char character = random() % (turn % 3 == 0 ? 2 : 9) == 0 ? '"' : static_cast<char>('a' + random() % 26);
      said += character;
      field += character == '"' ? std::string{"\"\""} : std::string{character};
    }
    field += '"';
    const std::size_t size = field.size();
    field += std::string(64, '"');  // what lies behind is not looked at
    std::string copy(size + ry::detail::copy_padding, '?');
    copy.resize(ry::detail::copy_unquoted({field.data(), size}, '"', copy.data()));
    REQUIRE(copy == said);
    std::string other(size + ry::detail::copy_padding, '?');
    other.resize(ry::detail::copy_unpaired_anywhere(field.data() + 1, size - 2, '"', other.data()));
    REQUIRE(other == said);
  }
}
