// SPDX-License-Identifier: MIT
// Bytes as text of the 64 characters that are alike everywhere. Data room.
// Source: RFC 4648, section 4.
#pragma once

#include "railyard/core/version.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::string_view base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes four characters for each three bytes, without padding.
[[nodiscard]] inline std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() / 3 * 4 + 4);
  std::uint32_t bits = 0;
  unsigned num_bits = 0;
  for (const char byte : bytes) {
    bits = bits << 8U | static_cast<unsigned char>(byte);
    for (num_bits += 8; num_bits >= 6; num_bits -= 6) text += base64_digits[bits >> (num_bits - 6) & 63U];
  }
  if (num_bits > 0) text += base64_digits[bits << (6 - num_bits) & 63U];
  return text;
}

/// Reads what base64() has written; nothing if it is something else.
[[nodiscard]] inline std::optional<std::string> from_base64(std::string_view text) {
  static constexpr std::uint8_t none = 64;
  static constexpr auto values = [] {
    std::array<std::uint8_t, 256> all{};
    all.fill(none);
    for (std::size_t at = 0; at < base64_digits.size(); ++at) {
      all[static_cast<unsigned char>(base64_digits[at])] = static_cast<std::uint8_t>(at);
    }
    return all;
  }();
  if (text.size() % 4 == 1) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t bits = 0;
  unsigned num_bits = 0;
  for (const char digit : text) {
    const std::uint8_t value = values[static_cast<unsigned char>(digit)];
    if (value == none) return std::nullopt;
    bits = bits << 6U | value;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(bits >> num_bits & 255U));
  }
  return bytes;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
