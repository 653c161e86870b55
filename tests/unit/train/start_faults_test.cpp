// SPDX-License-Identifier: MIT
// Storage that fails, or a program that dies, while a program makes a run's directory or finds what an earlier one has
// left there.
#include "railyard/train/detail/run_record.hpp"

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/run_lease.hpp"

#include "support/catch.hpp"
#include "support/failing_files.hpp"
#include "unit/checkpoint/support.hpp"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
namespace rt = railyard_test;

namespace {

using HowToFail = rt::FailingFiles::How;

// A claim of a program that has failed is waited for no longer than this.
constexpr ry::detail::LeaseTimes of_brief_waits{.beat = std::chrono::milliseconds{50},
                                                .patience = std::chrono::milliseconds{300}};

struct Started {
  bool begins_anew = false;
  std::uint64_t step = 0;  // where it goes on
  std::size_t num_reports = 0;
  std::vector<std::string> problems{};  // that people are told of
};

// Does what a program does until it starts workers, in the same order.
Started start_run(const std::filesystem::path& storage, const std::shared_ptr<ry::detail::Files>& files) {
  const ry::detail::RunPlace place = ry::detail::make_run_directory("run", storage, files);
  const ry::detail::RunLease lease{place.path, of_brief_waits, files, place.is_new};
  Started started;
  started.begins_anew =
      place.is_new || ry::detail::looking_at_run([&] { return ry::detail::is_barely_begun(place.path, files); });
  if (!place.is_new) {
    ry::detail::looking_at_run([&] { ry::detail::sweep_run_directory(place.path, started.begins_anew, files); });
  }
  if (started.begins_anew) return started;
  const ry::detail::RunRecord record = ry::detail::read_run_record(place.path, files);
  started.problems = record.problems;
  started.num_reports = record.history.size();
  ry::CheckpointFolder folder{place.path / "checkpoints", lease.generation(), files};
  folder.sweep();
  const auto newest = folder.newest_whole(started.problems);
  if (!newest) throw ry::DataError{"no checkpoint is whole in " + place.path.string()};
  started.step = newest->manifest().step;
  const auto weights = rt::elements_of<float>(newest->load("net", 0)->tensors.at(0));
  REQUIRE(weights.at(0) == static_cast<float>(started.step));
  return started;
}

// Starts once more, on storage that works. A lease that ends is not waited for by whoever has it where that takes long.
Started start_again(const std::filesystem::path& storage) {
  const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
  while (true) {
    try {
      return start_run(storage, std::make_shared<ry::detail::Files>());
    } catch (const ry::detail::RunInUse&) {
      if (deadline.expired()) throw;
    }
  }
}

// Leaves a run with two checkpoints and three reports, in which a program has died.
void leave_run(const std::filesystem::path& storage) {
  const auto run = ry::detail::make_run_directory("run", storage).path;
  const ry::detail::RunLease lease{run};
  const auto record = ry::detail::JsonObject{}.add("backend", "b").add("scaling", "s").add("world_size", 2);
  REQUIRE(ry::detail::write_object(run / "run.json", ry::detail::JsonObject{record}.add("seed", 1), false).empty());
  std::ofstream metrics{run / "metrics.jsonl"};
  for (int report = 0; report < 3; ++report) metrics << "{\"report\": " << report << ", \"loss\": 0.5}\n";
  std::ofstream{run / "events.jsonl"} << "{\"event\": \"checkpoint\", \"path\": \"checkpoint-000002\"}\n";
  std::ofstream{run / "result.json.77"} << "half";
  ry::CheckpointFolder folder{run / "checkpoints", lease.generation()};
  for (const std::uint64_t step : {1U, 2U}) {
    folder.commit({.step = step}, rt::small_contribution(static_cast<float>(step)).parts());
  }
  std::filesystem::create_directory(run / "checkpoints" / ".staging-0-x");
}

struct FailedStart {
  int num_calls = 0;
  std::string failed{};   // the call that was made to fail
  std::string message{};  // what was thrown; empty if nothing was
  Started started{};
};

FailedStart start_on(const std::filesystem::path& storage, int number, int error, HowToFail how) {
  const auto files = std::make_shared<rt::FailingFiles>(number, error, how);
  FailedStart outcome;
  try {
    outcome.started = start_run(storage, files);
  } catch (const ry::Error& thrown) {
    outcome.message = thrown.what();
  }
  outcome.num_calls = files->num_calls();
  outcome.failed = files->failed();
  return outcome;
}

}  // namespace

