// SPDX-License-Identifier: MIT
// Runs whose storage stops answering: while they train, between two starts of the workers, before the first, at the
// end.
#include "railyard/train/detail/supervision.hpp"

#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"
#include "unit/train/scratch.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using namespace std::chrono_literals;

namespace {

using OwnWork = std::function<void(ry::WorkerLink&, int attempt)>;

// Of a run of one worker. config has to outlive it.
ry::detail::Supervision supervision_of(const Scratch& scratch, const ry::RunConfig& config, ry::detail::RunLease lease,
                                       const std::shared_ptr<ry::detail::Files>& files,
                                       const ry::detail::StorageLimits& limits) {
  return ry::detail::Supervision{config,
                                 ry::detail::ElasticSize{{.num_workers = 1}},
                                 {.name = "x", .path = scratch.path(), .world_size = 1},
                                 ry::Deadline::Clock::now(),
                                 std::move(lease),
                                 {},
                                 {},
                                 ry::detail::Console{},
                                 files,
                                 limits};
}

// Runs one worker, whose storage stalls from the start of that on.
ry::Result run_stalled(const Scratch& scratch, ry::RunConfig config, const std::shared_ptr<StalledFiles>& files,
                       const OwnWork& work, const ry::detail::StorageLimits& limits = {}) {
  config.progress = ry::Progress::quiet;
  std::filesystem::create_directories(scratch.path() / "logs");
  ry::detail::RunLease lease{scratch.path(), {.beat = 5ms, .patience = 50ms, .answer = 50ms}, files};
  auto supervision = supervision_of(scratch, config, std::move(lease), files, limits);
  return supervision.run(
      [&](const ry::GroupPlan& plan) {
        auto group = ry::Processes{}.start(plan, [&work](ry::WorkerLink& link) {
          link.post(ry::detail::encode_started("here"));
          work(link, ry::detail::decode_briefing(link.briefing()).attempt);
        });
        files->stall();
        return group;
      },
      [](int) {});
}

// Is what one run does in a program of its own, on storage that dies.
struct DyingRun {
  std::string name{};  // of what cannot be opened then; anything if empty
  ry::RunConfig config{};
  std::function<void(std::atomic<int>& storage)> start = [](auto&) {};  // before its worker, a thread, is made
  std::function<void(ry::WorkerLink&, std::atomic<int>& storage)> work = [](auto&, auto&) {};  // of the worker
};

// Does it. Returns the exit status.
int status_of_dying(const DyingRun& it, const Scratch& scratch, std::atomic<int>& storage) {
  const auto files = std::make_shared<DyingFiles>(it.name, storage);
  ry::detail::RunLease lease{scratch.path(), {.beat = 1h, .patience = 1h}, files};
  static_cast<void>(lease.taker(true));  // so that nobody looks again before it has to
  ry::RunConfig config = it.config;
  config.progress = ry::Progress::quiet;
  auto supervision = supervision_of(scratch, config, std::move(lease), files, {.rest = 50ms, .end = 1h});
  const auto result = supervision.run(
      [&](const ry::GroupPlan& plan) {
        it.start(storage);
        return ry::Threads{}.start(plan, [&](ry::WorkerLink& link) {
          link.post(ry::detail::encode_started("here"));
          it.work(link, storage);
        });
      },
      [](int) {});
  ::_exit(result.exit_status());  // the lease would wait for its storage
}

// Has a program of its own do it, which gets SIGTERM when somebody waits for its storage: once, or again and again.
// Then the storage may come back. Returns its exit status, or minus the signal that has ended it: SIGKILL if none did.
enum class Sent { once, again_and_again, once_before_it_comes_back };
int status_of_dying(const DyingRun& it, const Scratch& scratch, Sent sent) {
  std::filesystem::create_directories(scratch.path() / "logs");
  const SharedNumber storage;
  const pid_t program = ::fork();
  if (program == 0) {
    ::signal(SIGTERM, SIG_DFL);  // Catch2 has a handler
    ::_exit(status_of_dying(it, scratch, *storage));
  }
  CHECK(awaits([&] { return *storage == DyingFiles::dead_and_asked; }));
  ::kill(program, SIGTERM);
  if (sent == Sent::once_before_it_comes_back) *storage = DyingFiles::alive;
  int status = 0;
  bool has_ended = false;
  awaits([&] {
    if (!has_ended && sent == Sent::again_and_again) ::kill(program, SIGTERM);
    has_ended = has_ended || ::waitpid(program, &status, WNOHANG) == program;
    return has_ended;
  });
  if (!has_ended) {
    ::kill(program, SIGKILL);
    ::waitpid(program, &status, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

[[noreturn]] void fail_with_storage(ry::WorkerLink& /*link*/, std::atomic<int>& storage) {
  storage = DyingFiles::dead;
  throw std::runtime_error{"a test"};
}

// Runs without a worker on storage that has died.
ry::Result run_without_start(const Scratch& scratch, const std::shared_ptr<StalledFiles>& files,
                             const std::function<void()>& start_workers) {
  const ry::RunConfig config{.progress = ry::Progress::quiet};
  ry::detail::RunLease lease{scratch.path(), {.beat = 5ms, .patience = 50ms, .answer = 50ms}, files};
  auto supervision = supervision_of(scratch, config, std::move(lease), files, {.rest = 50ms, .end = 200ms});
  return supervision.run(
      [&](const ry::GroupPlan&) -> std::unique_ptr<ry::WorkerGroup> {
        files->stall();
        start_workers();
        return nullptr;
      },
      [](int) {});
}

void report(ry::WorkerLink& link, int number) { link.post(ry::detail::encode_report({{"number", number}})); }

}  // namespace

TEST_CASE("Run: a worker that dies is seen and started again while storage holds up all that the run writes") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  const SharedNumber moment;  // 1: reports are held up, 2: the worker has started again
  bool was_restarted = false;
  std::thread watcher{[&] {
    if (awaits([&] { return files->num_waiting() > 0; })) *moment = 1;
    was_restarted = awaits([&] { return *moment == 2; });
    files->let_go();
  }};
  const auto result = run_stalled(scratch, {.failure = {.max_failures = 1}}, files, [&](auto& link, int attempt) {
    for (const int number : {0, 1}) report(link, number);
    ::puts("a line");
    if (attempt == 0) {
      awaits([&] { return *moment == 1; });
      ::raise(SIGKILL);
    }
    *moment = 2;
  });
  watcher.join();
  CHECK(was_restarted);
  CHECK(result.error() == "");
  CHECK(result.attempts().size() == 2);
  CHECK(result.warnings().empty());
  CHECK(read_lines(scratch.path() / "metrics.jsonl").size() == 2);  // what was reported first was taken back
  CHECK(read_text(scratch.path() / "logs" / "rank-0.log") == "a line\na line\n");
  const auto events = read_text(scratch.path() / "events.jsonl");
  CHECK(events.find("attempt_ended") < events.find("\"restart\""));
  CHECK(events.find("\"restart\"") < events.find("\"ended\""));
  CHECK_THAT(read_text(scratch.path() / "result.json"), ContainsSubstring("\"succeeded\": true"));
}

TEST_CASE("Run: storage that never answers again neither keeps signals from a run nor keeps it from its end") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  bool was_held_up = false;
  std::thread watcher{[&] {
    was_held_up = awaits([&] { return files->num_waiting() > 1; });
    ::kill(::getpid(), SIGTERM);
  }};
  const auto result = run_stalled(scratch, {.stop_grace = 100ms}, files,
                                  [](auto& link, int) {
                                    report(link, 0);
                                    while (true) ::pause();
                                  },
                                  {.rest = 50ms, .end = 200ms});
  watcher.join();
  CHECK(was_held_up);
  CHECK_THAT(result.error(), ContainsSubstring("interrupted by SIGTERM"));
  std::string warnings;
  for (const std::string& text : result.warnings()) warnings += text + "\n";
  const std::string missing = "\n1 line(s) are missing from " + (scratch.path() / "metrics.jsonl").string();
  CHECK_THAT("\n" + warnings, ContainsSubstring(missing + ": its storage did not answer"));
  CHECK_THAT(warnings, ContainsSubstring("which checkpoints there are in") && ContainsSubstring("cannot be told"));
  CHECK_THAT(warnings, ContainsSubstring("result.json cannot be written: its storage does not answer"));
  files->let_go();
  CHECK(awaits([&] { return files.use_count() == 1; }));  // threads that were left behind have ended
}

TEST_CASE("Run: a signal is heard while storage is to say whose the run is, before a restart and at the end") {
  const Scratch scratch;
  DyingRun run{.name = "lease.json", .config = {.failure = {.max_failures = 1}}, .work = fail_with_storage};
  SECTION("the first one ends the run before a restart") {
    CHECK(status_of_dying(run, scratch, Sent::once) == 128 + SIGTERM);
    CHECK_THAT(read_text(scratch.path() / "result.json"), ContainsSubstring("interrupted by SIGTERM"));
  }
  SECTION("the second one ends the program, where other storage does not answer either") {
    run.name.clear();
    CHECK(status_of_dying(run, scratch, Sent::again_and_again) == -SIGTERM);
  }
  SECTION("the first one lets a run end that has come to its end") {
    run.work = [](auto&, auto& storage) { storage = DyingFiles::dead; };
    CHECK(status_of_dying(run, scratch, Sent::once) == 0);
    CHECK_THAT(read_text(scratch.path() / "result.json"), ContainsSubstring("\"succeeded\": true"));
  }
}

TEST_CASE("Run: the second signal ends the program while storage is waited for, though the first one came before") {
  const Scratch scratch;
  const int first = GENERATE(SIGTERM, SIGUSR1);  // SIGUSR1 announces the one that tells to leave
  const auto leave = [first](ry::WorkerLink& link, std::atomic<int>& storage) {
    ::kill(::getpid(), first);
    awaits([&] { return link.page().stop_requested.load(); });
    storage = DyingFiles::dead;
  };
  const int status = status_of_dying({.name = "lease.json", .work = leave}, scratch, Sent::once);
  CHECK(status == (first == SIGTERM ? -SIGTERM : 128 + SIGUSR1));
}

TEST_CASE("Run: a signal is heard while storage holds up the end of a run, which the second one does not wait for") {
  const Scratch scratch;
  const std::string name = GENERATE("events.jsonl", "result.json");
  INFO(name);
  struct Killer {
    std::function<void()> kill;
    void on_end(const ry::RunEnd&) const { kill(); }
  };
  DyingRun run{.name = name};
  std::atomic<int>* storage = nullptr;
  run.start = [&](auto& its) { storage = &its; };
  run.config.callbacks = {Killer{[&] { *storage = DyingFiles::dead; }}};
  SECTION("the first one ends the program when the result is there") {
    CHECK(status_of_dying(run, scratch, Sent::once_before_it_comes_back) == -SIGTERM);
    CHECK_THAT(read_text(scratch.path() / "result.json"), ContainsSubstring("\"succeeded\": true"));
  }
  SECTION("the second one ends it without") {
    CHECK(status_of_dying(run, scratch, Sent::again_and_again) == -SIGTERM);
    CHECK_FALSE(std::filesystem::exists(scratch.path() / "result.json"));
  }
}

TEST_CASE("Run: one that cannot start its workers waits for dead storage in vain once, and says which") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  std::string warnings;
  SECTION("whatever there is") {
    const auto result = run_without_start(scratch, files, [] { throw ry::Error{"no processes are left"}; });
    CHECK_THAT(result.error(),
               ContainsSubstring("no processes are left") && ContainsSubstring(scratch.path().string()));
    for (const std::string& text : result.warnings()) warnings += text + "\n";
    CHECK_THAT(warnings, ContainsSubstring("which checkpoints there are in " + scratch.path().string() +
                                           " cannot be told: its storage does not answer"));
  }
  SECTION("and leaves a new directory where it is") {
    CHECK_THROWS_WITH(run_without_start(scratch, files, [] { throw ry::ConfigError{"a setting"}; }), "a setting");
    CHECK(std::filesystem::exists(scratch.path() / "lease.json"));
  }
  files->let_go();
  CHECK(awaits([&] { return files.use_count() == 1; }));
}

TEST_CASE("Run: signals are heard while one that cannot start its workers waits for its storage") {
  const Scratch scratch;
  DyingRun run{.config = {.failure = {.max_failures = -1, .backoff = 1h, .max_backoff = 1h}}};
  SECTION("one that is waited for again, which another signal has ended before") {
    run.start = [](auto& storage) {
      storage = DyingFiles::dead;
      ::raise(SIGTERM);
      throw ry::Error{"no processes are left"};
    };
    CHECK(status_of_dying(run, scratch, Sent::once) == -SIGTERM);
  }
  SECTION("one whose settings are wrong") {
    run.start = [](auto& storage) {
      storage = DyingFiles::dead;
      throw ry::ConfigError{"a setting"};
    };
    CHECK(status_of_dying(run, scratch, Sent::again_and_again) == -SIGTERM);
  }
}
