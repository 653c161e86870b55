// SPDX-License-Identifier: MIT
#include "railyard/train/run_config.hpp"

#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/workers/threads.hpp"

#include <atomic>
#include <filesystem>
#include <string>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

void refused(const ry::ScalingConfig& scaling, ry::RunConfig run, const std::string& field, const std::string& remedy) {
  const Scratch scratch;
  if (run.storage_path == "runs") run.storage_path = scratch.path() / "runs";
  bool was_called = false;
  ry::Trainer<ry::Local, ry::Threads> trainer{[&](ry::Worker&) { was_called = true; }, scaling, run};
  CHECK_THROWS_AS(trainer.fit(), ry::ConfigError);
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring(field) && ContainsSubstring(remedy));
  CHECK_FALSE(was_called);
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "runs"));
}

}  // namespace

TEST_CASE("fit: refuses a number of workers below one") {
  refused({.num_workers = 0}, {}, "ScalingConfig::num_workers is 0", "at least one");
  refused({.num_workers = -3}, {}, "ScalingConfig::num_workers is -3", "at least one");
}

static_assert(!std::is_convertible_v<double, ry::WorkerCount> && !std::is_constructible_v<ry::WorkerCount, float>);
static_assert(std::is_convertible_v<int, ry::WorkerCount>);

TEST_CASE("fit: refuses a number of workers that no machine bears") {
  refused({.num_workers = 16385}, {}, "ScalingConfig::num_workers is 16385", "16384");
}

TEST_CASE("fit: refuses times that are not positive, by field") {
  refused({}, {.setup_timeout = -1s}, "RunConfig::setup_timeout is negative", "as long as collective_timeout");
  refused({}, {.collective_timeout = 0s}, "RunConfig::collective_timeout is 0 s", "longer than nothing");
  refused({}, {.start_timeout = -1s}, "RunConfig::start_timeout is -1 s", "longer than nothing");
  refused({}, {.stop_grace = 0s}, "RunConfig::stop_grace", "longer than nothing");
  refused({}, {.silence_limit = -1ns}, "RunConfig::silence_limit", "longer than nothing");
}

TEST_CASE("fit: refuses a name that is no name, and storage that takes nothing") {
  refused({}, {.name = "a/b"}, "RunConfig::name is \"a/b\"", "storage_path");
  refused({}, {.storage_path = "/proc/nothing"}, "RunConfig::storage_path is \"/proc/nothing\"", "choose a folder");
}

TEST_CASE("fit: refuses paths with a NUL byte, of which the system would see a part") {
  using namespace std::string_literals;
  refused({}, {.storage_path = "/tmp/a\0b"s}, "RunConfig::storage_path is \"/tmp/a\"", "NUL byte");
  refused({}, {.preemption = {.file = "/tmp/a\0b"s}}, "RunConfig::preemption.file is \"/tmp/a\"", "NUL byte");
}

TEST_CASE("fit: leaves no directory behind when nothing can be written there") {
  const Scratch scratch;
  ry::Trainer<ry::Local, ry::Threads> trainer{[](ry::Worker&) {}, {}, {.name = "a", .storage_path = scratch.path()}};
  {
    const FileSizeLimit limit{10};
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("RunConfig::storage_path") && ContainsSubstring("lease.json"));
  }
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "a"));
}

TEST_CASE("fit: leaves no directory behind, and starts nothing, when run.json cannot be written there") {
  const Scratch scratch;
  std::atomic<int> num_calls = 0;
  ry::Trainer<ry::Local, ry::Threads> trainer{
      [&num_calls](ry::Worker&) { ++num_calls; },
      {},
      {.name = "a", .storage_path = scratch.path(), .preemption = {.file = std::string(2000, 'x')}}};
  {
    const FileSizeLimit limit{1024};  // which the lease has
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("RunConfig::storage_path") && ContainsSubstring("run.json"));
  }
  CHECK(num_calls == 0);
  CHECK(std::filesystem::is_empty(scratch.path()));
}

TEST_CASE("fit: makes no folder that a new run does not need") {
  const Scratch scratch;
  ry::Trainer<ry::Local, ry::Threads> trainer{
      [](ry::Worker&) {}, {}, {.name = "a", .storage_path = scratch.path(), .progress = ry::Progress::quiet}};
  REQUIRE(trainer.fit());
  for (const auto& entry : std::filesystem::directory_iterator{scratch.path() / "a"}) {
    INFO(entry.path());
    CHECK_FALSE(entry.is_directory());
  }
}

TEST_CASE("fit: refuses a second run of the same name if told so, and leaves the first alone") {
  const Scratch scratch;
  ry::Trainer<ry::Local, ry::Threads> trainer{
      [](ry::Worker& worker) {
        worker.report({{"a", 1}});
      },
      {},
      {.name = "again", .storage_path = scratch.path(), .resume = ry::Resume::never, .progress = ry::Progress::quiet}};
  REQUIRE(trainer.fit());
  const std::string before = read_text(scratch.path() / "again" / "metrics.jsonl");
  CHECK_THROWS_WITH(trainer.fit(),
                    ContainsSubstring("RunConfig::name is \"again\"") && ContainsSubstring("exists already"));
  CHECK(read_text(scratch.path() / "again" / "metrics.jsonl") == before);
}

TEST_CASE("fit: times without end are taken as such") {
  const Scratch scratch;
  constexpr auto forever = std::chrono::nanoseconds::max();
  ry::Trainer<ry::Local, ry::Threads> trainer{[](ry::Worker&) {},
                                              {},
                                              {.storage_path = scratch.path(),
                                               .progress = ry::Progress::quiet,
                                               .start_timeout = forever,
                                               .stop_grace = forever}};
  CHECK(trainer.fit().error() == "");
}

TEST_CASE("run.json: holds the settings of the run") {
  const Scratch scratch;
  ry::Trainer<ry::Local, ry::Threads> trainer{
      [](ry::Worker&) {},
      {.num_workers = 2},
      {.name = "n", .storage_path = scratch.path(), .seed = 7, .progress = ry::Progress::quiet, .stop_grace = 1500ms}};
  REQUIRE(trainer.fit());
  const std::string json = read_text(scratch.path() / "n" / "run.json");
  CHECK_THAT(json, ContainsSubstring("\"name\": \"n\"") &&
                       ContainsSubstring("\"backend\": \"" + std::string{ry::Local::name} + "\"") &&
                       ContainsSubstring("\"world_size\": 2") && ContainsSubstring("\"seed\": 7") &&
                       ContainsSubstring("\"stop_grace_seconds\": 1.5") &&
                       ContainsSubstring(std::string{"\"railyard_version\": \""} + ry::version));
  CHECK_THAT(json, ContainsSubstring("\"started_at\": \"20"));
}
