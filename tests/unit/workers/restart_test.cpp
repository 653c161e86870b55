// SPDX-License-Identifier: MIT
// Workers that are started anew, and what they leave in the memory that outlives them.
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support.hpp"
#include "support/catch.hpp"
#include "support/memory_flags.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

using namespace workers_test;

TEMPLATE_TEST_CASE("WorkerGroup: starts every worker anew with a page, a store and messages of its own", "",
                   ry::Threads, ry::Processes) {
  auto group = TestType{}.start({.num_workers = 3, .briefing = "start 0"}, [](ry::WorkerLink& link) {
    const int rank = link.world().rank;
    link.store().set(fmt::format("key {}", rank), link.briefing());
    const auto other = link.store().get(fmt::format("key {}", (rank + 1) % 3), soon());
    link.page().samples.fetch_add(1);
    link.post(bytes_of(fmt::format("{} {} {}", link.briefing(), other.value_or("none"), link.page().samples.load())));
    if (link.briefing() == "start 1") throw std::runtime_error{"again"};
  });
  for (int start = 0; start < 4; ++start) {
    if (start > 0) group->restart(3, fmt::format("start {}", start));
    const Story story = follow_to_end(*group);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(story.messages.at(rank) == std::vector{fmt::format("start {0} start {0} 1", start)});
      CHECK((story.exit_of(rank).kind == ry::WorkerExit::Kind::threw) == (start == 1));
    }
    CHECK(story.late.empty());
  }
}

TEMPLATE_TEST_CASE("WorkerGroup: starts workers anew after an abort", "", ry::Threads, ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2, .briefing = "wait"}, [](ry::WorkerLink& link) {
    if (link.briefing() == "wait") static_cast<void>(link.store().get("never", soon()));
    link.post(bytes_of("done"));
  });
  group->abort("a test");
  CHECK(follow_to_end(*group).exit_of(0).kind == ry::WorkerExit::Kind::threw);
  group->restart(2, "go");
  const Story story = follow_to_end(*group);
  CHECK(story.messages.at(0) == std::vector<std::string>{"done"});
  CHECK(story.messages.at(1) == std::vector<std::string>{"done"});
}

namespace {

// Kills the process that starts workers when the group has been asked to stop, and not while it still starts them.
void kill_starter(ry::WorkerLink& link) {
  while (!link.page().stop_requested.load()) static_cast<void>(link.store().get("never", ry::Deadline::after(1ms)));
  if (link.world().rank == 0) ::kill(::getppid(), SIGKILL);
  static_cast<void>(link.store().get("never", soon()));
}

}  // namespace

TEST_CASE("Processes: start anew after kill -9 of a worker, and of the process that starts them") {
  auto group = ry::Processes{}.start({.num_workers = 2, .briefing = "die"}, [](ry::WorkerLink& link) {
    if (link.briefing() == "die" && link.world().rank == 1) ::raise(SIGKILL);
    if (link.briefing() == "orphans") kill_starter(link);
    link.post(bytes_of("done"));
  });
  CHECK(follow_to_end(*group).exit_of(1).code == SIGKILL);
  group->restart(2, "orphans");
  group->request_stop();
  CHECK(follow_to_end(*group).broken.size() == 1);
  group->restart(2, "go");
  const Story story = follow_to_end(*group);
  CHECK(story.broken.empty());
  CHECK(story.messages.at(0) == std::vector<std::string>{"done"});
  CHECK(story.messages.at(1) == std::vector<std::string>{"done"});
}

TEST_CASE("Processes: workers that start again find what is the program's as the first ones did (TRAPS 22)") {
  static int global = 0;
  int captured = 0;
  auto group = ry::Processes{}.start({.num_workers = 2}, [&](ry::WorkerLink& link) {
    link.post(bytes_of(fmt::format("{} {}", ++global, ++captured)));
    if (link.world().rank == 1) ::raise(SIGKILL);
  });
  for (int start = 0; start < 3; ++start) {
    if (start > 0) group->restart(2, "");
    const Story story = follow_to_end(*group);
    for (int rank = 0; rank < 2; ++rank) CHECK(story.messages.at(rank) == std::vector<std::string>{"1 1"});
    global = captured = 7;  // in the program, after its workers' source was made
  }
  global = 0;
}

TEST_CASE("Processes: say when this process is forked: at the start, and at another one only if need be") {
  std::vector<bool> told;
  const pid_t self = ::getpid();
  auto group = ry::Processes{}.start({.num_workers = 2,
                                      .briefing = "go",
                                      .on_fork =
                                          [&](bool begins) {
                                            if (::getpid() == self) told.push_back(begins);
                                          }},
                                     [](ry::WorkerLink& link) {
                                       if (link.briefing() == "orphans") kill_starter(link);
                                     });
  CHECK(told == std::vector{true, false});
  CHECK(follow_to_end(*group).broken.empty());
  group->restart(2, "orphans");
  CHECK(told.size() == 2);
  group->request_stop();
  CHECK(follow_to_end(*group).broken.size() == 1);
  group->restart(2, "go");
  CHECK(told == std::vector{true, false, true, false});
  CHECK(follow_to_end(*group).broken.empty());
}

