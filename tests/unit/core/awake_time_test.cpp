// SPDX-License-Identifier: MIT
#include "railyard/core/detail/awake_time.hpp"

#include "support/catch.hpp"

namespace ry = railyard;
using namespace std::chrono_literals;

TEST_CASE("AwakeTime: counts time between looks, but of a suspension no more than a little (TRAPS 25)") {
  const auto deadline = ry::Deadline::after(10s);
  const auto begin = deadline.begin();
  ry::detail::AwakeTime time;
  CHECK_FALSE(time.is_over(deadline, begin));
  CHECK_FALSE(time.is_over(deadline, begin + 400ms));
  CHECK_FALSE(time.is_over(deadline, begin + 1h));  // counts as half a second
  CHECK(time.until_next_look(deadline) == time.slice);
  for (auto at = begin + 1h; at < begin + 1h + 9s; at += 100ms) CHECK_FALSE(time.is_over(deadline, at));
  CHECK_FALSE(time.is_over(deadline, begin + 1h + 9050ms));
  CHECK(time.until_next_look(deadline) == 50ms);
  CHECK(time.is_over(deadline, begin + 1h + 9100ms));
  CHECK(time.until_next_look(deadline) == 0ns);
}

TEST_CASE("AwakeTime: knows of a suspension before the first look, and forgets it with the deadline") {
  const auto early = ry::Deadline::after(2s);
  ry::detail::AwakeTime time;
  CHECK_FALSE(time.is_over(early, early.begin() + 1h));
  CHECK_FALSE(time.is_over(early, early.begin() + 2h));
  const auto late = ry::Deadline::after(1s);
  ry::detail::AwakeTime used;
  CHECK_FALSE(used.is_over(early, late.begin()));
  CHECK_FALSE(used.is_over(late, late.begin() + 500ms));
  CHECK(used.is_over(late, late.begin() + 1s));
}

TEST_CASE("AwakeTime: a budget of nothing is over at once, and one without end never") {
  ry::detail::AwakeTime time;
  CHECK(time.is_over(ry::Deadline::after(0s)));
  CHECK_FALSE(time.is_over(ry::Deadline::never()));
  CHECK(time.until_next_look(ry::Deadline::never()) == time.slice);
}
