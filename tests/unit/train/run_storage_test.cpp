// SPDX-License-Identifier: MIT
// Runs whose storage stops answering while they train.
#include "railyard/train/detail/supervision.hpp"

#include "railyard/workers/processes.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"
#include "unit/train/scratch.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <unistd.h>

namespace ry = railyard;
using namespace std::chrono_literals;

namespace {

using OwnWork = std::function<void(ry::WorkerLink&, int attempt)>;

// Runs one worker, whose storage stalls from the start of that on.
ry::Result run_stalled(const Scratch& scratch, ry::RunConfig config, const std::shared_ptr<StalledFiles>& files,
                       const OwnWork& work, const ry::detail::StorageLimits& limits = {}) {
  config.progress = ry::Progress::quiet;
  std::filesystem::create_directories(scratch.path() / "logs");
  ry::detail::RunLease lease{scratch.path(), {.beat = 5ms, .patience = 50ms, .answer = 50ms}, files};
  ry::detail::Supervision supervision{config,
                                      ry::detail::ElasticSize{{.num_workers = 1}},
                                      {.name = "x", .path = scratch.path(), .world_size = 1},
                                      ry::Deadline::Clock::now(),
                                      std::move(lease),
                                      {},
                                      {},
                                      ry::detail::Console{},
                                      files,
                                      limits};
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
