// SPDX-License-Identifier: MIT
// Checkpoints of two processes: what becomes of the part of the one that follows.
#include "railyard/train/detail/run_checkpoints.hpp"

#include "support/catch.hpp"
#include "unit/train/bare_run.hpp"
#include "unit/train/saving_group.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace ry = railyard;
using namespace saving;

TEST_CASE("Launched: a part that is larger than a message goes across processes into a checkpoint") {
  static_assert(part_bytes > FollowedGroup::max_frame_bytes);
  const Scratch scratch;
  FollowedGroup followed{save, [](auto, const auto&) { return ry::detail::WriteAnswer{}.encode(); }};  // sees nothing
  BareRun run{scratch.path(), 2, followed.group()};
  take_saves(followed.group(),
             [&](int rank, ry::detail::SavedMessage message) { run.checkpoints.add(rank, std::move(message), {}, 0); });
  REQUIRE(run.checkpoints.drain(soon()));
  run.checkpoints.note_outcomes(run.log, false);
  REQUIRE(run.log.all_warnings().size() == 1);
  CHECK_THAT(run.log.all_warnings().front(), ContainsSubstring("the follower does not see"));
  const auto all = run.checkpoints.folder().list();
  REQUIRE(all.size() == num_saves);
  for (const ry::Checkpoint& checkpoint : all) check_whole(checkpoint);
}

TEST_CASE(
    "Launched: a process that is killed while its part is on its way leaves the old checkpoint and nothing else") {
  const Scratch scratch;
  FollowedGroup followed{save};
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  std::vector<std::vector<ry::detail::SavedMessage>> saves(2);
  take_saves(followed.group(), [&](int rank, ry::detail::SavedMessage message) {
    followed.group().hold_snapshot(rank, message.slot);
    saves.at(static_cast<std::size_t>(rank)).push_back(std::move(message));
  });
  const auto commit = [&](std::size_t number, bool kills) {
    std::vector<ry::CheckpointFolder::Part> parts;
    for (const int rank : {0, 1}) {
      const int slot = saves.at(static_cast<std::size_t>(rank)).at(number).slot;
      parts.push_back({name_of(rank), {part_bytes, [&followed, rank, slot, kills](std::size_t begin, std::size_t size) {
                                         if (kills && rank == 1 && begin > 0) followed.kill();
                                         return followed.group().snapshot(rank, slot, begin, size);
                                       }}});
    }
    folder.commit({.world_size = 2, .step = number + 1}, parts);
  };
  commit(0, false);
  CHECK_THROWS_WITH(commit(1, true), ContainsSubstring("a part of the state was lost: the follower has"));
  REQUIRE(folder.newest());
  CHECK(folder.newest()->manifest().step == 1);
  check_whole(*folder.newest());
  CHECK(std::distance(std::filesystem::directory_iterator{scratch.path() / "checkpoints"}, {}) == 1);
}
