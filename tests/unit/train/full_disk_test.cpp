// SPDX-License-Identifier: MIT
// Whole runs on a disk that is full: from the start, from some step on, for a while.
#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "support/small_disk.hpp"
#include "unit/train/toy_training.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

constexpr std::size_t disk_bytes = std::size_t{4} << 20U;
constexpr std::uint64_t num_disk_steps = 6;
constexpr std::uint64_t never_again = num_disk_steps;

// Says in which steps of the first attempt the disk is full, and in which a rank is killed.
struct DiskFaults {
  std::uint64_t full_at = 2;
  std::uint64_t room_at = never_again;
  std::uint64_t killed_at = never_again;
};

// Of the steps before, so that it is known what the disk took.
void await_reports(const std::filesystem::path& run, std::uint64_t count) {
  const ry::Deadline deadline = ry::Deadline::after(std::chrono::seconds{30});
  while (read_lines(run / "metrics.jsonl").size() < count) {
    if (deadline.expired()) throw std::runtime_error{"the reports do not come to the disk"};
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
}

// Each step reports and prints what needs another page of the disk, or two.
template <class W>
void train_on_disk(W& worker, const std::filesystem::path& disk, const DiskFaults& faults) {
  toy::Weights weights;
  ry::TrainState state{worker, {{"weights", weights}}};
  const std::string much(5000, 'x');
  while (worker.steps() < num_disk_steps) {
    const std::uint64_t step = worker.steps();
    if (worker.attempt() == 0) {
      if (worker.rank() == 0 && step == faults.full_at) {
        await_reports(worker.run_path(), step);
        fill_up(disk);
      }
      if (worker.rank() == 0 && step == faults.room_at) make_room(disk);
      if (worker.rank() == 1 && step == faults.killed_at) ::raise(SIGKILL);
    }
    worker.barrier();
    worker.samples(1);
    weights.step(step);
    worker.end_step();
    fmt::print("{}\n", much);
    std::fflush(stdout);
    worker.report({{"step", step}, {"sum", weights.sum()}, {"much", much}}, state);
  }
}

ry::Result fit_on_disk(const std::filesystem::path& disk, const DiskFaults& faults = {.full_at = never_again}) {
  ry::RunConfig run{.name = "run",
                    .storage_path = disk,
                    .checkpoint = {.keep = 2, .synchronous = true},
                    .failure = {.max_failures = 1, .memory_percent = 0},
                    .progress = ry::Progress::quiet};
  ry::Trainer<ry::SharedMemory, ry::Processes> trainer{
      [&disk, faults](auto& worker) { train_on_disk(worker, disk, faults); }, {.num_workers = 2}, std::move(run)};
  return trainer.fit();
}

std::string sum_without_faults() {
  toy::Weights weights;
  for (std::uint64_t step = 0; step < num_disk_steps; ++step) weights.step(step);
  return fmt::format("sum {}", weights.sum());
}

// What the run says of itself, and what the disk holds of it.
std::string told(const ry::Result& result) {
  std::string text =
      fmt::format("error \"{}\", status {}, {} attempts, {} reports, sum {}\n", result.error(), result.exit_status(),
                  result.attempts().size(), result.history().size(), result.metrics().at("sum").number());
  text += fmt::format("{} checkpoints failed, saved {}, recorded {}\n", result.failed_checkpoints(),
                      result.is_state_saved(), result.is_recorded());
  const auto& checkpoint = result.checkpoint();
  if (checkpoint) checkpoint->verify();
  text += fmt::format("the newest is of report {}, of {}\n", checkpoint ? checkpoint->manifest().report : -1,
                      names_in(result.path() / "checkpoints").size());
  const std::string reports = read_text(result.path() / "metrics.jsonl");
  text += fmt::format("{} reports on disk, whole {}\n", std::count(reports.begin(), reports.end(), '\n'),
                      reports.ends_with("}\n"));
  for (const std::string& warning : result.warnings()) text += warning + "\n";
  return text;
}

// Nothing where no disk can be mounted, which the test then says.
std::string told_on_small_disk(const std::function<std::string(const std::filesystem::path& disk)>& program) {
  const auto text = on_small_disk(disk_bytes, program);
  if (!text) WARN("not tested: no disk can be mounted here");
  return text.value_or("");
}

}  // namespace

