// SPDX-License-Identifier: MIT
// Text as JSON has it. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the length of the UTF-8 sequence at the start of text, or 0 if there is none that is valid.
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  std::size_t length = 0;
  unsigned low = 0x80;  // bounds of the second byte: they exclude overlong forms, surrogates and what Unicode lacks
  unsigned high = 0xBF;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  if (first >= 0xE0 && first <= 0xEF) length = 3;
  if (first >= 0xF0 && first <= 0xF4) length = 4;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (length == 0 || text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

/// Appends the character of a code point, which is no half of a surrogate pair, as UTF-8.
inline void append_utf8(std::string& text, std::uint32_t code) {
  const auto add = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto add_six_bits = [&](unsigned shift) { add(0x80U | ((code >> shift) & 0x3FU)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0U | (code >> 6U));
  } else if (code < 0x10000) {
    add(0xE0U | (code >> 12U));
    add_six_bits(6);
  } else {
    add(0xF0U | (code >> 18U));
    add_six_bits(12);
    add_six_bits(6);
  }
  add_six_bits(0);
}

/// Appends text as a JSON string; bytes that are not UTF-8 become U+FFFD, so that every reader accepts the file.
inline void append_json_text(std::string& json, std::string_view text) {
  json += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char first = text.front();
    if (first == '"' || first == '\\') {
      json += '\\';
      json += first;
    } else if (first == '\n') {
      json += "\\n";
    } else if (static_cast<unsigned char>(first) < 0x20 || first == '\x7F') {
      json += compose("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(first)));
    } else if (length == 0) {
      json += "\xEF\xBF\xBD";
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  json += '"';
}

}  // namespace detail
}  // namespace railyard::inline v0_1