TEST_CASE("Start: any one call that fails while a run is gone on with loses nothing, and is told (FAULTS F6)") {
  for (const int error : {EIO, ENOSPC, EROFS, EDQUOT, ESTALE}) {
    for (const HowToFail how : {HowToFail::fails, HowToFail::fails_for_good}) {
      if (how == HowToFail::fails_for_good && error != EIO) continue;
      bool has_failed = true;
      for (int number = 0; has_failed; ++number) {
        const rt::Scratch scratch;
        leave_run(scratch.path());
        const FailedStart outcome = start_on(scratch.path(), number, error, how);
        has_failed = !outcome.failed.empty();
        INFO(outcome.failed << ", call " << number << ", " << std::generic_category().message(error) << ": "
                            << outcome.message);
        if (outcome.message.empty()) {
          CHECK_FALSE(outcome.started.begins_anew);
          CHECK(outcome.started.num_reports == 3);
          if (outcome.started.step != 2) CHECK_FALSE(outcome.started.problems.empty());
        } else {
          CHECK_THAT(outcome.message, ContainsSubstring(scratch.path().string()));
        }
        const Started next = start_again(scratch.path());
        CHECK_FALSE(next.begins_anew);
        CHECK(next.step == 2);
        CHECK(next.num_reports == 3);
      }
    }
  }
}

TEST_CASE("Start: a call that a signal has interrupted is made again") {
  bool has_failed = true;
  int number = 0;
  for (; has_failed; ++number) {
    const rt::Scratch scratch;
    leave_run(scratch.path());
    const FailedStart outcome = start_on(scratch.path(), number, EINTR, HowToFail::fails);
    has_failed = !outcome.failed.empty();
    INFO(outcome.failed << ", call " << number << ": " << outcome.message);
    CHECK(outcome.message.empty());
    CHECK(outcome.started.step == 2);
    CHECK(outcome.started.num_reports == 3);
    CHECK(outcome.started.problems.empty());
  }
  CHECK(number > 80);
}

TEST_CASE("Start: where a new run cannot be made, that is told with the reason, and keeps no later start from it") {
  for (const int error : {EIO, ENOSPC, EROFS, EDQUOT, EINTR}) {
    bool has_failed = true;
    for (int number = 0; has_failed; ++number) {
      const rt::Scratch scratch;
      const FailedStart outcome = start_on(scratch.path() / "x" / "y", number, error, HowToFail::fails);
      has_failed = !outcome.failed.empty();
      INFO(outcome.failed << ", call " << number << ", " << std::generic_category().message(error) << ": "
                          << outcome.message);
      if (outcome.message.empty()) {
        CHECK(outcome.started.begins_anew);
      } else {
        CHECK(error != EINTR);
        CHECK_THAT(outcome.message, ContainsSubstring(scratch.path().string()) &&
                                        ContainsSubstring(std::generic_category().message(error)));
      }
      CHECK(start_again(scratch.path() / "x" / "y").begins_anew);
    }
  }
}

TEST_CASE("Start: where a new run cannot be had, nothing of its directory is left") {
  for (const int error : {EIO, ENOSPC, EROFS, EDQUOT}) {
    bool has_failed = true;
    for (int number = 0; has_failed; ++number) {
      const rt::Scratch scratch;
      const auto files = std::make_shared<rt::FailingFiles>(number, error);
      std::string message;
      try {
        const ry::detail::RunPlace place = ry::detail::make_run_directory("run", scratch.path(), files);
        const ry::detail::RunLease lease = ry::detail::take_lease(place, files);
        CHECK(place.is_new);
        CHECK(lease.generation() == 1);
      } catch (const ry::ConfigError& thrown) {
        message = thrown.what();
      }
      has_failed = !files->failed().empty();
      INFO(files->failed() << ", call " << number << ": " << message);
      if (message.empty()) continue;
      CHECK_THAT(message, ContainsSubstring("RunConfig::storage_path") &&
                              ContainsSubstring(std::generic_category().message(error)));
      CHECK(std::filesystem::is_empty(scratch.path()));
    }
  }
}

TEST_CASE("Start: kill -9 before and after every call of one loses nothing, and keeps no later start from it") {
  for (const bool has_run : {true, false}) {
    for (const HowToFail how : {HowToFail::dies_before, HowToFail::dies_after}) {
      bool is_killed = true;
      for (int number = 0; is_killed; ++number) {
        const rt::Scratch scratch;
        if (has_run) leave_run(scratch.path());
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
          const FailedStart outcome = start_on(scratch.path(), number, 0, how);
          ::_exit(outcome.message.empty() ? 0 : 1);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        is_killed = WIFSIGNALED(status);
        INFO("call " << number << ", status " << status);
        CHECK((is_killed || status == 0));
        const Started next = start_again(scratch.path());
        CHECK(next.begins_anew == !has_run);
        if (has_run) CHECK(next.step == 2);
        if (has_run) CHECK(next.num_reports == 3);
      }
    }
  }
}
