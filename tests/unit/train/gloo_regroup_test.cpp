// SPDX-License-Identifier: MIT
// Runs of several processes of which some are lost, and come back: those that are left go on.
#include "railyard/workers/launched.hpp"

#include "support/catch.hpp"
#include "unit/train/regrouping_runs.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

using launched_runs::comes;
using launched_runs::LaunchedProcesses;
using launched_runs::leave;
using launched_runs::stand_still;
using launched_runs::step_of_loss;
using launched_runs::train;
using launched_runs::unharmed;

}  // namespace

TEST_CASE("Launched: those that are left go on without a process that is killed, and no failure is spent") {
  const Scratch scratch;
  const int workers_of_each = GENERATE(1, 2);
  const int all = 3 * workers_of_each;
  const int left = 2 * workers_of_each;
  LaunchedProcesses launched{scratch, 3, [&](int) { return train(scratch, {left, all}, stand_still(scratch, all)); }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(1), SIGKILL);
  const std::string words =
      unharmed(left) + fmt::format("; {} workers to step 13, lost 3; {} workers to step 30, lost 0", all, left);
  CHECK(launched.words(0) == words + fmt::format("; from {} to {}", all, left));
  CHECK(launched.words(2) == words);
}

TEST_CASE(
    "Launched: those that are left go on without a process that is stopped, and it is turned away later (TRAPS 25)") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               return train(scratch, {2, 3}, stand_still(scratch, 3), {.silence_limit = 5s});
                             }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(2), SIGSTOP);
  for (const int process : {0, 1}) CHECK_THAT(launched.words(process), ContainsSubstring(unharmed(2)));
  ::kill(launched.pid(2), SIGCONT);
  CHECK_THAT(launched.words(2), ContainsSubstring("status 75"));
}

TEST_CASE("Launched: where too few workers are left, all leave and ask the engine to start them again") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               return train(scratch, {5, 6}, stand_still(scratch, 6), {.start_timeout = 10s});
                             }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(1), SIGKILL);
  for (const int process : {0, 2}) {
    CHECK_THAT(launched.words(process), ContainsSubstring("status 75") && ContainsSubstring("process 1 (") &&
                                            ContainsSubstring("no room for the 5 workers"));
  }
}

TEST_CASE("Launched: a minority with the leader does not go on, even if there are workers enough") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int) { return train(scratch, {1, 3}, stand_still(scratch, 3)); }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGSTOP);  // it hears of both at once
  for (const int process : {1, 2}) ::kill(launched.pid(process), SIGKILL);
  ::kill(launched.pid(0), SIGCONT);
  CHECK_THAT(launched.words(0), ContainsSubstring("status 75") && ContainsSubstring("1 of 3 processes is left"));
}

TEST_CASE("Launched: a process that comes back is let in at the end of a step") {
  const Scratch scratch;
  const auto stand_still_or_wait = [&](ry::Worker& worker, std::uint64_t step) {
    stand_still(scratch, 3)(worker, step);
    if (step != step_of_loss) return;
    if (worker.rank() == 0) leave(scratch.path() / "left");
    const ry::Deadline deadline = ry::Deadline::after(60s);
    while (!worker.page().resize_requested.load() && !deadline.expired()) std::this_thread::sleep_for(1ms);
  };
  LaunchedProcesses launched{scratch, 3, [&](int) { return train(scratch, {2, 3}, stand_still_or_wait); }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(1), SIGKILL);
  REQUIRE(comes(scratch.path() / "left"));
  launched.start_again(1);
  const std::string expected = unharmed(3) + "; 3 workers to step 13, lost 3; 2 workers to step 1";
  CHECK_THAT(launched.words(0), ContainsSubstring(expected) && ContainsSubstring("; from 3 to 2; from 2 to 3"));
  for (const int process : {1, 2}) CHECK_THAT(launched.words(process), ContainsSubstring(expected));
}

TEST_CASE("Launched: a number of workers that the processes cannot make is refused") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int) { return train(scratch, {1, 2}, toy::never); }};
  for (const int process : {0, 1, 2}) {
    CHECK_THAT(launched.words(process),
               ContainsSubstring("allows 2 workers together, and a plain launcher has started"));
  }
}
