// SPDX-License-Identifier: MIT
// Runs of several processes that lose the one which leads: those that are left choose another and go on.
#include "railyard/train/detail/election.hpp"

#include "railyard/workers/launched.hpp"

#include "support/catch.hpp"
#include "unit/train/regrouping_runs.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace ry = railyard;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;

namespace {

using launched_runs::comes;
using launched_runs::LaunchedProcesses;
using launched_runs::leave;
using launched_runs::stand_still;
using launched_runs::step_of_loss;
using launched_runs::train;
using launched_runs::unharmed;

// Which process leads that has been chosen.
int chosen_leader(const Scratch& scratch) {
  const auto posting = ry::detail::LeaderPosting::read(scratch.path() / "run");
  return posting ? posting->place.process : -1;
}

int times_in(const std::string& text, const std::string& what) {
  int number = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++number;
  return number;
}

// What both have said, one of whom leads and has told of another number of workers.
void check_words(const std::string& first, const std::string& second, const std::string& expected, int from, int to) {
  const std::string resize = fmt::format("; from {} to {}", from, to);
  CHECK(((first == expected && second == expected + resize) || (first == expected + resize && second == expected)));
  CAPTURE(first, second, expected);
  CHECK_THAT(first, StartsWith(expected));
  CHECK_THAT(second, StartsWith(expected));
}

std::string attempts_text(int first, int begin, int second) {
  return fmt::format("; {} workers to step {}, lost {}; {} workers to step 30, lost 0", first, begin, begin % 5,
                     second);
}

}  // namespace

TEST_CASE("Launched: when the process that leads is killed, one of the others leads, and no failure is spent") {
  const Scratch scratch;
  const int workers_of_each = GENERATE(1, 2);
  const int all = 3 * workers_of_each;
  const int left = 2 * workers_of_each;
  LaunchedProcesses launched{scratch, 3, [&](int) { return train(scratch, {left, all}, stand_still(scratch, all)); }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGKILL);
  check_words(launched.words(1), launched.words(2), unharmed(left) + attempts_text(all, 13, left), all, left);
  const std::string events = read_text(scratch.path() / "run/events.jsonl");
  CHECK(times_in(events, "\"event\": \"leader_lost\"") == 1);
  CHECK_THAT(events, ContainsSubstring("process 0, which led the run, is lost"));
  CHECK_THAT(events, ContainsSubstring(fmt::format("process {} on ", chosen_leader(scratch))));
}

TEST_CASE("Launched: the process that leads is killed before the first step") {
  const Scratch scratch;
  const auto never_begin = [&](ry::Worker& worker, std::uint64_t) {
    if (worker.world_size() != 3) return;
    worker.barrier();
    if (worker.rank() == 0) leave(scratch.path() / "running");
    for (;;) worker.barrier();
  };
  LaunchedProcesses launched{scratch, 3, [&](int) { return train(scratch, {2, 3}, never_begin); }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGKILL);
  check_words(launched.words(1), launched.words(2), unharmed(2) + attempts_text(3, 0, 2), 3, 2);
}

TEST_CASE("Launched: the process that leads is killed while it writes a checkpoint") {
  const Scratch scratch;
  const auto checkpoints = scratch.path() / "run/checkpoints";
  const auto slowly = [](ry::Worker& worker, std::uint64_t) {
    if (worker.world_size() == 3) std::this_thread::sleep_for(1ms);
  };
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               return train(scratch, {2, 3}, slowly, {.checkpoint = {.every_steps = 1}});
                             }};
  REQUIRE(comes(checkpoints / "checkpoint-000001"));
  const auto is_writing = [&] {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator{checkpoints, ignored}) {
      if (entry.path().filename().string().starts_with(".staging")) return true;
    }
    return false;
  };
  const auto deadline = ry::Deadline::after(30s);
  bool is_amid = is_writing();
  for (; !is_amid && !deadline.expired(); is_amid = is_writing()) std::this_thread::yield();
  ::kill(launched.pid(0), SIGKILL);
  REQUIRE(is_amid);
  for (const int process : {1, 2}) CHECK_THAT(launched.words(process), StartsWith(unharmed(2) + "; 3 workers to step"));
  for (const std::string& name : names_in(checkpoints)) CHECK_FALSE(name.starts_with(".staging"));
}

