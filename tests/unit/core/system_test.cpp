// SPDX-License-Identifier: MIT
#include "railyard/core/detail/system.hpp"

#include "support/catch.hpp"

namespace ry = railyard;

TEST_CASE("System: the name of the running kernel is one word, and the same each time") {
  const std::string id = ry::detail::boot_id();
  CHECK(id.size() == 36);
  CHECK(id.find_first_not_of("0123456789abcdef-") == std::string::npos);
  CHECK(ry::detail::boot_id() == id);
}