TEMPLATE_TEST_CASE("WorkerGroup: leaves nothing behind after many starts", "", ry::Threads, ry::Processes) {
  const auto run = [] {
    auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
      const ry::Snapshot snapshot = link.take_snapshot(100'000, ry::SnapshotKind::checkpoint);
      std::fill(snapshot.bytes.begin(), snapshot.bytes.end(), std::byte{1});
    });
    for (int start = 0; start < 5; ++start) {
      follow_to_end(*group);
      group->restart(2, "");
    }
    follow_to_end(*group);
  };
  run();
  const Holdings before;
  for (int round = 0; round < 5; ++round) run();
  CHECK(come_back_to(before));
}

TEMPLATE_TEST_CASE("WorkerLink: fills snapshots that the supervisor reads when the worker has ended", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    for (int round = 0; round < 2; ++round) {
      const std::size_t size = round == 0 ? 5000 : 3'000'000;
      const ry::Snapshot snapshot = link.take_snapshot(size, ry::SnapshotKind::checkpoint);
      std::fill(snapshot.bytes.begin(), snapshot.bytes.end(), static_cast<std::byte>(16 * link.world().rank + round));
      link.post(bytes_of(fmt::format("{} {}", snapshot.slot, snapshot.bytes.size())));
    }
  });
  const Story story = follow_to_end(*group);
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(story.messages.at(rank) == std::vector<std::string>{"0 5000", "1 3000000"});
    for (int round = 0; round < 2; ++round) {
      const auto bytes = group->snapshot(rank, round, 0, round == 0 ? 5000 : 3'000'000);
      const auto wanted = static_cast<std::byte>(16 * rank + round);
      CHECK(std::all_of(bytes.begin(), bytes.end(), [wanted](std::byte byte) { return byte == wanted; }));
    }
  }
}

TEMPLATE_TEST_CASE("WorkerGroup: finds a snapshot that was given back, until a worker takes its memory", "",
                   ry::Threads, ry::Processes) {
  auto group = TestType{}.start({.num_workers = 1}, [](ry::WorkerLink& link) {
    const ry::Snapshot snapshot = link.take_snapshot(100, ry::SnapshotKind::checkpoint);
    if (link.briefing() == "again") return link.drop_snapshot(snapshot.slot);
    std::fill(snapshot.bytes.begin(), snapshot.bytes.end(), std::byte{7});
    link.post(bytes_of(fmt::format("{}", snapshot.slot)));
  });
  REQUIRE(follow_to_end(*group).messages[0] == std::vector<std::string>{"0"});
  const auto is_left = [&](std::size_t size) { return group->left_snapshot(0, 0, size).size() == size; };
  group->hold_snapshot(0, 0);
  CHECK_FALSE(is_left(100));  // it is being read
  group->release_snapshot(0, 0);
  REQUIRE(is_left(100));
  CHECK(group->left_snapshot(0, 0, 100)[0] == std::byte{7});
  CHECK_FALSE(is_left(1'000'000));
  CHECK(group->left_snapshot(0, 1, 100).empty());
  group->restart(1, "again");
  follow_to_end(*group);
  const auto later = group->left_snapshot(0, 0, 100);
  REQUIRE(later.size() == 100);
  CHECK(std::all_of(later.begin(), later.begin() + 8, [](std::byte byte) { return byte == std::byte{}; }));
}

TEMPLATE_TEST_CASE("WorkerLink: waits for a snapshot until one is given back, or the group ends", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 1}, [](ry::WorkerLink& link) {
    for (int round = 0; round < 4; ++round) {
      const ry::Snapshot snapshot = link.take_snapshot(10, ry::SnapshotKind::checkpoint);
      snapshot.bytes[0] = static_cast<std::byte>(round);
      link.post(bytes_of(fmt::format("{}", snapshot.slot)));
    }
  });
  Story story;
  follow(*group, story, [&] { return story.messages[0].size() == 2; });
  CHECK(group->snapshot(0, 0, 0, 10)[0] == std::byte{0});
  group->release_snapshot(0, 0);
  follow(*group, story, [&] { return story.messages[0].size() == 3; });
  CHECK(group->snapshot(0, 1, 0, 10)[0] == std::byte{1});  // the worker, which waits for it, has left it alone
  CHECK(group->snapshot(0, 0, 0, 10)[0] == std::byte{2});
  group->abort("a test");
  follow(*group, story, [] { return false; });
  CHECK(story.messages[0] == std::vector<std::string>{"0", "1", "0"});
  CHECK_THAT(story.exit_of(0).message, ContainsSubstring("snapshot on rank 0/1: the group has been ended: a test"));
}

TEMPLATE_TEST_CASE("WorkerGroup: refuses a briefing that is too long", "", ry::Threads, ry::Processes) {
  const std::string text(ry::max_briefing_bytes + 1, 'x');
  CHECK_THROWS_WITH(TestType{}.start({.num_workers = 1, .briefing = text}, [](ry::WorkerLink&) {}),
                    ContainsSubstring("the briefing of the workers has 8193 bytes, the most is 8192"));
}

