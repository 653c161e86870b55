// SPDX-License-Identifier: MIT
// The checksum of a checkpoint's files. Checkpoint room.
#pragma once

#include "railyard/core/version.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::uint32_t crc32c_polynomial = 0x82F63B78U;  // Castagnoli's, lowest power in the highest bit

// Multiplies two polynomials modulo the one of the checksum.
[[nodiscard]] constexpr std::uint32_t crc32c_multiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000U; bit != 0; bit >>= 1U) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1U) ^ ((b & 1U) != 0 ? crc32c_polynomial : 0);
  }
  return product;
}

// What a checksum is multiplied by when num_bytes zeros follow: x to the power of their bits.
[[nodiscard]] constexpr std::uint32_t crc32c_shift(std::size_t num_bytes) noexcept {
  std::uint32_t result = 0x80000000U;  // 1
  std::uint32_t power = 0x00800000U;   // x^8
  for (; num_bytes != 0; num_bytes >>= 1U) {
    if ((num_bytes & 1U) != 0) result = crc32c_multiply(result, power);
    power = crc32c_multiply(power, power);
  }
  return result;
}

// What one byte does to the checksum if n more bytes follow it is in table n.
using Crc32cTables = std::array<std::array<std::uint32_t, 256>, 8>;

[[nodiscard]] constexpr Crc32cTables make_crc32c_tables() noexcept {
  Crc32cTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (auto& table : tables) {
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? crc32c_polynomial : 0);
      table[byte] = value;
    }
  }
  return tables;
}

[[nodiscard]] inline std::uint64_t crc32c_word(const std::byte* from) noexcept {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// These three take and return the inverted value, so that parts can be added up.
[[nodiscard]] inline std::uint32_t crc32c_by_table(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  static constexpr Crc32cTables tables = make_crc32c_tables();
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const std::uint64_t word = crc32c_word(bytes.data()) ^ state;
    state = 0;
    for (unsigned i = 0; i < 8; ++i) state ^= tables[7 - i][(word >> (8 * i)) & 0xFFU];
  }
  for (const std::byte byte : bytes) {
    state = (state >> 8U) ^ tables[0][(state ^ static_cast<std::uint32_t>(byte)) & 0xFFU];
  }
  return state;
}

#if defined(__x86_64__)

[[nodiscard]] __attribute__((target("sse4.2"))) inline std::uint32_t crc32c_by_instruction(
    std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  // The instruction takes three cycles and can begin anew in each: three stretches at a time.
  constexpr std::size_t stretch = std::size_t{32} << 10U;
  constexpr std::uint32_t shift = crc32c_shift(stretch);
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 3 * stretch; at += 3 * stretch, left -= 3 * stretch) {
    std::uint64_t first = state;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < stretch; i += 8) {
      first = __builtin_ia32_crc32di(first, crc32c_word(at + i));
      second = __builtin_ia32_crc32di(second, crc32c_word(at + stretch + i));
      third = __builtin_ia32_crc32di(third, crc32c_word(at + 2 * stretch + i));
    }
    state = crc32c_multiply(static_cast<std::uint32_t>(first), shift) ^ static_cast<std::uint32_t>(second);
    state = crc32c_multiply(state, shift) ^ static_cast<std::uint32_t>(third);
  }
  std::uint64_t word = state;
  for (; left >= 8; at += 8, left -= 8) word = __builtin_ia32_crc32di(word, crc32c_word(at));
  state = static_cast<std::uint32_t>(word);
  for (; left > 0; ++at, --left) state = __builtin_ia32_crc32qi(state, static_cast<unsigned char>(*at));
  return state;
}
#endif

[[nodiscard]] inline std::uint32_t crc32c_update(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) return crc32c_by_instruction(state, bytes);
#endif
  return crc32c_by_table(state, bytes);
}

/// Is the CRC-32C (RFC 3720, appendix B.4) of bytes that are added one stretch after the other.
class Crc32c {
 public:
  void add(std::span<const std::byte> bytes) noexcept { state_ = crc32c_update(state_, bytes); }
  [[nodiscard]] std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_ = 0xFFFFFFFFU;
};

[[nodiscard]] inline std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  Crc32c sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace detail
}  // namespace railyard::inline v0_1
