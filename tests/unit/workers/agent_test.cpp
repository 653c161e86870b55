// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/agent.hpp"

#include "support/catch.hpp"
#include "unit/workers/followed_group.hpp"

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

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
  const auto bytes = bytes_of(std::to_string(sum));
  return {bytes.begin(), bytes.end()};
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
