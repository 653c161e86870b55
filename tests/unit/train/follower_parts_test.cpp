// SPDX-License-Identifier: MIT
// Checkpoints of two processes, of which the one that follows writes its own part: real processes, killed on the way.
#include "railyard/train/detail/follower_parts.hpp"

#include "support/catch.hpp"
#include "support/failing_files.hpp"
#include "unit/train/bare_run.hpp"
#include "unit/train/saving_group.hpp"

#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
namespace fs = std::filesystem;
using namespace saving;
using namespace std::chrono_literals;
using railyard_test::FailingFiles;
using ry::detail::FollowerParts;
using ry::detail::part_writer;
using workers_test::SharedStuck;

namespace {

// Notes in a folder, by the names of files, what a process has written, and how often it has looked for a directory.
class NotingFiles final : public ry::detail::Files {
 public:
  explicit NotingFiles(fs::path notes, bool is_blind = false) : notes_(std::move(notes)), is_blind_(is_blind) {
    fs::create_directories(notes_);
  }
  int create(const Path& path) override {
    std::ofstream{notes_ / path.filename()} << "written";
    return Files::create(path);
  }
  int open_directory(const Path& path) override {
    if (!is_blind_) return Files::open_directory(path);
    if (path.filename().string().starts_with(".staging")) std::ofstream{notes_ / "looks", std::ios::app} << 'x';
    errno = ENOENT;
    return -1;
  }

 private:
  fs::path notes_;
  bool is_blind_;
};

// Makes no file until it is released.
class StuckFiles final : public ry::detail::Files {
 public:
  explicit StuckFiles(const SharedStuck& stuck) : stuck_(&stuck) {}
  int create(const Path& path) override {
    (*stuck_)->hold_up();
    return Files::create(path);
  }

 private:
  const SharedStuck* stuck_;
};

// Has a group save, and returns the run's checkpoints when all are written, each of an attempt of its own if told so.
std::vector<ry::Checkpoint> write_all(BareRun& run, ry::WorkerGroup& group, bool has_attempts = false) {
  std::array<int, 2> num_saved{};
  take_saves(group, [&](int rank, ry::detail::SavedMessage message) {
    const int number = num_saved.at(static_cast<std::size_t>(rank))++;
    run.checkpoints.add(rank, std::move(message), {}, has_attempts ? number : 0);
  });
  REQUIRE(run.checkpoints.drain(soon()));
  run.checkpoints.note_outcomes(run.log, false);
  auto all = run.checkpoints.folder().list();
  CHECK(all.size() == num_saves);
  for (const ry::Checkpoint& checkpoint : all) check_whole(checkpoint);
  return all;
}

// A group whose workers have saved, and a folder with one checkpoint of it.
struct SavedGroup {
  explicit SavedGroup(const ry::RequestHandler& on_request = part_writer(), std::chrono::nanoseconds answer_limit = {})
      : followed{save, on_request, 5s, answer_limit} {
    take_saves(followed.group(), [&](int rank, ry::detail::SavedMessage message) {
      followed.group().hold_snapshot(rank, message.slot);
      slots.at(static_cast<std::size_t>(rank)).push_back(message.slot);
    });
    commit_alone();
  }

  void commit_alone() {
    std::vector<ry::CheckpointFolder::Part> parts;
    for (const ry::detail::SavedPart& part : parts_of(0)) parts.push_back({part.name, reader(part)});
    folder.commit({.world_size = 2, .step = 1}, parts);
  }
  // Commits the second save, of which the other process writes its part. Returns what that has complained of.
  std::vector<std::string> commit() {
    const auto saved = parts_of(1);
    std::vector<ry::CheckpointFolder::Part> parts;
    for (const ry::detail::SavedPart& part : saved) parts.push_back({part.name, reader(part)});
    left_out.begin_checkpoint(0);
    FollowerParts others{followed.group(), scratch.path(), saved, left_out};
    folder.commit({.world_size = 2, .step = 2}, parts, &others);
    return others.complaints();
  }
  // The step of the newest checkpoint, which is whole, as all are; nothing else is there.
  [[nodiscard]] std::uint64_t newest_step() {
    const auto all = folder.list();
    for (const ry::Checkpoint& checkpoint : all) check_whole(checkpoint);
    CHECK(names_in(scratch.path() / "checkpoints").size() == all.size());
    return all.back().manifest().step;
  }

