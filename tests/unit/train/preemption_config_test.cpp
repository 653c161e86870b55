// SPDX-License-Identifier: MIT
// Runs that are told that their machine will go.
#include "railyard/train/preemption_config.hpp"

#include "railyard/train/detail/supervision.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"
#include "unit/train/toy_training.hpp"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace ry = railyard;
using namespace toy;  // its names stand in nearly every line

namespace {

/// Trains in a program of its own, and returns its exit status, or minus the signal that has killed it. train_it: is
/// given a worker and the program's number.
template <class P, class Train>
int status_of_program(const Scratch& scratch, const Train& train_it, const ry::RunConfig& config) {
  const pid_t program = ::fork();
  if (program == 0) {
    for (const int one : {SIGINT, SIGTERM, SIGUSR1}) ::signal(one, SIG_DFL);  // Catch2 has handlers
    const auto train_here = [&train_it, program_id = ::getpid()](auto& worker) { train_it(worker, program_id); };
    ::_exit(run_in<typename P::B, typename P::S>(scratch, 2, train_here, config).exit_status());
  }
  int status = 0;
  ::waitpid(program, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// The same of the training that all tests share. fail: see train(); it is given the program's number as well.
template <class P, class Fail>
int status_of(const Scratch& scratch, const Fail& fail, const ry::RunConfig& config) {
  const auto train_it = [&fail](auto& worker, pid_t program) {
    toy::train(worker, [&fail, program](auto& one, std::uint64_t step) { fail(one, step, program); });
  };
  return status_of_program<P>(scratch, train_it, config);
}

/// Runs a program that gets a signal in its sixth step, and returns its exit status.
template <class P>
int status_after(const Scratch& scratch, int signal, const ry::RunConfig& config, std::uint64_t at_step = 5) {
  const auto fail = [signal, at_step](auto& worker, std::uint64_t step, pid_t program) {
    if (worker.rank() == 1 && step == at_step && signal != 0) ::kill(program, signal);
    if (step < at_step) return;
    // The signal is on its way: it is heard in this step.
    const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
    while (!worker.page().stop_requested.load() && !deadline.expired()) std::this_thread::yield();
  };
  return status_of<P>(scratch, fail, config);
}

/// Waits until a worker is told that the run is to end.
template <class W>
void await_request(W& worker) {
  CHECK(awaits([&worker] { return worker.page().stop_requested.load(); }));
}

/// Saves twice, the second time when it may.
void save_twice(ry::WorkerLink& link, const std::atomic<int>& may_save_again) {
  constexpr std::string_view bytes = "{}      ";
  link.post(ry::detail::encode_started("here"));
  for (std::uint64_t step = 1; step <= 2; ++step) {
    awaits([&] { return step == 1 || may_save_again != 0; });
    const auto snapshot = link.take_snapshot(bytes.size(), ry::SnapshotKind::checkpoint);
    std::memcpy(snapshot.bytes.data(), bytes.data(), bytes.size());
    link.post(ry::detail::encode_saved(
        {.slot = snapshot.slot, .step = step, .files = {{.name = "state.json", .offset = 0, .size = bytes.size()}}}));
  }
}

/// Throws, and has the program get a signal when its workers have ended.
[[noreturn]] void fail_before_signal(pid_t program) {
  if (::fork() == 0) {
    ::setsid();
    ::usleep(300'000);
    ::kill(program, SIGTERM);
    ::_exit(0);
  }
  throw std::runtime_error{"a test"};
}

}  // namespace

TEMPLATE_TEST_CASE(
    "Preemption: all ranks save at one end of a step, and it goes on (FAULTS B7, B8, B9, B10, B12, TRAPS 43)", "",
    SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  CHECK(status_after<TestType>(scratch, SIGTERM, {.name = "term"}) == 75);
  CHECK(status_after<TestType>(scratch, SIGUSR1, {.name = "usr", .preemption = {.exit_status = 99}}) == 99);
  CHECK(status_after<TestType>(scratch, SIGUSR2, {.name = "usr2", .preemption = {.signals = {SIGUSR2}}}) == 75);
  CHECK(status_after<TestType>(scratch, SIGINT, {.name = "int"}) == 128 + SIGINT);
  std::ofstream{scratch.path() / "drain"};
  CHECK(status_after<TestType>(scratch, 0, {.name = "file", .preemption = {.file = scratch.path() / "drain"}}) == 75);
  for (const std::string name : {"term", "usr", "usr2", "int", "file"}) {
    INFO(name);
    const auto checkpoint = ry::newest_checkpoint(scratch.path() / name);
    REQUIRE(checkpoint);
    if (name != "file") CHECK((checkpoint->manifest().step == 6 || checkpoint->manifest().step == 7));
    const ry::Result result = run<TestType>(scratch, never, {.name = name});
    REQUIRE(result);
    CHECK(result.history() == whole.history());
  }
}

TEST_CASE("Preemption: a signal that is not heard is refused instead of ending the program when it comes") {
  const Scratch scratch;
  CHECK_THROWS_WITH(
      run<SharedThreads>(scratch, never, {.name = "alarm", .preemption = {.signals = {SIGTERM, SIGALRM}}}),
      ContainsSubstring("RunConfig::preemption.signals") && ContainsSubstring("SIGALRM"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "alarm"));
}

TEST_CASE("Preemption: SIGUSR1 and SIGUSR2 are the program's own where they announce nothing") {
  const Scratch scratch;
  const auto send = [](auto& worker, std::uint64_t step, pid_t program) {
    if (worker.rank() != 0 || step != 3) return;
    for (const int one : {SIGUSR1, SIGUSR2}) ::kill(program, one);
  };
  CHECK(status_of<SharedProcesses>(scratch, send, {.name = "own", .preemption = {.signals = {SIGTERM}}}) == 0);
}

TEST_CASE("Preemption: an exit status is refused that says success, or that no process can end with") {
  const Scratch scratch;
  for (const int status : {0, -1, 256}) {
    CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "status", .preemption = {.exit_status = status}}),
                      ContainsSubstring("RunConfig::preemption.exit_status is " + std::to_string(status) + ":"));
  }
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "status"));
  CHECK(run<SharedThreads>(scratch, never, {.preemption = {.exit_status = 255}}));
}

