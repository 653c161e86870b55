// SPDX-License-Identifier: MIT
// Snapshots where memory is short: what is there is used again, and a save waits for it.
#include "railyard/workers/detail/worker_link.hpp"
#include "railyard/workers/processes.hpp"

#include "support.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace workers_test;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20U;

// Workers that are asked for snapshots by the test, and a host that has so much memory for them.
struct ShortOfMemory {
  std::size_t all;
  ry::detail::GroupMemory memory;
  std::vector<std::unique_ptr<ry::detail::SharedLink>> links{};
  std::atomic<int> num_saved{0};

  explicit ShortOfMemory(std::size_t bytes, int num_workers = 1)
      : all(bytes), memory(num_workers, {}, 0, ry::detail::SharedBy::threads) {
    memory.free_memory = [this] {
      const std::size_t taken = used();
      return all - std::min(all, taken);
    };
    for (int rank = 0; rank < num_workers; ++rank) {
      links.push_back(
          std::make_unique<ry::detail::SharedLink>(memory, rank, -1, memory.rank(rank).agent, std::string{"host"}));
    }
  }

  std::size_t used() const {
    std::size_t bytes = 0;
    for (int rank = 0; rank < memory.num_workers(); ++rank) {
      for (int slot = 0; slot < ry::num_snapshot_slots; ++slot) bytes += memory.snapshot_size(rank, slot);
    }
    return bytes;
  }

  // Saves as a worker does; the supervisor has the snapshot then, until it gives it back.
  int save(std::size_t size_bytes, int rank = 0, ry::SnapshotKind kind = ry::SnapshotKind::checkpoint) {
    const ry::Snapshot snapshot = links[static_cast<std::size_t>(rank)]->take_snapshot(size_bytes, kind);
    std::fill(snapshot.bytes.begin(), snapshot.bytes.end(), static_cast<std::byte>(++num_saved));
    memory.hold_snapshot(rank, snapshot.slot);
    return snapshot.slot;
  }
  int write(std::size_t size_bytes, int rank = 0) {
    const int slot = save(size_bytes, rank);
    memory.release_snapshot(rank, slot);
    return slot;
  }
};

}  // namespace

TEST_CASE("Snapshots: what an earlier start has left is read from any place, and no more than there is") {
  ShortOfMemory host{8 * mebibyte};
  const int slot = host.save(mebibyte);
  std::vector<std::byte> bytes(3);
  host.links[0]->read_snapshot(0, slot, mebibyte - 3, bytes);
  CHECK(bytes == std::vector<std::byte>(3, std::byte{1}));
  CHECK_THROWS_WITH(host.links[0]->read_snapshot(0, slot, mebibyte - 2, bytes),
                    ContainsSubstring("has 1048576 bytes, and 3 from byte 1048574 on were to be read"));
  CHECK_THROWS_AS(host.links[0]->read_snapshot(0, slot + 1, 0, bytes), ry::Error);
}

TEST_CASE("Snapshots: where memory has room for one, the next save waits until it is given back, and takes it") {
  ShortOfMemory host{3 * mebibyte};
  CHECK(host.save(2 * mebibyte) == 0);
  std::promise<void> looked;
  host.memory.free_memory = [&, tell = true]() mutable {
    if (std::exchange(tell, false)) looked.set_value();
    return mebibyte;
  };
  auto next = std::async(std::launch::async, [&] { return host.save(2 * mebibyte); });
  REQUIRE(looked.get_future().wait_for(30s) == std::future_status::ready);
  CHECK(host.memory.snapshot(0, 0, 1)[0] == std::byte{1});
  host.memory.release_snapshot(0, 0);
  REQUIRE(next.wait_for(30s) == std::future_status::ready);
  CHECK(next.get() == 0);
  CHECK(host.memory.snapshot(0, 0, 1)[0] == std::byte{2});
  CHECK(host.used() == 2 * mebibyte);
}

TEST_CASE("Snapshots: a save that waits for memory ends with the group") {
  ShortOfMemory host{3 * mebibyte};
  CHECK(host.save(2 * mebibyte) == 0);
  auto next = std::async(std::launch::async, [&] { return host.save(2 * mebibyte); });
  host.memory.abort("a test");
  REQUIRE(next.wait_for(30s) == std::future_status::ready);
  CHECK_THROWS_WITH(next.get(), ContainsSubstring("the group has been ended: a test"));
}

TEST_CASE("Snapshots: two are used again where memory has room for both") {
  ShortOfMemory host{5 * mebibyte};
  for (const int slot : {0, 1, 0, 1}) CHECK(host.write(2 * mebibyte) == slot);
  CHECK(host.used() == 4 * mebibyte);
}