TEST_CASE("Launched: the process that was chosen to lead is lost as well") {
  const Scratch scratch;
  const auto stand_still_twice = [&](ry::Worker& worker, std::uint64_t step) {
    stand_still(scratch, 3)(worker, step);
    if (step != step_of_loss || worker.world_size() != 2) return;
    worker.barrier();
    if (worker.rank() == 0) leave(scratch.path() / "again");
    for (;;) worker.barrier();
  };
  LaunchedProcesses launched{scratch, 3, [&](int) { return train(scratch, {1, 3}, stand_still_twice); }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGKILL);
  REQUIRE(comes(scratch.path() / "again"));
  const int second = chosen_leader(scratch);
  REQUIRE((second == 1 || second == 2));
  ::kill(launched.pid(second), SIGKILL);
  CHECK(launched.words(3 - second) ==
        unharmed(1) + "; 3 workers to step 13, lost 3; 2 workers to step 13, lost 3; 1 workers to step 30, lost 0; " +
            "from 2 to 1");
  CHECK(chosen_leader(scratch) == 3 - second);
}

TEST_CASE("Launched: one that is lost while the process that was chosen starts the workers is not waited for") {
  const Scratch scratch;
  // Kills one of the others when this process begins to lead after process 0.
  struct Killer {
    const Scratch* scratch;
    int process;
    void on_start(const ry::RunInfo& /*info*/) const {
      const int victim = process == 1 ? 2 : 1;
      if (process != 0) ::kill(std::stoi(read_text(scratch->path() / fmt::format("pid-{}", victim))), SIGKILL);
    }
  };
  LaunchedProcesses launched{scratch, 4, [&](int process) {
                               std::ofstream{scratch.path() / fmt::format("pid-{}", process)} << ::getpid();
                               ry::RunConfig run;
                               run.callbacks = {Killer{&scratch, process}};
                               return train(scratch, {2, 4}, stand_still(scratch, 4), run);
                             }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGKILL);
  const std::string words = launched.words(3);
  const int leader = chosen_leader(scratch);
  CHECK_THAT(words, StartsWith(unharmed(2) + "; 4 workers to step 13, lost 3; 2 workers to step 30, lost 0"));
  CHECK(launched.words(leader == 1 ? 2 : 1) == "");
}

TEST_CASE("Launched: a process 0 that is started again comes back under the one that was chosen") {
  const Scratch scratch;
  const auto stand_still_or_wait = [&](ry::Worker& worker, std::uint64_t step) {
    stand_still(scratch, 3)(worker, step);
    if (step != step_of_loss) return;
    if (worker.rank() == 0) leave(scratch.path() / "left");
    const ry::Deadline deadline = ry::Deadline::after(60s);
    while (!worker.page().resize_requested.load() && !deadline.expired()) std::this_thread::sleep_for(1ms);
  };
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               ::setenv("RAILYARD_SECRET", "that of this test alone", 1);
                               return train(scratch, {2, 3}, stand_still_or_wait);
                             }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGKILL);
  REQUIRE(comes(scratch.path() / "left"));
  launched.start_again(0);
  const std::string expected = unharmed(3) + "; 3 workers to step 13, lost 3; 2 workers to step 1";
  for (const int process : {0, 1, 2}) CHECK_THAT(launched.words(process), StartsWith(expected));
}

TEST_CASE("Launched: one that led, was stopped and goes on later commits nothing, and says who has the run") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               return train(scratch, {2, 3}, stand_still(scratch, 3), {.silence_limit = 2s});
                             }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGSTOP);
  check_words(launched.words(1), launched.words(2), unharmed(2) + attempts_text(3, 13, 2), 3, 2);
  const auto left = names_in(scratch.path() / "run/checkpoints");
  const std::string result = read_text(scratch.path() / "run/result.json");
  ::kill(launched.pid(0), SIGCONT);
  const std::string words = launched.words(0);
  CHECK_THAT(words, ContainsSubstring("has taken over the run"));
  CHECK_THAT(words, StartsWith("status 75"));
  CHECK(names_in(scratch.path() / "run/checkpoints") == left);
  CHECK(read_text(scratch.path() / "run/result.json") == result);
}

TEST_CASE("Launched: without the process that leads, too few workers leave and ask the engine to start them again") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               return train(scratch, {5, 6}, stand_still(scratch, 6), {.start_timeout = 5s});
                             }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(0), SIGKILL);
  for (const int process : {1, 2}) {
    const std::string words = launched.words(process);
    CHECK_THAT(words, StartsWith("status 75"));
    CHECK_THAT(words, ContainsSubstring("no room for the 5 workers"));
  }
}
