// SPDX-License-Identifier: MIT
// Bytes as hexadecimal digits. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/version.hpp"

#include <charconv>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Writes two digits for each byte.
[[nodiscard]] inline std::string hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += compose("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

/// Reads what hexadecimal() has written; nothing if it is something else.
[[nodiscard]] inline std::optional<std::string> from_hexadecimal(std::string_view digits) {
  std::string text;
  for (; digits.size() >= 2; digits.remove_prefix(2)) {
    unsigned byte = 0;
    if (std::from_chars(digits.data(), digits.data() + 2, byte, 16).ptr != digits.data() + 2) return {};
    text += static_cast<char>(static_cast<unsigned char>(byte));
  }
  return digits.empty() ? std::optional{std::move(text)} : std::nullopt;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