  Scratch scratch{};
  FollowedGroup followed;
  std::array<std::vector<int>, 2> slots{};
  ry::CheckpointFolder folder{scratch.path() / "checkpoints", 4};
  ry::detail::LeftOut left_out{};

 private:
  [[nodiscard]] std::vector<ry::detail::SavedPart> parts_of(std::size_t number) const {
    std::vector<ry::detail::SavedPart> parts;
    for (const int rank : {0, 1}) {
      parts.push_back({.name = name_of(rank),
                       .rank = rank,
                       .slot = slots.at(static_cast<std::size_t>(rank)).at(number),
                       .size = part_bytes});
    }
    return parts;
  }
  [[nodiscard]] ry::PartBytes reader(const ry::detail::SavedPart& part) {
    return {part_bytes, [this, part](std::size_t begin, std::size_t size) {
              return followed.group().snapshot(part.rank, part.slot, begin, size);
            }};
  }
};

}  // namespace

TEST_CASE("Launched: a process that sees the run's directory writes its own part of each checkpoint, and no other") {
  const Scratch scratch;
  const fs::path notes = scratch.path() / "notes";
  FollowedGroup followed{save, part_writer(std::make_shared<NotingFiles>(notes))};
  BareRun run{scratch.path() / "run", 2, followed.group()};
  write_all(run, followed.group());
  CHECK(run.log.all_warnings().empty());
  CHECK(names_in(notes) == std::vector{name_of(1)});
}

TEST_CASE("Launched: a process that does not see the run's directory is asked once an attempt, and its part fetched") {
  const Scratch scratch;
  const fs::path notes = scratch.path() / "notes";
  const bool has_attempts = GENERATE(false, true);
  FollowedGroup followed{save, part_writer(std::make_shared<NotingFiles>(notes, true), 0ns)};
  BareRun run{scratch.path() / "run", 2, followed.group()};
  write_all(run, followed.group(), has_attempts);
  const auto warnings = run.log.all_warnings();
  REQUIRE(warnings.size() == 1);  // once a run
  CHECK_THAT(warnings.front(), ContainsSubstring("the follower does not see " + (scratch.path() / "run").string()) &&
                                   ContainsSubstring("over the network"));
  CHECK(names_in(notes) == std::vector<std::string>{"looks"});
  CHECK(read_text(notes / "looks") == (has_attempts ? "xx" : "x"));
}

TEST_CASE("Launched: where another process cannot write its part, process 0 does, and the Result tells why") {
  const Scratch scratch;
  FollowedGroup followed{save,
                         part_writer(std::make_shared<FailingFiles>(9, ENOSPC, FailingFiles::How::fails_for_good))};
  BareRun run{scratch.path() / "run", 2, followed.group()};
  write_all(run, followed.group());
  const auto warnings = run.log.all_warnings();
  REQUIRE(warnings.size() == 1);  // once an attempt
  CHECK_THAT(warnings.front(), ContainsSubstring("that the follower could not write") &&
                                   ContainsSubstring("No space left on device") && ContainsSubstring(name_of(1)));
}

TEST_CASE("Launched: a process that dies in any call of its writing leaves the old checkpoint and nothing else") {
  // In all there are 16 or 17: three directories opened and closed, the file made, its pieces written and sent on their
  // way, made durable and closed, and its directory likewise.
  using Death = std::pair<int, FailingFiles::How>;
  const auto before = FailingFiles::How::dies_before;
  const auto after = FailingFiles::How::dies_after;
  const auto death = GENERATE_COPY(Death{0, before}, Death{6, after}, Death{9, before}, Death{11, before},
                                   Death{13, before}, Death{15, after});
  SavedGroup saved{part_writer(std::make_shared<FailingFiles>(death.first, 0, death.second))};
  CHECK_THROWS_WITH(saved.commit(), ContainsSubstring("a part of the state was lost: the follower has"));
  CHECK(saved.newest_step() == 1);
}

