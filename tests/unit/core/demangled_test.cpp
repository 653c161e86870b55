// SPDX-License-Identifier: MIT
#include "railyard/core/detail/demangled.hpp"

#include "support/catch.hpp"

#include <string>
#include <typeinfo>

namespace demangled_test {

struct Scaler {};

TEST_CASE("demangled: a type is named as it is written") {
  CHECK(railyard::detail::demangled(typeid(Scaler)) == "demangled_test::Scaler");
}

}  // namespace demangled_test
