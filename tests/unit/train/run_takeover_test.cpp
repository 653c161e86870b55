// SPDX-License-Identifier: MIT
// Runs that another program has taken over, as it may while this one is suspended: nothing of theirs is changed any
// more. And storage that does not say whose a run is.
#include "railyard/train/detail/run_lease.hpp"

#include "railyard/train/detail/supervision.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"
#include "unit/train/toy_training.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using namespace std::chrono_literals;
using namespace toy;  // its names stand in nearly every line

namespace {

// What the other program has written.
void take_over(const std::filesystem::path& run) {
  std::ofstream{run / "lease.json"}
      << R"({"generation": 7, "id": "a", "host": "node7", "since": "noon", "pid": 12, "boot": "b", "has_ended": false})";
}

}  // namespace

TEST_CASE("RunLease: tells who has taken the run over, but not of a file that says nothing") {
  const Scratch scratch;
  const auto file = scratch.path() / "lease.json";
  ry::detail::RunLease lease{scratch.path()};
  const bool has_thread = GENERATE(false, true);
  if (has_thread) REQUIRE(lease.keep_alive() == "");
  CHECK(lease.taker(true) == "");
  std::ofstream{file} << "damaged";
  CHECK(lease.taker(true) == "");
  std::filesystem::remove(file);
  CHECK(lease.taker(true) == "");
  take_over(scratch.path());
  CHECK(lease.taker(false) == "");  // it has just looked
  CHECK_THAT(lease.taker(true), ContainsSubstring("process 12 on node7") && ContainsSubstring("since noon") &&
                                    ContainsSubstring(scratch.path().string()));
}

TEST_CASE("Run: one that was taken over ends for good, and leaves its files to whoever has it (TRAPS 41)") {
  const Scratch scratch;
  const auto run_path = scratch.path() / "run";
  const bool fails = GENERATE(false, true);  // or trains on
  INFO(fails);
  const auto lose = [fails](auto& worker) {
    worker.report({{"at", 0}});
    worker.barrier();
    const auto metrics = worker.run_path() / "metrics.jsonl";
    const auto deadline = ry::Deadline::after(std::chrono::seconds{60});
    while (read_lines(metrics).empty() && !deadline.expired()) std::this_thread::yield();
    worker.barrier();
    if (worker.rank() == 0) take_over(worker.run_path());
    worker.barrier();
    if (fails && worker.rank() == 0) throw std::runtime_error{"a test"};
    while (!deadline.expired()) worker.barrier();  // throws when the run is ended
  };
  ry::RunConfig config{.name = "run", .checkpoint = {}, .failure = {.max_failures = 3}};
  config.preemption.file = scratch.path() / "notice";  // wakes the supervisor more often
  const ry::Result result = run_in<ry::SharedMemory, ry::Threads>(scratch, 2, lose, config);
  CHECK_FALSE(result);
  CHECK(result.attempts().size() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("process 12 on node7 has taken over the run"));
  CHECK(read_lines(run_path / "metrics.jsonl").size() == 1);
  CHECK_FALSE(std::filesystem::exists(run_path / "result.json"));
  CHECK_FALSE(std::filesystem::exists(run_path / "events.jsonl"));
  CHECK_THAT(read_text(run_path / "lease.json"), ContainsSubstring("node7"));
}

TEST_CASE("RunLease: a program that was suspended learns that its run was taken over before it does anything else") {
  const Scratch scratch;
  const SharedNumber moment;  // 1: it has begun, 2: it was suspended
  const pid_t program = ::fork();
  if (program == 0) {
    ry::detail::RunLease lease{scratch.path(), {.beat = 250ms}};
    static_cast<void>(lease.keep_alive());
    static_cast<void>(lease.taker(false));
    for (*moment = 1;;) {
      const bool was_suspended = *moment == 2;
      const bool is_taken = !lease.taker(false).empty();
      if (was_suspended) ::_exit(is_taken ? 0 : 1);
    }
  }
  CHECK(awaits([&] { return *moment == 1; }));
  ::kill(program, SIGSTOP);
  ::waitpid(program, nullptr, WUNTRACED);
  take_over(scratch.path());
  *moment = 2;
  const auto two_beats = ry::Deadline::after(600ms);
  awaits([&] { return two_beats.expired(); });
  ::kill(program, SIGCONT);
  int status = 0;
  ::waitpid(program, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("Run: storage that does not say whose the run is holds up neither the watch over its workers nor signals") {
  const Scratch scratch;
  const bool is_by_signal = GENERATE(false, true);
  INFO(is_by_signal);
  const auto files = std::make_shared<HangingFiles>();
  const ry::RunConfig config{.progress = ry::Progress::quiet,
                             .start_timeout = is_by_signal ? std::chrono::nanoseconds{1h} : 300ms,
                             .stop_grace = is_by_signal ? std::chrono::nanoseconds{1h} : 100ms};
  const SharedNumber worker;
  ry::detail::Supervision supervision{
      config,
      ry::detail::ElasticSize{{.num_workers = 1}},
      {.name = "x", .path = scratch.path(), .world_size = 1},
      ry::Deadline::Clock::now(),
      ry::detail::RunLease{scratch.path(), {.beat = 5ms, .patience = 50ms, .answer = 50ms}, files}};
  bool is_ended = false;
  std::thread watcher{[&] {
    const bool has_begun = awaits([&] { return *worker != 0; });
    is_ended = has_begun && awaits([&] {
                 const bool is_gone = ::kill(*worker, 0) != 0;
                 if (!is_gone && is_by_signal) ::kill(::getpid(), SIGTERM);
                 return is_gone;
               });
    files->let_go();
    if (!is_ended && has_begun) ::kill(*worker, SIGKILL);
  }};
  const auto result = supervision.run(
      [&](const ry::GroupPlan& plan) {
        auto group = ry::Processes{}.start(plan, [&](ry::WorkerLink&) {
          *worker = ::getpid();
          while (true) ::pause();
        });
        files->hang();
        return group;
      },
      [](int) {});
  watcher.join();
  CHECK(is_ended);
  CHECK_THAT(result.error(), is_by_signal ? ContainsSubstring("interrupted by SIGTERM")
                                          : ContainsSubstring("had not joined the group"));
}
