// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/agent.hpp"

#include "support/catch.hpp"
#include "unit/workers/followed_group.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <unistd.h>

using namespace workers_test;
using Catch::ContainsSubstring;

namespace {

void take_one(ry::WorkerLink& link, int process) {
  const auto snapshot = link.take_snapshot(100'000, ry::SnapshotKind::checkpoint);
  std::fill(snapshot.bytes.begin(), snapshot.bytes.end(), std::byte(process + 1));
  link.post(bytes_of(std::to_string(snapshot.slot)));
}

// Adds up what rank 1 has in its snapshot, for "sum"; else refuses, or never ends.
std::vector<std::byte> answer(std::span<const std::byte> request, const ry::SnapshotReader& snapshot) {
  const std::string words = text_of({request.begin(), request.end()});
  while (words == "wait") {
    static_cast<void>(snapshot(1, 0, 0, 1));
    std::this_thread::sleep_for(1ms);
  }
  if (words != "sum") throw ry::Error{"is refused: " + words};
  std::size_t sum = 0;
  for (std::size_t begin = 0; begin < 100'000; begin += 10'000) {
    for (const std::byte one : snapshot(1, 0, begin, 10'000)) sum += std::to_integer<std::size_t>(one);
  }
  const std::string text = std::to_string(sum);
  const auto bytes = bytes_of(text);
  return {bytes.begin(), bytes.end()};
}

[[nodiscard]] bool comes(const std::atomic<bool>& what) {
  const auto deadline = soon();
  while (!what && !deadline.expired()) std::this_thread::sleep_for(1ms);
  return what;
}

}  // namespace

TEST_CASE("Launched: a process that follows answers requests of its workers' snapshots, also when those have ended") {
  FollowedGroup followed{take_one, answer};
  const auto ask = [&](const std::string& words) {
    return text_of(followed.group().send_request(1, bytes_of(words))());
  };
  CHECK(followed.group().process_of(0) == 0);
  CHECK(followed.group().process_of(1) == 1);
  Story story;
  follow(followed.group(), story, [&] { return story.messages.size() == 2; });
  followed.group().hold_snapshot(1, 0);
  CHECK(ask("sum") == "200000");
  CHECK_THROWS_WITH(ask("something else"), "is refused: something else");
  follow(followed.group(), story, [] { return false; });
  CHECK(story.exits.size() == 2);
  CHECK(ask("sum") == "200000");
}

TEST_CASE("Launched: a request to a process that is lost, or ends, is not waited for") {
  FollowedGroup followed{take_one, answer};
  Story story;
  follow(followed.group(), story, [&] { return story.messages.size() == 2; });
  followed.group().hold_snapshot(1, 0);
  const auto wait = followed.group().send_request(1, bytes_of("wait"));
  SECTION("it is killed") { followed.kill(); }
  SECTION("its leader tells it the end") { followed.tell_end(); }
  CHECK_THROWS_WITH(wait(), ContainsSubstring("a request has no answer: the follower has"));
  CHECK_THROWS_WITH(followed.group().send_request(1, bytes_of("sum"))(), ContainsSubstring("has no answer"));
}

TEST_CASE("Launched: a process that loses its leader ends with its workers although storage holds a request up") {
  const SharedStuck stuck;
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const ry::detail::Descriptor reader{ends[0]};
  ry::detail::Descriptor writer{ends[1]};  // that all have who descend from here
  const auto stay = [](ry::WorkerLink& link, int process) {
    take_one(link, process);
    while (true) ::pause();
  };
  const auto hold = [&stuck](std::span<const std::byte>, const ry::SnapshotReader&) -> std::vector<std::byte> {
    stuck->hold_up();
    return {};
  };
  FollowedGroup followed{stay, hold, 100ms};
  writer.reset();
  Story story;
  follow(followed.group(), story, [&] { return story.messages.size() == 2; });
  const auto wait = followed.group().send_request(1, bytes_of("hold"));
  REQUIRE(comes(stuck->has_begun));
  CHECK(followed.lose_leader());
  pollfd left{.fd = reader.get(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&left, 1, 10'000) == 1);
  CHECK((left.revents & POLLHUP) != 0);  // nobody is left who could write
  stuck->is_released = true;
}

TEST_CASE("Launched: a request that makes no progress is waited for no longer than the limit, and then left behind") {
  const SharedStuck stuck;
  const auto hold = [&stuck](std::span<const std::byte> request, const ry::SnapshotReader& read) {
    if (text_of({request.begin(), request.end()}) == "hold") stuck->hold_up();
    return answer(request, read);
  };
  FollowedGroup followed{take_one, hold, 100ms, 300ms};
  Story story;
  follow(followed.group(), story, [] { return false; });
  const auto wait = followed.group().send_request(1, bytes_of("hold"));
  CHECK_THROWS_AS(wait(), ry::LateAnswerError);
  CHECK(stuck->has_begun);
  followed.group().hold_snapshot(1, 0);
  CHECK_FALSE(followed.group().keeps_snapshots(std::array<std::uint8_t, 2>{}));  // it may read from them yet
  SECTION("by the next one") {}
  SECTION("by a start, whose workers have memory of their own") {
    followed.group().restart(2, "");
    Story next;
    follow(followed.group(), next, [] { return false; });
    CHECK(next.exits.size() == 2);
  }
  CHECK(text_of(followed.group().send_request(1, bytes_of("sum"))()) == "200000");
  stuck->is_released = true;
}

TEST_CASE("Launched: workers that are started again find held snapshots, while a request goes on that reads others") {
  const SharedStuck stuck;
  const auto hold = [&stuck](std::span<const std::byte> request, const ry::SnapshotReader& read) {
    stuck->hold_up();
    return answer(request, read);
  };
  const auto look = [](ry::WorkerLink& link, int process) {
    if (link.briefing().size() == sizeof(ry::detail::GroupLayout)) return take_one(link, process);
    std::array<std::byte, 1> last{};
    link.read_snapshot(0, 0, 99'999, last);
    link.post(bytes_of(std::to_string(std::to_integer<int>(last[0]))));
  };
  FollowedGroup followed{look, hold};
  const std::array<std::uint8_t, 2> slots{};
  Story story;
  follow(followed.group(), story, [] { return false; });
  CHECK_FALSE(followed.group().keeps_snapshots(slots));
  for (const int rank : {0, 1}) followed.group().hold_snapshot(rank, 0);
  const auto wait = followed.group().send_request(1, bytes_of("sum"));
  REQUIRE(comes(stuck->has_begun));
  CHECK(followed.group().keeps_snapshots(slots));
  CHECK_FALSE(followed.group().keeps_snapshots(std::span{slots}.first(1)));
  followed.group().restart(2, "again");
  Story next;
  follow(followed.group(), next, [] { return false; });
  for (const int rank : {0, 1}) CHECK(next.messages[rank] == std::vector{std::to_string(rank + 1)});
  stuck->is_released = true;
  CHECK(text_of(wait()) == "200000");
  followed.kill();
  CHECK_FALSE(followed.group().keeps_snapshots(slots));
  CHECK_FALSE(followed.group().has_snapshots_of(1));
  CHECK(followed.group().has_snapshots_of(0));
}

TEST_CASE("AgentRequest: one that is left behind keeps the memory that it reads, and reads nothing more of it") {
  auto memory = std::make_shared<ry::detail::GroupMemory>(1);
  memory->hold_snapshot(0, 0);
  const auto bytes = memory->snapshot(0, 0, 100'000);
  std::fill(bytes.begin(), bytes.end(), std::byte{1});
  const auto stuck = std::make_shared<Stuck>();
  const auto sum = std::make_shared<std::atomic<std::size_t>>(0);
  const auto is_refused = std::make_shared<std::atomic<bool>>(false);
  const auto handle = [stuck, sum, is_refused](std::span<const std::byte>,
                                               const ry::SnapshotReader& read) -> std::vector<std::byte> {
    const auto span = read(3, 0, 0, 100'000);
    stuck->hold_up();
    std::size_t all = 0;
    for (const std::byte one : span) all += std::to_integer<std::size_t>(one);
    *sum = all;
    try {
      static_cast<void>(read(3, 0, 0, 1));
    } catch (const ry::Error&) {
      *is_refused = true;
    }
    return {};
  };
  {
    ry::detail::AgentRequest request{1, {}, handle, memory, 3};
    memory.reset();
    REQUIRE(comes(stuck->has_begun));
    CHECK_FALSE(request.is_over());
    CHECK_FALSE(request.give_up(10ms));
  }
  stuck->is_released = true;
  CHECK(comes(*is_refused));
  CHECK(*sum == 100'000);
}
