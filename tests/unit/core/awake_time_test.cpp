// SPDX-License-Identifier: MIT
#include "railyard/core/detail/awake_time.hpp"

#include "support/catch.hpp"

#include <thread>

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

TEST_CASE("AwakeTime: counts what is done between two looks for as long as it was said to take, once") {
  const auto deadline = ry::Deadline::after(10s);
  ry::detail::AwakeTime time;
  CHECK_FALSE(time.is_over(deadline, deadline.begin()));
  time.be_busy(3s);
  CHECK_FALSE(time.is_over(deadline, deadline.begin() + 1h));  // counts as three and a half seconds
  CHECK_FALSE(time.is_over(deadline, deadline.begin() + 2h));  // as four
  time.be_busy(6s);
  CHECK(time.is_over(deadline, deadline.begin() + 2h + 6s));
}

TEST_CASE("CommonAwakeTime: counts all time of a deadline that several waits have in common") {
  const auto nothing_left = [](const ry::detail::CommonAwakeTime::Look& look) {
    return look.is_over && look.until_next == 0ns;
  };
  ry::detail::CommonAwakeTime times;
  const auto deadline = ry::Deadline::after(2 * ry::detail::AwakeTime::most);
  for (auto look = times.look(deadline); !look.is_over; look = times.look(deadline)) {
    CHECK(look.until_next <= ry::detail::AwakeTime::slice);
    std::this_thread::sleep_for(look.until_next);
  }
  CHECK(nothing_left(times.look(deadline)));
  const auto later = ry::Deadline::after(1h);
  CHECK_FALSE(times.look(later).is_over);
  CHECK(nothing_left(times.look(deadline)));
  for (int i = 0; i < 20; ++i) CHECK_FALSE(times.look(ry::Deadline::after(1h)).is_over);
  CHECK(nothing_left(times.look(deadline)));  // it is forgotten, and over all the same
  CHECK(nothing_left(times.look(ry::Deadline::after(0s))));
  CHECK_FALSE(times.look(ry::Deadline::never()).is_over);
}
