// SPDX-License-Identifier: MIT
#include "railyard/data/epoch_position.hpp"

#include "support/catch.hpp"

#include <limits>

namespace ry = railyard;

TEST_CASE("EpochPosition: is the same after it has been saved and loaded") {
  const std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  for (const auto& position : {ry::EpochPosition{}, ry::EpochPosition{largest, 3, true, 10}.moved_to(7, {}),
                               ry::EpochPosition{1, largest, false, {}}.moved_to(largest, {0, largest, 12}),
                               ry::EpochPosition{0, 0, false, 0}}) {
    ry::EpochPosition loaded{9, 9, true, 9};
    loaded.load_state(position.state());
    CHECK(loaded == position);
  }
  CHECK(ry::EpochPosition{1, 2, false, 9}.moved_to(5, {}).state().at("consumed") == ry::Value{"0-5"});
}

TEST_CASE("EpochPosition: refuses a damaged state") {
  const auto load = [](const char* name, const char* text) {
    auto state = ry::EpochPosition{1, 2, false, 9}.moved_to(5, {1, 2}).state();
    state.values.set(name, text);
    ry::EpochPosition{}.load_state(state);
  };
  CHECK_NOTHROW(load("consumed", "0-6"));
  CHECK_THROWS_WITH(load("consumed", "1-6"), ContainsSubstring("\"consumed\" is \"1-6\""));
  CHECK_THROWS_AS(load("consumed", "0-"), ry::ConfigError);
  CHECK_THROWS_AS(load("place", "1 x"), ry::ConfigError);
  CHECK_THROWS_AS(load("seed", "-1"), ry::ConfigError);
  CHECK_THROWS_AS(load("epoch", "18446744073709551616"), ry::ConfigError);
}
