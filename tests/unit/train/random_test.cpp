// SPDX-License-Identifier: MIT
#include "railyard/train/random.hpp"

#include "support/catch.hpp"

#include <random>

namespace ry = railyard;

namespace {

template <class E>
void check_law() {
  E saved(5);
  saved.discard(3);
  const ry::State state = ry::StateAccess<E>::take(saved);
  CHECK(state.is_own);
  E other(6);
  ry::StateAccess<E>::put(other, state);
  CHECK(other == saved);
  CHECK(other() == saved());
}

}  // namespace

TEST_CASE("Random engines: one that is given the state of another goes on alike") {
  check_law<std::mt19937_64>();
  check_law<std::mt19937>();
  check_law<std::minstd_rand>();
  check_law<std::ranlux24>();
  static_assert(!ry::HasState<std::random_device>, "which has no state to save");
}

TEST_CASE("Random engines: what is no state of one is refused, and the engine stays as it was") {
  std::mt19937_64 engine(5);
  const std::mt19937_64 before = engine;
  CHECK_THROWS_AS(ry::StateAccess<std::mt19937_64>::put(engine, ry::State{{"engine", "1 2 three"}}), ry::ConfigError);
  const ry::State other = ry::StateAccess<std::mt19937>::take(std::mt19937{7});
  CHECK_THROWS_AS(ry::StateAccess<std::mt19937_64>::put(engine, other), ry::ConfigError);
  CHECK(engine == before);
}