TEST_CASE("Preemption: the report of the step in which it comes is not lost") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  // The signal reaches the last step of an epoch, which the report ends.
  CHECK(status_after<SharedProcesses>(scratch, SIGTERM, {.name = "end"}, 9) == 75);
  CHECK(ry::newest_checkpoint(scratch.path() / "end")->manifest().report == 1);
  const ry::Result result = run<SharedProcesses>(scratch, never, {.name = "end"});
  REQUIRE(result);
  CHECK(result.history() == whole.history());
}

TEST_CASE("Preemption: a file announces it whatever the signals are, and a signal before a restart ends the run") {
  const Scratch scratch;
  std::ofstream{scratch.path() / "drain"};
  ry::RunConfig config{.name = "file", .preemption = {.signals = {}, .file = scratch.path() / "drain"}};
  CHECK(status_after<SharedProcesses>(scratch, 0, config) == 75);
  config = {.name = "between", .failure = {.max_failures = -1, .backoff = std::chrono::minutes{1}}};
  const auto fail = [](auto& worker, std::uint64_t step, pid_t program) {
    if (step == 8 && worker.rank() == 0) fail_before_signal(program);
  };
  CHECK(status_of<SharedThreads>(scratch, fail, config) == 75);
}

TEST_CASE("Preemption: a state that could not be written is not said to be saved") {
  const bool is_between = GENERATE(false, true);  // the signal comes while no worker is there
  INFO(is_between);
  const Scratch scratch;
  // With a copy in memory after each step: without any, a restart needs a checkpoint, and ends the run before the
  // signal.
  const ry::RunConfig config{
      .name = "lost",
      .failure = {.max_failures = is_between ? -1 : 0, .backoff = std::chrono::minutes{1}, .memory_percent = 100}};
  const auto fail = [&](auto& worker, std::uint64_t step, pid_t program) {
    if (step != 8 || worker.rank() != 0) return;
    const auto checkpoints = scratch.path() / "lost" / "checkpoints";
    while (!std::filesystem::is_regular_file(checkpoints)) {  // the first one may be on its way
      std::error_code ignored;
      std::filesystem::rename(checkpoints, scratch.path() / "lost" / "hidden", ignored);
      std::ofstream{checkpoints} << "no directory";
    }
    if (is_between) fail_before_signal(program);
    ::kill(program, SIGTERM);
    while (!worker.page().stop_requested.load()) std::this_thread::yield();
  };
  CHECK(status_of<SharedThreads>(scratch, fail, config) == 128 + SIGTERM);
}

TEST_CASE(
    "Preemption: where nothing newer than the newest checkpoint is at hand, a run leaves in order without another") {
  const Scratch scratch;
  ry::RunConfig config{.name = "run", .checkpoint = {.synchronous = true}};
  config.stop_grace = std::chrono::milliseconds{300};
  const auto is_told = [](auto& worker, pid_t program) {
    worker.barrier();
    if (worker.rank() == 0) ::kill(program, SIGTERM);
    while (true) ::pause();
  };
  CHECK(status_of_program<SharedProcesses>(scratch, is_told, config) == 128 + SIGTERM);
  // In an evaluation after the report that has saved the state.
  const auto evaluate = [&is_told](auto& worker, pid_t program) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    worker.samples(1);
    worker.report({{"at", 0}}, state);
    is_told(worker, program);
  };
  CHECK(status_of_program<SharedProcesses>(scratch, evaluate, config) == 75);
  CHECK(names_in(scratch.path() / "run" / "checkpoints").size() == 1);
  // In a slow start of a run that goes on.
  CHECK(status_of_program<SharedProcesses>(scratch, is_told, config) == 75);
  CHECK_THAT(read_text(scratch.path() / "run" / "result.json"),
             ContainsSubstring("goes on from its newest checkpoint"));
}

