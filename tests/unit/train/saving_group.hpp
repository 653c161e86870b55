// SPDX-License-Identifier: MIT
// Two processes whose workers save a few times, and what is in the checkpoints of that.
#pragma once

#include "railyard/train/detail/wire.hpp"

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/core/scaling.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"
#include "unit/workers/followed_group.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace saving {

namespace ry = railyard;
using workers_test::FollowedGroup;
using workers_test::soon;

constexpr std::size_t part_bytes = 10'000'000;  // of each rank: more than is read at once, in a thousand messages
constexpr int num_saves = 2;

inline std::string name_of(int rank) { return fmt::format("part.rank-{}.safetensors", rank); }
inline std::string text_of(int rank, std::uint64_t step) {
  std::string pattern;
  for (unsigned at = 0; at < 251; ++at)
    pattern += static_cast<char>((at + 11U * static_cast<unsigned>(rank) + step) % 251);
  std::string text;
  while (text.size() < part_bytes) text += pattern;
  text.resize(part_bytes);
  return text;
}

// What each worker runs: saves a few times, and ends.
inline void save(ry::WorkerLink& link, int process) {
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

inline void check_whole(const ry::Checkpoint& checkpoint) {
  checkpoint.verify();
  for (const int rank : {0, 1}) {
    CHECK((read_text(checkpoint.path() / name_of(rank)) == text_of(rank, checkpoint.manifest().step)));
  }
}

}  // namespace saving