TEST_CASE("Full disk: a run goes on, says what is missing, keeps the checkpoint before, and is resumed from it") {
  const std::string text = told_on_small_disk([](const std::filesystem::path& disk) {
    const std::string first = told(fit_on_disk(disk, {}));
    make_room(disk);
    return first + "AGAIN\n" + told(fit_on_disk(disk));
  });
  if (text.empty()) return;
  const std::string first = text.substr(0, text.find("AGAIN"));
  INFO(text);
  CHECK_THAT(first, ContainsSubstring("error \"\", status 0, 1 attempts, 6 reports, " + sum_without_faults()));
  CHECK_THAT(first, ContainsSubstring("4 checkpoints failed, saved false, recorded false"));
  CHECK_THAT(first, ContainsSubstring("the newest is of report 1, of 2"));
  CHECK_THAT(first, ContainsSubstring("2 reports on disk, whole true"));
  CHECK_THAT(first, ContainsSubstring("step 3 could not be written: ") && ContainsSubstring("No space left on device"));
  CHECK_THAT(first, ContainsSubstring("4 line(s) are missing from") && ContainsSubstring("metrics.jsonl: No space"));
  CHECK_THAT(first, ContainsSubstring("rank-0.log: No space left on device"));
  CHECK_THAT(first, ContainsSubstring("result.json") && ContainsSubstring("cannot be written: No space left"));
  const std::string again = text.substr(first.size());
  CHECK_THAT(again, ContainsSubstring("error \"\", status 0, 1 attempts, 6 reports, " + sum_without_faults()));
  CHECK_THAT(again, ContainsSubstring("0 checkpoints failed, saved true, recorded false"));
  CHECK_THAT(again, ContainsSubstring("the newest is of report 5, of 2"));
  CHECK_THAT(again, ContainsSubstring("6 reports on disk, whole true"));
}

TEST_CASE("Full disk: when there is room again, checkpoints are written again") {
  const std::string text = told_on_small_disk(
      [](const std::filesystem::path& disk) { return told(fit_on_disk(disk, {.full_at = 2, .room_at = 4})); });
  if (text.empty()) return;
  INFO(text);
  CHECK_THAT(text, ContainsSubstring("error \"\", status 0, 1 attempts, 6 reports, " + sum_without_faults()));
  CHECK_THAT(text, ContainsSubstring("2 checkpoints failed, saved true, recorded false"));
  CHECK_THAT(text, ContainsSubstring("the newest is of report 5, of 2"));
  CHECK_THAT(text, ContainsSubstring("reports on disk, whole true"));
}

TEST_CASE("Full disk: a worker that dies meanwhile goes on from the checkpoint before") {
  const std::string text = told_on_small_disk(
      [](const std::filesystem::path& disk) { return told(fit_on_disk(disk, {.full_at = 2, .killed_at = 4})); });
  if (text.empty()) return;
  INFO(text);
  CHECK_THAT(text, ContainsSubstring("error \"\", status 0, 2 attempts, 6 reports, " + sum_without_faults()));
  CHECK_THAT(text, ContainsSubstring("the newest is of report 1, of 2"));
  CHECK_THAT(text, ContainsSubstring("2 reports on disk, whole true"));
}

TEST_CASE("Full disk: a run that would begin on one is refused, and leaves nothing there") {
  const std::string text = told_on_small_disk([](const std::filesystem::path& disk) {
    fill_up(disk);
    try {
      return told(fit_on_disk(disk));
    } catch (const ry::ConfigError& error) {
      return fmt::format("{} is left, {}", names_in(disk).size(), error.what());
    }
  });
  if (text.empty()) return;
  CHECK_THAT(text, ContainsSubstring("1 is left, RunConfig::storage_path is \"") &&
                       ContainsSubstring("No space left on device") && ContainsSubstring("that has room"));
}
