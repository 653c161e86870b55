// SPDX-License-Identifier: MIT
#include "railyard/train/detail/run_checkpoints.hpp"

#include "support/catch.hpp"
#include "unit/train/bare_run.hpp"
#include "unit/train/poor_group.hpp"

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

ry::detail::SavedMessage save_of(int slot, bool is_memory, int rank = 0) {
  const std::string name = rank == 0 ? "state.json" : "state.rank-1.json";
  return {.slot = slot, .step = 4, .is_memory = is_memory, .files = {{.name = name, .offset = 0, .size = 8}}};
}

// Where something is mounted, which nobody can remove.
class StickyFiles : public ry::detail::Files {
 public:
  int remove_directory(const Path& path) override {
    if (path.filename() != "busy") return Files::remove_directory(path);
    errno = EBUSY;
    return -1;
  }
};

}  // namespace

TEST_CASE("RunCheckpoints: a copy that one rank had no memory for counts for nobody") {
  const Scratch scratch;
  PoorGroup group;
  BareRun run{scratch.path(), 2, group};
  for (const int rank : {0, 1}) run.checkpoints.add(rank, save_of(2, true), {}, 0);
  run.checkpoints.add(0, save_of(3, true), {}, 0);
  CHECK(group.held.size() == 3);
  run.checkpoints.add(1, save_of(ry::detail::SavedMessage::no_slot, true), {}, 0);
  CHECK(group.held == std::set<std::pair<int, int>>{{0, 2}, {1, 2}});
  REQUIRE(run.checkpoints.newest_copy().size() == 2);
  CHECK(run.checkpoints.newest_copy()[1].slot == 2);
  run.checkpoints.add(1, save_of(ry::detail::SavedMessage::no_slot, true), {}, 0);
  run.checkpoints.end_attempt();
  CHECK(group.held == std::set<std::pair<int, int>>{{0, 2}, {1, 2}});
}

TEST_CASE(
    "RunCheckpoints: a checkpoint that one rank had no memory for fails, and the parts of the others are given back") {
  const Scratch scratch;
  PoorGroup group;
  BareRun run{scratch.path(), 2, group};
  auto lacking = save_of(ry::detail::SavedMessage::no_slot, false, 1);
  lacking.files.clear();
  lacking.failure = "there is no memory";
  run.checkpoints.add(0, save_of(0, false), {}, 0);
  run.checkpoints.add(1, lacking, {}, 0);
  CHECK(group.held.empty());
  run.checkpoints.note_outcomes(run.log, true);
  REQUIRE(run.log.all_warnings().size() == 1);
  CHECK_THAT(run.log.all_warnings().front(),
             ContainsSubstring("step 4 could not be written: rank 1: there is no memory; training goes on"));
  std::vector<std::string> problems;
  CHECK(run.checkpoints.left(problems).num_failed == 1);
}

TEST_CASE("RunCheckpoints: what cannot be read when it is written is given back and told of, and the run goes on") {
  const Scratch scratch;
  PoorGroup group;
  BareRun run{scratch.path(), 2, group};
  SECTION("a checkpoint") {
    for (const int rank : {0, 1}) run.checkpoints.add(rank, save_of(0, false, rank), {}, 0);
  }
  SECTION("a copy of the state that has to be written at last") {
    for (const int rank : {0, 1}) run.checkpoints.add(rank, save_of(2, true, rank), {}, 0);
    REQUIRE(group.held.size() == 2);
    run.checkpoints.write_newest_copy(0);
    CHECK(run.checkpoints.newest_copy().empty());
  }
  CHECK(run.checkpoints.drain(ry::Deadline::after(std::chrono::seconds{30})));
  CHECK(group.held.empty());
  CHECK(run.checkpoints.newest_in_memory().empty());
  run.checkpoints.note_outcomes(run.log, false);
  REQUIRE(run.log.all_warnings().size() == 1);
  CHECK_THAT(run.log.all_warnings().front(), ContainsSubstring("step 4 could not be written: a snapshot does not fit"));
  CHECK_THAT(run.log.all_warnings().front(), !ContainsSubstring("training goes on"));
  std::vector<std::string> problems;
  CHECK(run.checkpoints.left(problems).num_failed == 1);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], ContainsSubstring("what the run was to save last is not saved"));
}

