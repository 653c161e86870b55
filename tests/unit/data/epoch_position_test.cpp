// SPDX-License-Identifier: MIT
#include "railyard/data/epoch_position.hpp"

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace ry = railyard;

TEST_CASE("EpochPosition: is the same after it has been saved and loaded") {
  const std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  for (const auto& position :
       {ry::EpochPosition{}, ry::EpochPosition{largest, 3, true, 10}.moved_to(7, {}),
        ry::EpochPosition{1, largest, false, {}}.moved_to(largest, {0, largest, 12}),
        ry::EpochPosition{1, 2, false, {}}.moved_to(
            9, {1, 2, ry::ReaderState{7, std::string{"\0\xFF: z", 5}}, 0, ry::ReaderState{largest, ""}}),
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
  CHECK_THROWS_AS(load("place", "1 :AAAA"), ry::ConfigError);
  CHECK_THROWS_AS(load("place", "1 2:"), ry::ConfigError);
  CHECK_THROWS_AS(load("seed", "-1"), ry::ConfigError);
  CHECK_THROWS_AS(load("epoch", "18446744073709551616"), ry::ConfigError);
}

TEST_CASE("EpochPosition: finds any damage to the state of a reader, and shows little of it") {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  const auto position = ry::EpochPosition{1, 2, false, {}}.moved_to(5, {3, ry::ReaderState{2, bytes}});
  const std::string place = position.state().at("place").as<std::string>();
  REQUIRE(place.substr(0, 4) == "3 2:");
  const auto load = [&](std::string text) {
    auto state = position.state();
    state.values.set("place", std::move(text));
    ry::EpochPosition{}.load_state(state);
  };
  CHECK_NOTHROW(load(place));
  CHECK_NOTHROW(load("3 2"));  // as an older release has saved it
  for (std::size_t at = 2; at < place.size(); ++at) {
    std::string damaged = place;
    damaged[at] = damaged[at] == 'B' || damaged[at] == '2' ? '5' : 'B';
    CHECK_THROWS_AS(load(damaged), ry::ConfigError);
    if (at > 3) CHECK_THROWS_AS(load(place.substr(0, at)), ry::ConfigError);
  }
  try {
    load(place + "!");
  } catch (const ry::ConfigError& error) {
    CHECK(std::string{error.what()}.size() < 250);
  }
}
