// SPDX-License-Identifier: MIT
#include "railyard/data/detail/byte_places.hpp"

#include "support/catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

constexpr std::array<char, 3> wanted_bytes{',', '\n', '"'};

// So many blocks, of which some are full of what is wanted, and 64 characters more.
std::string random_blocks(std::mt19937_64& random, std::size_t blocks) {
  const std::uint64_t often = 1 + random() % 40;
  std::string text(64 * blocks, 'x');
  for (char& character : text) {
    if (random() % often == 0) character = wanted_bytes[random() % 3];
    if (random() % 5000 == 0) character = '\xC3';
  }
  return text + std::string(64, ',');
}

struct PlaceList {
  std::vector<std::uint32_t> places;
  std::vector<std::uint32_t> lines;
  friend bool operator==(const PlaceList&, const PlaceList&) = default;
};

template <class Note>
PlaceList places_by(Note&& note, const std::vector<ry::detail::PlaceMarks>& marks) {
  PlaceList list{std::vector<std::uint32_t>(64 * marks.size() + 65),
                 std::vector<std::uint32_t>(64 * marks.size() + 65)};
  ry::detail::PlaceLists to{list.places.data(), 1, list.lines.data(), 0};
  note(marks.data(), marks.size(), std::size_t{640}, to);
  list.places.resize(to.num_places);
  list.lines.resize(to.num_lines);
  return list;
}

}  // namespace

TEST_CASE("mark_bytes, note_places: say where characters are, whatever the processor has") {
  std::mt19937_64 random{9};
  for (int turn = 0; turn < 200; ++turn) {
    const std::size_t blocks = 1 + random() % 6;
    const std::string text = random_blocks(random, blocks);
    std::vector<ry::detail::PlaceMarks> marks(blocks);
    PlaceList expected{{0}, {}};
    bool is_ascii = true;
    for (std::size_t at = 0; at < 64 * blocks; ++at) {
      for (std::size_t mark = 0; mark < 3; ++mark) {
        marks[at / 64][mark] |= std::uint64_t{text[at] == wanted_bytes[mark]} << at % 64;
      }
      is_ascii = is_ascii && text[at] != '\xC3';
      if (text[at] == '\n') expected.lines.push_back(static_cast<std::uint32_t>(expected.places.size()));
      if (text[at] == '\n' || text[at] == ',') expected.places.push_back(static_cast<std::uint32_t>(640 + at));
    }

    const auto check_marks = [&](auto&& mark) {
      std::vector<ry::detail::PlaceMarks> made(blocks);
      CHECK(mark(text.data(), blocks, wanted_bytes, made.data()) == is_ascii);
      CHECK(made == marks);
    };
    check_marks(ry::detail::mark_bytes<3>);
    check_marks(ry::detail::mark_bytes_anywhere<3>);
    CHECK(places_by(ry::detail::note_places, marks) == expected);
    CHECK(places_by(ry::detail::note_places_by<ry::detail::AnyBits>, marks) == expected);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) check_marks(ry::detail::mark_bytes_avx2<3>);
    if (__builtin_cpu_supports("avx512bw")) check_marks(ry::detail::mark_bytes_avx512<3>);
    if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt")) {
      CHECK(places_by(ry::detail::note_places_bmi, marks) == expected);
    }
    if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bw")) {
      CHECK(places_by(ry::detail::note_places_vbmi2, marks) == expected);
    }
#endif
  }
}