TEMPLATE_TEST_CASE("WorkerLink: knows after a restart what memory snapshots of all workers have already", "",
                   ry::Threads, ry::Processes) {
  auto group = TestType{}.start({.num_workers = 3}, [](ry::WorkerLink& link) {
    const auto there = [&](ry::SnapshotKind kind, std::size_t size) { return link.snapshot_memory(kind, size); };
    link.post(
        bytes_of(fmt::format("{} {} {}", there(ry::SnapshotKind::memory, 100'000),
                             there(ry::SnapshotKind::memory, 60'000), there(ry::SnapshotKind::checkpoint, 100'000))));
    if (link.briefing() == "again") return;
    static_cast<void>(link.take_snapshot(100'000, ry::SnapshotKind::memory));
    if (link.world().rank == 0) static_cast<void>(link.take_snapshot(80'000, ry::SnapshotKind::memory));
  });
  follow_to_end(*group);
  group->restart(2, "again");
  const Story story = follow_to_end(*group);
  for (const int rank : {0, 1}) CHECK(story.messages.at(rank) == std::vector<std::string>{"280000 180000 0"});
}

TEMPLATE_TEST_CASE("WorkerLink: refuses a snapshot for which there is no memory before it takes any (TRAPS 26)", "",
                   ry::Threads, ry::Processes) {
  constexpr std::size_t more_than_any_memory = std::size_t{1} << 50U;
  const SharedNumber arrivals;
  auto group = TestType{}.start({.num_workers = 2}, [&arrivals](ry::WorkerLink& link) {
    // What one wants is memory that the other cannot have.
    auto meet = [&, met = 0]() mutable {
      ++*arrivals;
      const ry::Deadline deadline = ry::Deadline::after(std::chrono::seconds{30});
      for (met += 2; *arrivals < met && !deadline.expired();) std::this_thread::yield();
    };
    constexpr auto kind = ry::SnapshotKind::checkpoint;
    const auto take = [&](std::size_t size) {
      try {
        const ry::Snapshot snapshot = link.take_snapshot(size, kind);
        link.drop_snapshot(snapshot.slot);
        return fmt::to_string(snapshot.slot);
      } catch (const ry::Error& error) {
        return std::string{error.what()};
      }
    };
    link.post(bytes_of(take(1000)));
    meet();
    link.post(bytes_of(take(more_than_any_memory)));
    link.post(bytes_of(link.snapshot_memory(kind, more_than_any_memory) <= 2000 ? "little" : "much"));
    meet();
    link.post(bytes_of(take(1000)));
  });
  const Story story = follow_to_end(*group);
  for (const int rank : {0, 1}) {
    const auto& told = story.messages.at(rank);
    REQUIRE(told.size() == 4);
    CHECK(told[0] == "0");
    CHECK_THAT(told[1], ContainsSubstring("does not fit into memory: the 2 workers of this process need ") &&
                            ContainsSubstring("MiB are free") && ContainsSubstring("give the job more memory"));
    CHECK(told[2] == "little");
    CHECK((told[3] == "0" || told[3] == "1"));
  }
}

TEST_CASE("Threads: make memory for a snapshot when it is taken, and Processes before they fork") {
  const auto count_files = [] {
    std::error_code gone;
    return std::count_if(std::filesystem::directory_iterator{"/proc/self/fd"}, {}, [&](const auto& entry) {
      return std::filesystem::read_symlink(entry.path(), gone).string().find("railyard-snapshot") != std::string::npos;
    });
  };
  const auto before = count_files();
  const auto take_one = [](ry::WorkerLink& link) {
    if (link.world().rank == 0) static_cast<void>(link.take_snapshot(100'000, ry::SnapshotKind::checkpoint));
  };
  auto threads = ry::Threads{}.start({.num_workers = 2, .briefing = "nothing"}, [&](ry::WorkerLink& link) {
    if (link.briefing() == "one") take_one(link);
  });
  follow_to_end(*threads);
  CHECK(count_files() == before);
  threads->restart(2, "one");
  follow_to_end(*threads);
  CHECK(count_files() == before + 1);
  threads.reset();
  CHECK(count_files() == before);
  auto processes = ry::Processes{}.start({.num_workers = 2}, [](ry::WorkerLink&) {});
  CHECK(count_files() == before + 2 * ry::num_snapshot_slots);
  follow_to_end(*processes);
}

TEST_CASE("Processes: core dumps of a worker hold neither pages nor snapshots of all ranks (TRAPS 26)") {
  auto group = ry::Processes{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    const ry::Snapshot snapshot = link.take_snapshot(100'000, ry::SnapshotKind::checkpoint);
    const bool is_lean = is_left_out_of_core_dumps(&link.page()) && is_left_out_of_core_dumps(snapshot.bytes.data());
    link.post(bytes_of(is_lean && !is_left_out_of_core_dumps(&is_lean) ? "lean" : "fat"));
  });
  const Story story = follow_to_end(*group);
  for (int rank = 0; rank < 2; ++rank) CHECK(story.messages.at(rank) == std::vector<std::string>{"lean"});
}