TEST_CASE("Launched: a process that is lost between its writing and the commit has its part in a whole checkpoint") {
  SavedGroup saved;
  saved.folder.still_mine = [&] {
    saved.followed.kill();
    return true;
  };
  CHECK(saved.commit().empty());
  CHECK(saved.newest_step() == 2);
}

TEST_CASE(
    "Launched: a checkpoint is given up where the storage of another process does not answer, and later ones not") {
  const SharedStuck stuck;
  SavedGroup saved{part_writer(std::make_shared<StuckFiles>(stuck)), 2s};
  CHECK_THROWS_WITH(saved.commit(), ContainsSubstring("the follower does not come to an end of writing its part") &&
                                        ContainsSubstring("checkpoints/.staging") &&
                                        ContainsSubstring("the follower has made no progress for 2 s"));
  CHECK(stuck->has_begun);
  CHECK(saved.newest_step() == 1);
  CHECK(saved.commit().empty());
  CHECK(saved.newest_step() == 2);
  stuck->is_released = true;
  saved.followed.kill();
  CHECK(saved.newest_step() == 2);
}

TEST_CASE("Launched: where the run has been taken over meanwhile, what another process has written is not committed") {
  SavedGroup saved;
  saved.folder.still_mine = [] { return false; };
  CHECK_THROWS_WITH(saved.commit(), ContainsSubstring("another program has taken this run over"));
  CHECK(saved.newest_step() == 1);
}

TEST_CASE("LeftOut: who does not see the directory is asked again with a later checkpoint, others after a restart") {
  ry::detail::LeftOut left_out;
  left_out.begin_checkpoint(0);
  CHECK(left_out.add_blind(1));
  left_out.add_for_attempt(2);
  for (int number = 1; number < ry::detail::LeftOut::retry_interval; ++number) {
    left_out.begin_checkpoint(0);
    CHECK(left_out.contains(1));
  }
  left_out.begin_checkpoint(0);
  CHECK_FALSE(left_out.contains(1));
  CHECK_FALSE(left_out.add_blind(1));  // that is known
  CHECK(left_out.contains(1));
  CHECK(left_out.contains(2));
  CHECK_FALSE(left_out.contains(3));
  left_out.begin_checkpoint(1);
  for (const int process : {1, 2, 3}) CHECK_FALSE(left_out.contains(process));
}

TEST_CASE("part_writer: a straggler whose directory was swept writes nothing, there or anywhere else") {
  const Scratch scratch;
  const fs::path checkpoints = scratch.path() / "checkpoints";
  const fs::path staging = checkpoints / ".staging-4-0123456789abcdef";
  const std::string text = "the bytes of a part";
  const ry::detail::WriteOrder order{.run = scratch.path().string(),
                                     .directory = staging.string(),
                                     .parts = {{.name = "a", .size = text.size()}, {.name = "b", .size = text.size()}}};
  const auto newer = [&] {  // of the next generation, which has begun a checkpoint of its own
    ry::CheckpointFolder{checkpoints, 5}.sweep();
    fs::create_directories(checkpoints / ".staging-5-fedcba9876543210");
  };
  int num_read = 0;
  const auto read = [&](int, int, std::size_t begin, std::size_t size) {
    if (num_read++ == 1) newer();  // the second file is there, and empty
    return std::as_bytes(std::span{text}).subspan(begin, size);
  };
  const auto carry_out = [&] { return part_writer(std::make_shared<ry::detail::Files>(), 0ns)(order.encode(), read); };
  fs::create_directories(staging);
  SECTION("before it begins") {
    newer();
    CHECK_FALSE(ry::detail::WriteAnswer::decode(carry_out()).sees_directory);
    CHECK(num_read == 0);
  }
  SECTION("while it writes") { CHECK_THROWS_AS(carry_out(), ry::Error); }
  CHECK(names_in(checkpoints) == std::vector<std::string>{".staging-5-fedcba9876543210"});
  CHECK(fs::is_empty(checkpoints / ".staging-5-fedcba9876543210"));
}
