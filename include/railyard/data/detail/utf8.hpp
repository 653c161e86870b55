// SPDX-License-Identifier: MIT
// Finds what is not UTF-8 in text. Data room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

// Returns how many bytes the character has that begins there, or 0 if there is none (Unicode, table 3-7).
[[nodiscard]] inline std::size_t utf8_length(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t offset) -> unsigned {
    return at + offset < text.size() ? static_cast<unsigned char>(text[at + offset]) : 0U;
  };
  const auto continues = [&](std::size_t offset) { return (byte(offset) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool is_short = lead == 0xE0 && byte(1) < 0xA0;
    const bool is_surrogate = lead == 0xED && byte(1) > 0x9F;
    return continues(1) && continues(2) && !is_short && !is_surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool is_short = lead == 0xF0 && byte(1) < 0x90;
    const bool is_beyond = lead == 0xF4 && byte(1) > 0x8F;
    return continues(1) && continues(2) && continues(3) && !is_short && !is_beyond ? 4 : 0;
  }
  return 0;
}

/// Returns where the first byte is, at or after `from`, that is no part of UTF-8 text; the size if there is none.
[[nodiscard]] inline std::size_t find_invalid_utf8(std::string_view text, std::size_t from = 0) noexcept {
  std::size_t at = from;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

/// Text from a file as a message shows it: no control characters, and no more than the eye takes in.
[[nodiscard]] inline std::string shown_text(std::string_view text) {
  constexpr std::size_t most = 60;
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (std::size_t at = 0; at < text.size() && at < most;) {
    const std::size_t length = utf8_length(text, at);
    const auto code = static_cast<unsigned char>(text[at]);
    if (length == 0 || code < 0x20 || code == 0x7F) {
      out += "\\x";
      out += {digits[code / 16], digits[code % 16]};
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return text.size() > most ? out + "... (" + std::to_string(text.size()) + " bytes)" : out;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
