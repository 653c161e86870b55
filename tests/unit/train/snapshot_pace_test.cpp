// SPDX-License-Identifier: MIT
#include "railyard/train/detail/snapshot_pace.hpp"

#include "railyard/core/detail/memory_left.hpp"

#include "support/catch.hpp"

#include <chrono>
#include <cstddef>

TEST_CASE("SnapshotPace: spreads copies so that they take their share of the time") {
  using ry::detail::SnapshotPace;
  using std::chrono::milliseconds;
  const SnapshotPace::Clock::time_point begin{};
  SnapshotPace pace{2, std::chrono::seconds{3}, true, begin};
  CHECK(pace.wants_copy(begin));
  pace.note_copy(milliseconds{10}, begin + milliseconds{100});
  CHECK_FALSE(pace.wants_copy(begin + milliseconds{599}));
  CHECK(pace.wants_copy(begin + milliseconds{600}));
  CHECK_FALSE(pace.wants_checkpoint(begin + milliseconds{2999}));
  CHECK(pace.wants_checkpoint(begin + milliseconds{3000}));
  pace.note_checkpoint(begin + milliseconds{3000});
  CHECK_FALSE(pace.wants_checkpoint(begin + milliseconds{3001}));
  SnapshotPace resumed{1, std::chrono::nanoseconds{0}, true, begin};
  resumed.note_put_back(std::chrono::milliseconds{10}, begin);
  CHECK_FALSE(resumed.wants_copy(begin + std::chrono::milliseconds{999}));
  CHECK(resumed.wants_copy(begin + std::chrono::milliseconds{1001}));
  resumed.note_put_back(std::chrono::hours{1}, begin);  // from a slow disk
  CHECK(resumed.wants_copy(begin + std::chrono::milliseconds{2001}));
  CHECK_FALSE(SnapshotPace{0, std::chrono::nanoseconds{0}, true, begin}.wants_copy(begin + std::chrono::hours{1}));
  CHECK_FALSE(
      SnapshotPace{0, std::chrono::nanoseconds{0}, true, begin}.wants_checkpoint(begin + std::chrono::hours{1}));
}

TEST_CASE("SnapshotPace: where no failure is survived, copies are rare, and a checkpoint is as good as one") {
  using ry::detail::SnapshotPace;
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  const SnapshotPace::Clock::time_point begin{};
  SnapshotPace pace{1, std::chrono::nanoseconds{0}, false, begin};
  CHECK_FALSE(pace.wants_copy(begin + milliseconds{9900}));
  CHECK(pace.wants_copy(begin + milliseconds{10100}));
  pace.note_copy(milliseconds{1}, begin + seconds{20});
  CHECK_FALSE(pace.wants_copy(begin + milliseconds{29900}));
  CHECK(pace.wants_copy(begin + milliseconds{30100}));
  pace.note_save(milliseconds{200}, begin + seconds{40});  // one percent is no more than that
  CHECK_FALSE(pace.wants_copy(begin + milliseconds{59900}));
  CHECK(pace.wants_copy(begin + milliseconds{60100}));
  CHECK_FALSE(SnapshotPace{0, std::chrono::nanoseconds{0}, false, begin}.wants_copy(begin + std::chrono::hours{1}));
}

TEST_CASE("lack_of_room: says what copies need, what there is and what to do") {
  using ry::detail::lack_of_room;
  constexpr std::size_t mebibyte = std::size_t{1} << 20U;
  CHECK(lack_of_room({.copies = 4 * mebibyte}, 2, true, 4 * mebibyte).empty());
  CHECK(lack_of_room({.copies = 4 * mebibyte}, 2, false, 8 * mebibyte).empty());
  CHECK(lack_of_room({.copies = 4 * mebibyte, .there = 4 * mebibyte}, 2, true, 0).empty());  // after a restart
  CHECK(lack_of_room({.copies = 4 * mebibyte, .there = 9 * mebibyte}, 2, true, 0).empty());
  CHECK_THAT(lack_of_room({.copies = 4 * mebibyte, .there = mebibyte}, 2, true, 3 * mebibyte - 1),
             ContainsSubstring("3 MiB of them are to come"));
  CHECK_THAT(lack_of_room({.copies = 4 * mebibyte}, 2, true, 4 * mebibyte - 1),
             ContainsSubstring("2 workers") && ContainsSubstring("keep 4 MiB of copies, 4 MiB") &&
                 ContainsSubstring("memory_percent = 0"));
  CHECK_THAT(lack_of_room({.copies = 4 * mebibyte}, 2, false, 7 * mebibyte),
             ContainsSubstring("7 MiB of memory are free, half of"));
  const ry::detail::CopyMemory on_several_hosts{.copies = 4 * mebibyte, .received = 3 * mebibyte};
  CHECK(lack_of_room(on_several_hosts, 2, true, 7 * mebibyte).empty());
  CHECK_THAT(lack_of_room(on_several_hosts, 2, true, 7 * mebibyte - 1),
             ContainsSubstring("keep 7 MiB of copies, 3 MiB of what other hosts have at a restart included, 7 MiB"));
}