TEST_CASE("Snapshots: one that has grown takes the memory of the other one where there is no more") {
  ShortOfMemory host{5 * mebibyte};
  for (const int slot : {0, 1}) CHECK(host.write(2 * mebibyte) == slot);
  for (int i = 0; i < 3; ++i) CHECK(host.write(4 * mebibyte) == 0);
  CHECK(host.used() == 4 * mebibyte);
  CHECK_THROWS_WITH(host.write(6 * mebibyte), ContainsSubstring("does not fit into memory: the 1 workers"));
  CHECK(host.used() == 4 * mebibyte);
  host.all = 9 * mebibyte;  // there is more again
  CHECK(host.write(4 * mebibyte) != host.write(4 * mebibyte));
  CHECK(host.used() == 8 * mebibyte);
}

TEST_CASE("Snapshots: each of many workers gives its own memory for one that has grown") {
  ShortOfMemory host{17 * mebibyte, 4};
  for (int round = 0; round < 2; ++round) {
    for (const int rank : {0, 1, 2, 3}) host.write(2 * mebibyte, rank);
  }
  CHECK(host.used() == 16 * mebibyte);
  for (int round = 0; round < 2; ++round) {
    for (const int rank : {0, 1, 2, 3}) CHECK(host.write(4 * mebibyte, rank) == 0);
  }
  CHECK(host.used() == 16 * mebibyte);
}

TEST_CASE("Snapshots: what one worker has more of than the others has to fit once") {
  ShortOfMemory host{9 * mebibyte, 8};
  host.memory.patience = 1ms;
  CHECK_THROWS_AS(host.write(4 * mebibyte), ry::Error);  // for all that is known, each wants as much
  for (int rank = 1; rank < 8; ++rank) host.write(4096, rank);
  CHECK(host.write(4 * mebibyte) >= 0);
  CHECK(host.write(4 * mebibyte) >= 0);
  CHECK(host.used() >= 8 * mebibyte);
}

TEST_CASE("Snapshots: the first save of a large part waits for the other ranks to say how much they want") {
  ShortOfMemory host{3 * mebibyte, 2};
  std::atomic<int> num_looks{0};
  host.memory.free_memory = [&] {
    ++num_looks;
    return host.all - host.used();
  };
  auto first = std::async(std::launch::async, [&] { return host.write(2 * mebibyte); });
  while (num_looks < 10 && first.wait_for(1ms) != std::future_status::ready) {  // it looks again and again
  }
  CHECK(host.write(4096, 1) == 0);
  REQUIRE(first.wait_for(30s) == std::future_status::ready);
  CHECK(first.get() == 0);
}

TEST_CASE("Snapshots: a first save that waits for the word of others ends with the group") {
  ShortOfMemory host{3 * mebibyte, 2};
  host.memory.patience = std::chrono::hours{1};
  auto first = std::async(std::launch::async, [&] { return host.write(2 * mebibyte); });
  host.memory.abort("a test");
  REQUIRE(first.wait_for(30s) == std::future_status::ready);
  CHECK_THROWS_WITH(first.get(), ContainsSubstring("the group has been ended: a test"));
}

TEST_CASE("Snapshots: what was refused to one worker is not kept free for it") {
  ShortOfMemory host{4 * mebibyte, 2};
  CHECK_THROWS_AS(host.write(100 * mebibyte), ry::Error);
  CHECK(host.write(mebibyte, 1) == 0);
  CHECK(host.write(mebibyte) >= 0);
}

TEST_CASE("Snapshots: a copy is not waited for, which is held until there is a newer one") {
  ShortOfMemory host{3 * mebibyte};
  CHECK(host.save(2 * mebibyte, 0, ry::SnapshotKind::memory) == ry::num_snapshots);
  CHECK_THROWS_WITH(host.save(2 * mebibyte, 0, ry::SnapshotKind::memory), ContainsSubstring("does not fit"));
}

TEST_CASE("Snapshots: memory that the system gives a part of is given back, and what is there is waited for") {
  constexpr std::size_t size = 40 * mebibyte;  // more than is asked for at once
  auto group = ry::Processes{}.start({.num_workers = 1}, [](ry::WorkerLink& link) {
    const auto save = [&](char mark) {
      const ry::Snapshot snapshot = link.take_snapshot(size, ry::SnapshotKind::checkpoint);
      snapshot.bytes[0] = static_cast<std::byte>(mark);
      const std::size_t there = link.snapshot_memory(ry::SnapshotKind::checkpoint, size);
      link.post(bytes_of(fmt::format("slot {}, {} MiB", snapshot.slot, there / mebibyte)));
    };
    save('1');
    const FileSizeLimit limit{20 * mebibyte};
    link.post(bytes_of("next"));
    save('2');
  });
  Story story;
  follow(*group, story, [&] { return story.messages[0].size() == 2; });
  CHECK(group->snapshot(0, 0, 0, size)[0] == std::byte{'1'});
  group->release_snapshot(0, 0);
  follow(*group, story, [&] { return story.messages[0].size() == 3; });
  CHECK(group->snapshot(0, 0, 0, size)[0] == std::byte{'2'});
  follow(*group, story, [] { return false; });
  CHECK(story.messages[0] == std::vector<std::string>{"slot 0, 40 MiB", "next", "slot 0, 40 MiB"});
}