TEST_CASE("Preemption: how long a run has for its first checkpoint is the user's to say (FAULTS B7)") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  for (const bool is_long : {false, true}) {
    INFO(is_long);
    ry::RunConfig config{.name = is_long ? "long" : "short", .failure = {.memory_percent = 0}};
    config.stop_grace = is_long ? std::chrono::nanoseconds{std::chrono::hours{1}} : std::chrono::milliseconds{100};
    const auto take_long = [is_long](auto& worker, std::uint64_t step, pid_t program) {
      if (step != 2) return;
      if (worker.rank() == 1) ::kill(program, SIGTERM);
      await_request(worker);
      ::usleep(300'000);  // so long the step lasts
      while (!is_long) ::pause();
    };
    CHECK(status_of<SharedProcesses>(scratch, take_long, config) == (is_long ? 75 : 128 + SIGTERM));
    CHECK(ry::newest_checkpoint(scratch.path() / config.name).has_value() == is_long);
    CHECK(run<SharedProcesses>(scratch, never, {.name = config.name}).history() == whole.history());
  }
}

TEST_CASE("Preemption: a second SIGTERM ends at once who does not leave, and what is committed stays (FAULTS B7)") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  for (const int num_committed : {0, 2}) {
    INFO(num_committed);
    ry::RunConfig config{.name = "run-" + std::to_string(num_committed),
                         .checkpoint = {.synchronous = true},
                         .failure = {.memory_percent = 0}};
    config.stop_grace = std::chrono::hours{1};
    const auto be_deaf = [num_committed](auto& worker, std::uint64_t step, pid_t program) {
      if (step != static_cast<std::uint64_t>(steps_per_epoch * num_committed + 2)) return;
      if (worker.rank() == 1) {
        ::kill(program, SIGTERM);
        await_request(worker);
        ::kill(program, SIGTERM);
      }
      while (true) ::pause();
    };
    CHECK(status_of<SharedProcesses>(scratch, be_deaf, config) == (num_committed == 0 ? 128 + SIGTERM : 75));
    const auto checkpoints = scratch.path() / config.name / "checkpoints";
    const auto all = std::filesystem::exists(checkpoints) ? names_in(checkpoints) : std::vector<std::string>{};
    CHECK(all.size() == static_cast<std::size_t>(num_committed));
    CHECK(run<SharedProcesses>(scratch, never, {.name = config.name}).history() == whole.history());
  }
}

TEST_CASE("Preemption: a second SIGTERM leaves a checkpoint that storage holds up, not the one before it (FAULTS B7)") {
  const Scratch scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  const SharedNumber may_save_again;
  std::ofstream{scratch.path() / "run.json"} << "{}";
  const pid_t program = ::fork();
  if (program == 0) {
    ::signal(SIGTERM, SIG_DFL);  // Catch2 has a handler
    const auto files = std::make_shared<HangingFiles>();
    const ry::RunConfig config{.progress = ry::Progress::quiet, .stop_grace = std::chrono::hours{1}};
    ry::detail::RunLease lease{scratch.path(), {.answer = std::chrono::milliseconds{50}}, files};
    ry::detail::Supervision supervision{config,
                                        ry::detail::ElasticSize{{.num_workers = 1}},
                                        {.name = "x", .path = scratch.path(), .world_size = 1},
                                        ry::Deadline::Clock::now(),
                                        std::move(lease)};
    std::thread watcher;
    const auto start_group = [&](const ry::GroupPlan& plan) {
      auto group = ry::Processes{}.start(plan, [&](ry::WorkerLink& link) { save_twice(link, *may_save_again); });
      watcher = std::thread{[&] {
        awaits([&] { return ry::newest_checkpoint(scratch.path()).has_value(); });
        files->hang();  // who commits looks whose the run is
        *may_save_again = 1;
        awaits([&] { return names_in(checkpoints).size() == 2; });
        while (true) {
          ::kill(::getpid(), SIGTERM);
          ::usleep(20'000);
        }
      }};
      return group;
    };
    static_cast<void>(supervision.run(start_group, [](int) {}));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(program, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK(names_in(checkpoints).size() == 2);
  const ry::detail::RunLease next{scratch.path()};
  std::vector<std::string> problems;
  const auto newest = ry::detail::find_checkpoint(scratch.path(), next, {}, "", problems);
  REQUIRE(newest);
  newest->verify();
  CHECK(newest->manifest().step == 1);
  CHECK(names_in(checkpoints).size() == 1);
}
