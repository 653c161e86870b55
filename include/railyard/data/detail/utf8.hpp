// SPDX-License-Identifier: MIT
// Finds what is not UTF-8 in text. Data room.
#pragma once

#include "railyard/core/detail/json_text.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

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
    const std::size_t length = utf8_length(text.substr(at));
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
    const std::size_t length = utf8_length(text.substr(at));
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
