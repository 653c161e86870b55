// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/shared_store.hpp"

#include "railyard/workers/detail/group_memory.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <thread>

using namespace workers_test;
using ry::detail::GroupMemory;

TEST_CASE("SharedTable: lets one of many win who set the same key at once") {
  GroupMemory memory{1};
  std::atomic<int> won{0};
  std::vector<std::thread> threads;
  for (int at = 0; at < 4; ++at) {
    threads.emplace_back([&memory, &won, at] {
      auto table = memory.store();
      for (int key = 0; key < 500; ++key) {
        try {
          table.set(fmt::to_string(key), fmt::to_string(at));
          ++won;
        } catch (const ry::Error&) {
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(won.load() == 500);
}

TEST_CASE("SharedTable: says so when it is full, of bytes or of keys, and stays usable") {
  GroupMemory memory{1};
  auto table = memory.store();
  const std::string large(std::size_t{5} << 20U, 'x');
  for (const char* key : {"a", "b", "c"}) table.set(key, large);
  CHECK_THROWS_WITH(table.set("d", large), ContainsSubstring("full") && ContainsSubstring("\"d\""));
  CHECK_THROWS_WITH(table.set("e", std::string(std::size_t{17} << 20U, 'x')), ContainsSubstring("full"));
  table.set("f", "small");
  CHECK(table.find("f") == "small");
  CHECK(table.find("a") == large);

  GroupMemory other{1};
  auto keys = other.store();
  for (std::size_t at = 0; at < ry::detail::StoreBlock::num_slots; ++at) keys.set(fmt::to_string(at), "");
  CHECK_THROWS_WITH(keys.set("one more", ""), ContainsSubstring("full"));
  CHECK(keys.find("16383") == "");
  CHECK_FALSE(keys.find("one more"));
}

TEST_CASE("SharedTable: is empty in new memory, and again where that was used before") {
  const auto users = GENERATE(ry::detail::SharedBy::threads, ry::detail::SharedBy::processes);
  GroupMemory memory{2, "before", 0, users};
  for (int turn = 0; turn < 2; ++turn) {
    auto table = memory.store();
    for (int key = 0; key < 2000; ++key) {
      REQUIRE_FALSE(table.find(fmt::to_string(key)));
      table.set(fmt::to_string(key), "value");
    }
    memory.reset(2, "after");
    CHECK(memory.briefing() == "after");
  }
}

TEST_CASE("SharedTable: waits until something changes, for as long as it is told") {
  GroupMemory memory{1};
  auto table = memory.store();
  const auto seen = table.changes();
  table.wait(seen, std::chrono::nanoseconds{0});
  table.wait(seen, std::chrono::milliseconds{1});
  CHECK(table.changes() == seen);
  std::thread setter{[&memory] { memory.store().set("key", "value"); }};
  while (table.changes() == seen) table.wait(seen, std::chrono::seconds{30});
  setter.join();
  table.wait(seen, std::chrono::hours{24});  // has come before
  CHECK(table.find("key") == "value");
}

TEST_CASE("SharedTable: stays usable when those who set values are killed at any moment") {
  GroupMemory memory{1};
  auto table = memory.store();
  for (int round = 0; round < 50; ++round) {
    SharedNumber progress;
    Forked writer{[&](const Forked::Tell&) {
      const std::string value(static_cast<std::size_t>(50 + round), static_cast<char>('a' + round % 26));
      for (int at = 0; at < 300; ++at) {
        table.set(fmt::format("{}-{}", round, at), value);
        (*progress).store(at + 1);
      }
      return 0;
    }};
    while ((*progress).load() < round * 5) std::this_thread::yield();
    ::kill(writer.pid(), SIGKILL);
    (void)writer.status();
    for (int at = 0; at < 300; ++at) {
      const auto value = table.find(fmt::format("{}-{}", round, at));
      if (at < (*progress).load()) REQUIRE(value);
      if (value)
        REQUIRE(*value == std::string(static_cast<std::size_t>(50 + round), static_cast<char>('a' + round % 26)));
    }
    table.set(fmt::format("after {}", round), "fine");
  }
}
