// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/refusal_log.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

using namespace network_test;
using ry::detail::RefusalLog;

TEST_CASE("RefusalLog: tells a few lines a second and the number of all others") {
  std::vector<std::string> told;
  RefusalLog log{[&](const std::string& line) { told.push_back(line); }};
  const auto start = RefusalLog::Clock::now();
  CHECK(log.due() == RefusalLog::Clock::time_point::max());
  for (int at = 0; at < 100; ++at) log.note("one", start);
  CHECK(told == std::vector<std::string>(RefusalLog::lines_per_second, "one"));
  CHECK(log.due() == start + 1s);
  log.tell_rest(start + 999ms);
  CHECK(told.size() == 5);
  log.tell_rest(start + 1s);
  REQUIRE(told.size() == 6);
  CHECK_THAT(told.back(), ContainsSubstring("95 more"));
  log.note("two", start + 1s);
  CHECK(told.back() == "two");
  CHECK(log.total() == 101);
}

TEST_CASE("RefusalLog: tells what it has left out before the next line") {
  std::vector<std::string> told;
  RefusalLog log{[&](const std::string& line) { told.push_back(line); }};
  const auto start = RefusalLog::Clock::now();
  for (int at = 0; at < 6; ++at) log.note("one", start);
  log.note("two", start + 5s);
  REQUIRE(told.size() == 7);
  CHECK_THAT(told[5], ContainsSubstring("1 more"));
  CHECK(told[6] == "two");
}

TEST_CASE("RefusalLog: counts without a function to tell") {
  RefusalLog log{{}};
  for (int at = 0; at < 10; ++at) log.note("one", RefusalLog::Clock::now());
  log.tell_rest(RefusalLog::Clock::now() + 2s);
  CHECK(log.total() == 10);
}
