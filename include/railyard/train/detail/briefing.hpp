// SPDX-License-Identifier: MIT
// What a supervisor tells the workers of a start. Train room.
#pragma once

#include "railyard/train/detail/wire.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which attempt of the run begins, and where it goes on.
struct Briefing {
  std::int32_t attempt = 0;
  std::string checkpoint{};  ///< its directory; empty to begin at the beginning
};

[[nodiscard]] inline std::string encode_briefing(const Briefing& briefing) {
  WireWriter writer;
  writer.put(briefing.attempt);
  writer.put_text(briefing.checkpoint);
  return {reinterpret_cast<const char*>(writer.bytes().data()), writer.bytes().size()};
}

[[nodiscard]] inline Briefing decode_briefing(std::string_view text) {
  WireReader reader{std::as_bytes(std::span{text})};
  Briefing briefing;
  briefing.attempt = reader.take<std::int32_t>();
  briefing.checkpoint = reader.take_text();
  return briefing;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
