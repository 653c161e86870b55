// SPDX-License-Identifier: MIT
// Where the marked characters of a text are, as numbers. Data room.
#pragma once

#include "railyard/data/detail/byte_masks.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

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
#endif

/// Appends where the characters are that the first two marks of so many blocks of 64 mark. The second are those that
/// end lines. begin: of the first block.
inline void note_places(const PlaceMarks* marks, std::size_t blocks, std::size_t begin, PlaceLists& lists) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt")) {
    return note_places_bmi(marks, blocks, begin, lists);
  }
#endif
  note_places_by<AnyBits>(marks, blocks, begin, lists);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