TEST_CASE("RunCheckpoints: one that is still being written when the next attempt begins is no progress of that") {
  const Scratch scratch;
  PoorGroup group;
  BareRun run{scratch.path(), 1, group};
  for (const int attempt : {0, 1}) {
    run.checkpoints.add(0, save_of(0, false), {}, attempt);
    if (attempt == 0) run.checkpoints.begin_attempt(1, 1);
    REQUIRE(run.checkpoints.drain(ry::Deadline::after(std::chrono::seconds{30})));
    run.checkpoints.note_outcomes(run.log, true);
    CHECK(run.checkpoints.num_of_attempt() == attempt);
    CHECK(run.checkpoints.num_written() == attempt + 1);
  }
}

TEST_CASE("RunCheckpoints: where all are gone, and none is in memory, a run does not begin anew") {
  const Scratch scratch;
  PoorGroup group;
  BareRun run{scratch.path(), 1, group};
  run.checkpoints.add(0, save_of(0, false), {}, 0);
  REQUIRE(run.checkpoints.drain(ry::Deadline::after(std::chrono::seconds{30})));
  run.checkpoints.note_outcomes(run.log, true);
  CHECK(run.checkpoints.newest_in_memory().empty());  // this group keeps nothing
  std::filesystem::remove_all(scratch.path() / "checkpoints");
  CHECK_THROWS_WITH(run.checkpoints.go_back(false), ContainsSubstring("all that were there are gone"));
}

TEST_CASE("RunCheckpoints: the newest of a run is one that is whole, also if this program has written none") {
  const Scratch scratch;
  std::ofstream{scratch.path() / "run.json"} << "{}";
  std::vector<std::filesystem::path> paths;
  {
    const ry::detail::RunLease lease{scratch.path()};
    ry::CheckpointFolder former{scratch.path() / "checkpoints", lease.generation()};
    const std::array<std::byte, 8> bytes{};
    const std::array parts{ry::CheckpointFolder::Part{"state.json", bytes}};
    for (int i = 0; i < 2; ++i) paths.push_back(former.commit({.world_size = 1}, parts));
  }
  std::ofstream{paths.back() / "state.json"} << "damaged!";
  PoorGroup group;
  BareRun run{scratch.path(), 1, group};
  std::vector<std::string> problems;
  const auto left = run.checkpoints.left(problems);
  REQUIRE(left.newest);
  CHECK(left.newest->path() == paths.front());
}

TEST_CASE("RunCheckpoints: what a lost process has left of a checkpoint is gone at the end, or at the next start") {
  const Scratch scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  const auto lost = checkpoints / ".staging-1-0123456789abcdef";
  PoorGroup group;
  const auto write_late = [&] {
    std::filesystem::create_directories(lost);
    std::ofstream{lost / "state.rank-1.json"} << "late";
  };
  {
    BareRun run{scratch.path(), 1, group};
    REQUIRE(run.lease.generation() == 1);
    run.checkpoints.add(0, save_of(0, false), {}, 0);
    REQUIRE(run.checkpoints.drain(ry::Deadline::after(std::chrono::seconds{30})));
    write_late();
    std::vector<std::string> problems;
    CHECK(run.checkpoints.left(problems).newest);
    CHECK(problems.empty());
    CHECK_FALSE(std::filesystem::exists(lost));
    CHECK(run.log.all_warnings().empty());
  }
  write_late();
  const ry::detail::RunLease next{scratch.path()};
  std::vector<std::string> problems;
  CHECK(ry::detail::find_checkpoint(scratch.path(), next, {}, "", problems));
  CHECK(problems.empty());
  CHECK_FALSE(std::filesystem::exists(lost));
}

TEST_CASE("RunCheckpoints: a run starts although something that was left cannot be removed, which is told of") {
  const Scratch scratch;
  const auto lost = scratch.path() / "checkpoints" / ".staging-0-0123456789abcdef";
  std::filesystem::create_directories(lost / "busy");
  const ry::detail::RunLease lease{scratch.path()};
  std::vector<std::string> problems;
  const auto files = std::make_shared<StickyFiles>();
  CHECK_FALSE(ry::detail::find_checkpoint(scratch.path(), lease, {}, "", problems, files));
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Catch::ContainsSubstring("cannot be removed: ") && Catch::ContainsSubstring("busy"));
  CHECK_FALSE(std::filesystem::exists(lost));
}
