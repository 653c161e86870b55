// SPDX-License-Identifier: MIT
// Runs that go on although some of their files are lost or damaged.
#include "railyard/train/detail/run_record.hpp"

#include "support/catch.hpp"
#include "unit/train/toy_training.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using namespace toy;  // its names stand in nearly every line

namespace {

// Fails in a step, with a checkpoint behind it.
ry::Result half_way(const Scratch& scratch, const std::string& name, std::uint64_t seed = 0) {
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 22) throw std::runtime_error{"a test"};
  };
  return run<SharedThreads>(scratch, fail, {.name = name, .seed = seed});
}

bool warns_of(const ry::Result& result, const std::string& text) {
  const auto& all = result.warnings();
  return std::any_of(all.begin(), all.end(), [&text](auto& one) { return one.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("Record of a run: a damaged line of metrics costs that line alone, and is told of") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never);
  const auto path = half_way(scratch, "run").path() / "metrics.jsonl";
  auto lines = read_lines(path);
  REQUIRE(lines.size() == 4);
  lines[1][3] = '\x01';
  {
    std::ofstream file{path};
    for (const std::string& line : lines) file << line << '\n';
  }
  const ry::Result result = run<SharedThreads>(scratch, never, {.name = "run"});
  REQUIRE(result);
  REQUIRE(result.history().size() == num_epochs - 1);
  CHECK(result.history()[1] == whole.history()[2]);
  CHECK(result.metrics() == whole.metrics());
  CHECK(warns_of(result, "1 line(s) of " + path.string() + " are damaged and left out, the first one is line 2"));
  CHECK(read_lines(path).size() == num_epochs);
  CHECK(warns_of(run<SharedThreads>(scratch, never, {.name = "run"}), "left out, the first one is line 2"));
}

TEST_CASE("Record of a run: one whose checkpoints are gone does not begin anew unless that is accepted") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never);
  const auto path = half_way(scratch, "run").path();
  std::filesystem::rename(path / "checkpoints", scratch.path() / "kept");
  CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "run"}),
                    ContainsSubstring("checkpoint-000004") && ContainsSubstring("none is there any more") &&
                        ContainsSubstring("put checkpoints/ back") &&
                        ContainsSubstring(".accept_changes = {\"checkpoints\"}"));
  const auto once = [](auto&, std::uint64_t step) {
    if (step == 2) throw std::runtime_error{"a test"};
  };
  const ry::Result begun = run<SharedThreads>(scratch, once, {.name = "run", .accept_changes = {"checkpoints"}});
  CHECK(begun.attempts().front().begin_step == 0);
  CHECK(warns_of(begun, "the run begins at the beginning"));
  const ry::Result result = run<SharedThreads>(scratch, never, {.name = "run"});  // none was written since
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  std::filesystem::remove_all(path / "checkpoints");
  const ry::Result recorded = run<SharedThreads>(scratch, never, {.name = "run"});
  CHECK(recorded.is_recorded());
  CHECK(warns_of(recorded, "none is there any more"));
}

TEST_CASE("Record of a run: one whose checkpoints go while it trains goes on from memory, and says what it lacks") {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.attempt() > 0 || step != 12 || worker.rank() != 0) return;
    std::filesystem::remove_all(worker.run_path() / "checkpoints");
    throw std::runtime_error{"a test"};
  };
  const ry::Result result = run<SharedThreads>(
      scratch, fail,
      {.name = "run", .checkpoint = {.synchronous = true}, .failure = {.max_failures = 1, .memory_percent = 0}});
  REQUIRE(result);
  CHECK(result.attempts().size() == 2);
  CHECK(result.attempts().at(1).begin_step == 10);
  CHECK(result.failed_checkpoints() > 0);
}

TEST_CASE("Record of a run: what run.json has said is in the checkpoints, where it is lost or damaged") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never, {.seed = 7});
  for (const char* content : {"", "{\"name\": \"", "-"}) {
    const std::string name = "run" + std::to_string(std::string{content}.size());
    const auto file = half_way(scratch, name, 7).path() / "run.json";
    std::filesystem::remove(file);
    if (content[0] != '-') std::ofstream{file} << content;
    CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = name, .seed = 8}),
                      ContainsSubstring("was started with 7"));
    const ry::Result result = run<SharedThreads>(scratch, never, {.name = name, .seed = 7});
    REQUIRE(result);
    CHECK(result.attempts().front().begin_step == 20);
    CHECK(result.history() == whole.history());
    CHECK(ry::detail::read_run_record(file.parent_path()).seed == std::uint64_t{7});
  }
}

