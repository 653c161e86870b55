// SPDX-License-Identifier: MIT
// Runs that another program has taken over, as it may while this one is suspended: nothing of theirs is changed any
// more.
#include "railyard/train/detail/run_lease.hpp"

#include "support/catch.hpp"
#include "unit/train/toy_training.hpp"

#include <filesystem>
#include <fstream>
#include <string>

namespace ry = railyard;
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

TEST_CASE("Run: one that was taken over ends for good, and leaves reports, events and result to whoever has it") {
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
  config.preemption.file =
      scratch.path() / "notice";  // wakes the supervisor every second, which then looks for a taker
  const ry::Result result = run_in<ry::SharedMemory, ry::Threads>(scratch, 2, lose, config);
  CHECK_FALSE(result);
  CHECK(result.attempts().size() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("process 12 on node7 has taken over the run"));
  CHECK(read_lines(run_path / "metrics.jsonl").size() == 1);
  CHECK_FALSE(std::filesystem::exists(run_path / "result.json"));
  CHECK_FALSE(std::filesystem::exists(run_path / "events.jsonl"));
  CHECK_THAT(read_text(run_path / "lease.json"), ContainsSubstring("node7"));
}
