// SPDX-License-Identifier: MIT
// Checkpoints of two processes: what becomes of the part of the one that follows.
#include "railyard/train/detail/run_checkpoints.hpp"

#include "support/catch.hpp"
#include "unit/train/bare_run.hpp"
#include "unit/workers/followed_group.hpp"

#include <chrono>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;
using namespace std::chrono_literals;
using workers_test::FollowedGroup;
using workers_test::soon;

namespace {

constexpr std::size_t part_bytes = 10'000'000;  // of each rank: more than is read at once, in a thousand messages
constexpr int num_saves = 2;

std::string name_of(int rank) { return fmt::format("part.rank-{}.safetensors", rank); }
std::string text_of(int rank, std::uint64_t step) {
  std::string text(part_bytes, 'x');
  for (std::size_t at = 0; at < text.size(); ++at) {
    text[at] = static_cast<char>((at + 11 * static_cast<std::size_t>(rank) + step) % 251);
  }
  return text;
}

// What each worker runs: saves a few times, and ends.
void save(ry::WorkerLink& link, int process) {
  for (std::uint64_t step = 1; step <= num_saves; ++step) {
    const auto snapshot = link.take_snapshot(part_bytes, ry::SnapshotKind::checkpoint);
    const std::string text = text_of(process, step);
    std::memcpy(snapshot.bytes.data(), text.data(), text.size());
    link.post(ry::detail::encode_saved(
        {.slot = snapshot.slot, .step = step, .files = {{.name = name_of(process), .offset = 0, .size = part_bytes}}}));
  }
}

// Calls take with each rank and what it has saved, until all have saved so often.
template <class Take>
void take_saves(ry::WorkerGroup& group, const Take& take) {
  for (int num_left = 2 * num_saves; num_left > 0;) {
    auto event = group.next(soon());
    if (!event) throw std::runtime_error{"a worker has not saved"};
    const auto* message = std::get_if<ry::MessageEvent>(&*event);
    if (message == nullptr) continue;
    take(message->rank, std::get<ry::detail::SavedMessage>(ry::detail::decode_message(message->bytes)));
    --num_left;
  }
}

void check_whole(const ry::Checkpoint& checkpoint) {
  checkpoint.verify();
  for (const int rank : {0, 1}) {
    CHECK((read_text(checkpoint.path() / name_of(rank)) == text_of(rank, checkpoint.manifest().step)));
  }
}

}  // namespace

TEST_CASE("Launched: a part that is larger than a message goes across processes into a checkpoint") {
  static_assert(part_bytes > FollowedGroup::max_frame_bytes);
  const Scratch scratch;
  FollowedGroup followed{save};
  BareRun run{scratch.path(), 2, followed.group()};
  take_saves(followed.group(),
             [&](int rank, ry::detail::SavedMessage message) { run.checkpoints.add(rank, std::move(message), {}, 0); });
  REQUIRE(run.checkpoints.drain(soon()));
  run.checkpoints.note_outcomes(run.log, false);
  CHECK(run.log.all_warnings().empty());
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
