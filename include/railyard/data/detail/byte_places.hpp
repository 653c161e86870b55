// SPDX-License-Identifier: MIT
// Where the marked characters of a text are, as numbers. Data room.
#pragma once

#include "railyard/data/detail/byte_masks.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

/// Are the places of some characters in a text, and which of them end lines. Behind both lists there is room for 64
/// more.
struct PlaceLists {
  std::uint32_t* places = nullptr;
  std::size_t num_places = 0;
  std::uint32_t* lines = nullptr;  ///< numbers of places
  std::size_t num_lines = 0;
};

/// What the functions below ask of a block: the characters, and those of them that end lines.
using PlaceMarks = ByteMarks<3>;

// Both for any processor, and for one that counts bits: the same steps, whether there are bits or not, because a branch
// would be mispredicted.
struct AnyBits {
  [[nodiscard]] [[gnu::always_inline]] static std::size_t count(std::uint64_t bits) noexcept {
    return count_bits(bits);
  }
  // Returns which bit is the lowest; any number if there is none. Compilers make a branch of that if they may.
  [[nodiscard]] [[gnu::always_inline]] static std::uint32_t lowest(std::uint64_t bits) noexcept {
    return static_cast<std::uint32_t>(std::countr_zero(bits | std::uint64_t{1} << 63));
  }
};

#if defined(__x86_64__)
struct CountedBits {
  [[nodiscard]] [[gnu::always_inline]] static std::size_t count(std::uint64_t bits) noexcept {
    return static_cast<std::size_t>(std::popcount(bits));
  }
  [[nodiscard]] [[gnu::always_inline]] static std::uint32_t lowest(std::uint64_t bits) noexcept {
    std::uint64_t place;
    asm("tzcntq %[bits], %[place]" : [place] "=r"(place) : [bits] "r"(bits) : "cc");
    return static_cast<std::uint32_t>(place);
  }
};
#endif

// One line end is noted, whether there is one or not, and then those that are left.
template <class Bits>
[[gnu::always_inline]] inline void note_lines(std::uint64_t places, std::uint64_t ends, PlaceLists& to) noexcept {
  do {
    const std::uint64_t before = (ends & (~ends + 1)) - 1;
    to.lines[to.num_lines] = static_cast<std::uint32_t>(to.num_places + Bits::count(places & before));
    to.num_lines += ends != 0;
    ends &= ends - 1;
  } while (ends != 0);
}

// Eight at a time, whether there are so many or not: the next ones overwrite what is too much.
template <class Bits>
[[gnu::always_inline]] inline void note_each(std::uint64_t places, std::uint32_t begin, std::uint32_t* to) noexcept {
  do {
#pragma GCC unroll 8
    for (std::size_t at = 0; at < 8; ++at) {
      to[at] = begin + Bits::lowest(places);
      places &= places - 1;
    }
    to += 8;
  } while (places != 0);
}

template <class Bits>
[[gnu::always_inline]] inline void note_places_by(const PlaceMarks* marks, std::size_t blocks, std::size_t begin,
                                                  PlaceLists& lists) noexcept {
  PlaceLists to = lists;
  for (std::size_t block = 0; block < blocks; ++block, begin += 64) {
    const std::uint64_t places = marks[block][0] | marks[block][1];
    note_lines<Bits>(places, marks[block][1], to);
    note_each<Bits>(places, static_cast<std::uint32_t>(begin), to.places + to.num_places);
    to.num_places += Bits::count(places);
  }
  lists = to;
}

#if defined(__x86_64__)
[[gnu::target("bmi,popcnt")]] inline void note_places_bmi(const PlaceMarks* marks, std::size_t blocks,
                                                          std::size_t begin, PlaceLists& lists) noexcept {
  note_places_by<CountedBits>(marks, blocks, begin, lists);
}

// Sixteen at a time: most blocks have fewer, so that there is nothing to foresee.
[[gnu::target("avx512f,avx512bw,avx512vbmi2,bmi,popcnt")]] inline void note_places_vbmi2(const PlaceMarks* marks,
                                                                                         std::size_t blocks,
                                                                                         std::size_t begin,
                                                                                         PlaceLists& lists) noexcept {
  constexpr __mmask16 all_words = 0xFFFF;  // GCC 12 warns about its own code in the functions without a mask
  constexpr __mmask8 all_longs = 0xFF;
  const __m512i each = _mm512_set_epi64(0x3F3E3D3C3B3A3938, 0x3736353433323130, 0x2F2E2D2C2B2A2928, 0x2726252423222120,
                                        0x1F1E1D1C1B1A1918, 0x1716151413121110, 0x0F0E0D0C0B0A0908, 0x0706050403020100);
  PlaceLists to = lists;
  for (std::size_t block = 0; block < blocks; ++block, begin += 64) {
    const std::uint64_t places = marks[block][0] | marks[block][1];
    note_lines<CountedBits>(places, marks[block][1], to);
    const std::size_t count = CountedBits::count(places);
    const __m512i from = _mm512_set1_epi32(static_cast<int>(begin));
    __m512i which = _mm512_maskz_compress_epi8(places, each);
    for (std::size_t done = 0;; done += 16) {
      const __m512i sixteen = _mm512_maskz_cvtepu8_epi32(all_words, _mm512_maskz_extracti32x4_epi32(0xF, which, 0));
      _mm512_storeu_si512(to.places + to.num_places + done, _mm512_add_epi32(from, sixteen));
      if (count <= done + 16) break;
      which = _mm512_maskz_shuffle_i64x2(all_longs, which, which, 0b00'11'10'01);
    }
    to.num_places += count;
  }
  lists = to;
}
#endif

/// Appends where the characters are that the first two marks of so many blocks of 64 mark. The second are those that
/// end lines. begin: of the first block.
inline void note_places(const PlaceMarks* marks, std::size_t blocks, std::size_t begin, PlaceLists& lists) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bw")) {
    return note_places_vbmi2(marks, blocks, begin, lists);
  }
  if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt")) {
    return note_places_bmi(marks, blocks, begin, lists);
  }
#endif
  note_places_by<AnyBits>(marks, blocks, begin, lists);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