TEST_CASE("Record of a run: settings that are others than at its start are told, with both values, and no others") {
  const Scratch scratch;
  const auto go_on = [&scratch](std::uint64_t last, ry::RunConfig config, int num_workers = 2) {
    config.name = "run";
    const auto fail = [last](auto&, std::uint64_t step) {
      if (step == last) throw std::runtime_error{"a test"};
    };
    return run<SharedThreads>(scratch, fail, std::move(config), num_workers);
  };
  const ry::RunConfig first{.failure = {.memory_percent = 0.5}};
  const std::string words = "goes on with other settings than it was started with: ";
  CHECK_FALSE(warns_of(go_on(7, first), words));
  CHECK_FALSE(warns_of(go_on(12, first), words));
  CHECK(warns_of(go_on(17, {.checkpoint = {.keep = 3, .score = "sum"},
                            .failure = {.memory_percent = 0.5},
                            .stop_grace = std::chrono::milliseconds{2500}}),
                 words + "checkpoint_keep 3 instead of 0, checkpoint_score sum instead of none, stop_grace_seconds 2.5 "
                         "instead of 30"));
  CHECK(warns_of(go_on(22, {}), words + "memory_percent 1 instead of 0.5"));
  const ry::Result fewer = go_on(27, first, 1);
  CHECK_FALSE(warns_of(fewer, words));
  CHECK(warns_of(fewer, "was started with a world size of 2 and goes on with 1"));
}

TEST_CASE("Record of a run: without run.json and checkpoints it does not begin anew, unless that is accepted by name") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never);
  const auto path = half_way(scratch, "run").path();
  std::filesystem::remove_all(path / "checkpoints");
  const auto check_refused = [&](const std::string& left) {
    CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "run"}),
                      ContainsSubstring("has lost its run.json and its checkpoints") && ContainsSubstring(left) &&
                          ContainsSubstring("from a copy") &&
                          ContainsSubstring(".accept_changes = {\"checkpoints\"}") &&
                          ContainsSubstring("another RunConfig::name"));
  };
  std::ofstream{path / "run.json"} << "";  // by no power cut: the first checkpoint makes it durable
  check_refused("events.jsonl");
  std::filesystem::remove(path / "run.json");
  check_refused("metrics.jsonl");
  for (const char* name : {"metrics.jsonl", "events.jsonl", "result.json"}) std::filesystem::remove(path / name);
  std::filesystem::create_directory(path / "logs");
  std::ofstream{path / "logs" / "rank-1.log"} << "what it has printed\n";
  check_refused("logs/rank-1.log");
  const ry::Result result = run<SharedThreads>(scratch, never, {.name = "run", .accept_changes = {"checkpoints"}});
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  CHECK(result.attempts().front().begin_step == 0);
}

TEST_CASE("Record of a run: what another program has left under such names is no run, and stays as it is") {
  const Scratch scratch;
  const auto path = scratch.path() / "run";
  std::filesystem::create_directories(path / "logs");
  std::ofstream{path / "metrics.jsonl"} << "{\"loss\": 1}\n";
  for (const auto& accepted : {std::vector<std::string>{}, std::vector<std::string>{"checkpoints"}}) {
    CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "run", .accept_changes = accepted}),
                      ContainsSubstring("is no run's directory"));
  }
  CHECK(names_in(path) == std::vector<std::string>{"logs", "metrics.jsonl"});
}

TEST_CASE("Record of a run: a run whose last state could not be saved says so, and the next start makes up for it") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never);
  const auto kept = scratch.path() / "kept";
  const auto block = [&kept](auto& worker, std::uint64_t step) {
    if (step != 23 || worker.rank() != 0) return;
    std::filesystem::rename(worker.run_path() / "checkpoints", kept);
    std::ofstream{worker.run_path() / "checkpoints"} << "in the way";
  };
  const ry::Result result = run<SharedThreads>(scratch, block, {.name = "run", .checkpoint = {.synchronous = true}});
  REQUIRE(result);
  CHECK(result.failed_checkpoints() == 2);
  CHECK_FALSE(result.is_state_saved());
  CHECK(warns_of(result, "make room, and a run of the same name goes on from the newest checkpoint that can be read"));
  CHECK_THAT(read_text(result.path() / "result.json"), ContainsSubstring("\"state_saved\": false"));
  std::filesystem::remove(result.path() / "checkpoints");
  std::filesystem::rename(kept, result.path() / "checkpoints");
  const ry::Result second = run<SharedThreads>(scratch, never, {.name = "run"});
  REQUIRE(second);
  CHECK_FALSE(second.is_recorded());
  CHECK(second.is_state_saved());
  CHECK(second.attempts().front().begin_step == 20);
  CHECK(second.history() == whole.history());
  CHECK(run<SharedThreads>(scratch, never, {.name = "run"}).is_recorded());
}
