// SPDX-License-Identifier: MIT
// Looks at 64 characters of text at once: each answer is a word with a bit per character. Data room.
#pragma once

#include "railyard/core/version.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__SSE2__)
// 16 characters at a time: what every x86-64 processor has keeps up with the memory that the text comes from.
class Bytes64 {
 public:
  explicit Bytes64(const char* text) noexcept {
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) {
      parts_[part] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + 16 * part));
    }
  }
  [[nodiscard]] std::uint64_t equal_to(char character) const noexcept {
    const __m128i wanted = _mm_set1_epi8(character);
    std::uint64_t mask = 0;
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) {
      const int bits = _mm_movemask_epi8(_mm_cmpeq_epi8(parts_[part], wanted));
      mask |= static_cast<std::uint64_t>(static_cast<unsigned>(bits)) << (16 * part);
    }
    return mask;
  }
  [[nodiscard]] bool is_ascii() const noexcept {
    const __m128i all = _mm_or_si128(_mm_or_si128(parts_[0], parts_[1]), _mm_or_si128(parts_[2], parts_[3]));
    return _mm_movemask_epi8(all) == 0;
  }

 private:
  __m128i parts_[4];
};
#else
class Bytes64 {
 public:
  explicit Bytes64(const char* text) noexcept : text_(text) {}
  [[nodiscard]] std::uint64_t equal_to(char character) const noexcept {
    std::uint64_t mask = 0;
    for (std::size_t at = 0; at < 64; ++at) mask |= static_cast<std::uint64_t>(text_[at] == character) << at;
    return mask;
  }
  [[nodiscard]] bool is_ascii() const noexcept {
    char all = 0;
    for (std::size_t at = 0; at < 64; ++at) all = static_cast<char>(all | text_[at]);
    return (static_cast<unsigned char>(all) & 0x80U) == 0;
  }

 private:
  const char* text_;
};
#endif

/// Where each of some characters is among 64.
template <std::size_t Count>
using ByteMarks = std::array<std::uint64_t, Count>;

#if defined(__x86_64__)
typedef char Bytes32 __attribute__((vector_size(32)));

template <std::size_t Count>
[[gnu::target("avx2")]] bool mark_bytes_avx2(const char* text, std::size_t blocks,
                                             const std::array<char, Count>& wanted, ByteMarks<Count>* marks) noexcept {
  Bytes32 all{};
  for (std::size_t block = 0; block < blocks; ++block) {
    Bytes32 low;
    Bytes32 high;
    std::memcpy(&low, text + 64 * block, sizeof low);
    std::memcpy(&high, text + 64 * block + 32, sizeof high);
    all |= low | high;
#pragma GCC unroll 4
    for (std::size_t at = 0; at < Count; ++at) {
      const auto first = static_cast<std::uint32_t>(__builtin_ia32_pmovmskb256(Bytes32(low == wanted[at])));
      const auto second = static_cast<std::uint32_t>(__builtin_ia32_pmovmskb256(Bytes32(high == wanted[at])));
      marks[block][at] = first | std::uint64_t{second} << 32;
    }
  }
  return __builtin_ia32_pmovmskb256(all) == 0;
}

template <std::size_t Count>
[[gnu::target("avx512f,avx512bw")]] bool mark_bytes_avx512(const char* text, std::size_t blocks,
                                                           const std::array<char, Count>& wanted,
                                                           ByteMarks<Count>* marks) noexcept {
  __m512i all = _mm512_setzero_si512();
  for (std::size_t block = 0; block < blocks; ++block) {
    const __m512i bytes = _mm512_loadu_si512(text + 64 * block);
    all = _mm512_or_si512(all, bytes);
#pragma GCC unroll 4
    for (std::size_t at = 0; at < Count; ++at) {
      marks[block][at] = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(wanted[at]));
    }
  }
  return _mm512_movepi8_mask(all) == 0;
}
#endif

template <std::size_t Count>
bool mark_bytes_anywhere(const char* text, std::size_t blocks, const std::array<char, Count>& wanted,
                         ByteMarks<Count>* marks) noexcept {
  bool is_ascii = true;
  for (std::size_t block = 0; block < blocks; ++block) {
    const Bytes64 bytes{text + 64 * block};
    for (std::size_t at = 0; at < Count; ++at) marks[block][at] = bytes.equal_to(wanted[at]);
    is_ascii = is_ascii && bytes.is_ascii();
  }
  return is_ascii;
}

/// Marks the wanted characters in so many blocks of 64. Returns whether all of the text is ASCII.
template <std::size_t Count>
bool mark_bytes(const char* text, std::size_t blocks, const std::array<char, Count>& wanted,
                ByteMarks<Count>* marks) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw")) return mark_bytes_avx512(text, blocks, wanted, marks);
  if (__builtin_cpu_supports("avx2")) return mark_bytes_avx2(text, blocks, wanted, marks);
#endif
  return mark_bytes_anywhere(text, blocks, wanted, marks);
}

/// How many blocks are best marked at a time: the marks stay in the nearest cache.
inline constexpr std::size_t blocks_at_once = 64;

/// Returns for each bit how many bits at it and before it are set, modulo 2: of quotes, what lies within them.
[[nodiscard]] constexpr std::uint64_t parity_before(std::uint64_t bits) noexcept {
  bits ^= bits << 1;
  bits ^= bits << 2;
  bits ^= bits << 4;
  bits ^= bits << 8;
  bits ^= bits << 16;
  bits ^= bits << 32;
  return bits;
}

/// Returns how many bits are set. Without the instruction, which not every x86-64 processor has, std::popcount is a
/// call.
[[nodiscard]] constexpr unsigned count_bits(std::uint64_t bits) noexcept {
  bits -= (bits >> 1) & 0x5555555555555555U;
  bits = (bits & 0x3333333333333333U) + ((bits >> 2) & 0x3333333333333333U);
  bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0FU;
  return static_cast<unsigned>((bits * 0x0101010101010101U) >> 56);
}

/// The lowest so many bits, 0 to 64.
[[nodiscard]] constexpr std::uint64_t lowest_bits(std::size_t count) noexcept {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
