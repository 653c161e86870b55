// SPDX-License-Identifier: MIT
// What a supervisor tells the workers of a start. Train room.
#pragma once

#include "railyard/train/result.hpp"

#include "railyard/core/detail/wire.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which attempt of the run begins, and where it goes on.
struct Briefing {
  std::int32_t attempt = 0;
  std::string checkpoint{};  ///< its directory; empty to begin at the beginning, or with a snapshot
  /// The snapshot of each rank of the start before, if workers go on from memory.
  std::vector<std::uint8_t> slots{};
};

/// Whether the attempt that began so has gone on from memory, and ended no step: what it takes to have the state there
/// once more may be what it lacked, and a checkpoint is read without.
[[nodiscard]] inline bool has_memory_failed(const Briefing& briefing, const Attempt& attempt) noexcept {
  return !briefing.slots.empty() && attempt.end_step == attempt.begin_step;
}

[[nodiscard]] inline std::string encode_briefing(const Briefing& briefing) {
  WireWriter writer;
  writer.put(briefing.attempt);
  writer.put_text(briefing.checkpoint);
  writer.put(static_cast<std::uint32_t>(briefing.slots.size()));
  for (const std::uint8_t slot : briefing.slots) writer.put(slot);
  return writer.text();
}

[[nodiscard]] inline Briefing decode_briefing(std::string_view text) {
  WireReader reader{text};
  Briefing briefing;
  briefing.attempt = reader.take<std::int32_t>();
  briefing.checkpoint = reader.take_text();
  const auto num_slots = reader.take<std::uint32_t>();
  for (std::uint32_t i = 0; i < num_slots; ++i) briefing.slots.push_back(reader.take<std::uint8_t>());
  return briefing;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
