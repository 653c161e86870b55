// SPDX-License-Identifier: MIT
#include "railyard/core/detail/heap.hpp"

#include "support/catch.hpp"

#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20U;

std::shared_ptr<ry::detail::Heap> make_heap(std::size_t size = 256 * mib, std::size_t max_cached = ~std::size_t{0}) {
  auto heap = ry::detail::make_private_heap(size, max_cached);
  REQUIRE(heap != nullptr);
  return heap;
}

// Of the pages from memory on, how many are there.
std::size_t resident_pages(void* memory, std::size_t size_bytes) {
  auto* from = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory) + 4095U) / 4096U * 4096U);
  std::vector<unsigned char> pages(size_bytes / 4096 - 1);
  REQUIRE(::mincore(from, pages.size() * 4096, pages.data()) == 0);
  std::size_t found = 0;
  for (const unsigned char page : pages) found += page & 1U;
  return found;
}

}  // namespace

TEST_CASE("Heap: blocks are aligned, of at least the size, and do not overlap") {
  const auto heap = make_heap();
  std::vector<std::pair<std::byte*, std::size_t>> blocks;
  std::mt19937 random{1};
  for (std::size_t i = 0; i < 2000; ++i) {
    const std::size_t size = 1 + random() % (i % 10 == 0 ? 100'000U : 500U);
    auto* block = static_cast<std::byte*>(heap->allocate(size));
    REQUIRE(block != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
    CHECK(heap->contains(block));
    std::memset(block, static_cast<int>(i % 251), size);
    blocks.emplace_back(block, size);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto [block, size] = blocks[i];
    const bool is_untouched = std::all_of(block, block + size, [i](std::byte b) { return b == std::byte(i % 251); });
    if (!is_untouched) FAIL("block " << i << " was written to through another one");
    heap->deallocate(block);
  }
  CHECK(heap->statistics().in_use_bytes == 0);
  CHECK(heap->statistics().allocations == 2000);
  CHECK_FALSE(heap->contains(&heap));
}

TEST_CASE("Heap: nothing is given for nothing, and no more than there is") {
  const auto heap = make_heap(64 * mib);
  CHECK(heap->allocate(0) == nullptr);
  CHECK(heap->allocate(65 * mib) == nullptr);
  CHECK(heap->allocate(~std::size_t{0}) == nullptr);
  heap->deallocate(nullptr);
  std::vector<void*> blocks;
  while (void* block = heap->allocate(mib)) blocks.push_back(block);
  CHECK(blocks.size() == 63);
  CHECK(heap->statistics().exhausted == 3);
  for (void* block : blocks) heap->deallocate(block);
  void* all = heap->allocate(63 * mib);  // the pieces are one again
  CHECK(all != nullptr);
  heap->deallocate(all);
}

TEST_CASE("Heap: a step that repeats takes the same blocks again, whatever their sizes") {
  const auto heap = make_heap();
  const auto step = [&heap] {
    std::vector<void*> blocks;
    for (const std::size_t size : {100U, 3'000'001U, 64U, 1'000'003U, 777'777U, 4096U}) {
      blocks.push_back(heap->allocate(size));
    }
    for (void* block : blocks) heap->deallocate(block);
    return blocks;
  };
  const auto first = step();
  const auto held = heap->statistics().held_bytes;
  for (int i = 0; i < 100; ++i) step();
  CHECK(heap->statistics().held_bytes == held);
  CHECK(heap->statistics().peak_bytes < held + 4096);
}

TEST_CASE("Heap: random sizes do not make it grow without bound") {
  const auto heap = make_heap(std::size_t{4096} * mib);
  std::mt19937_64 random{7};
  std::vector<std::pair<void*, std::size_t>> blocks;
  std::size_t in_use = 0;
  for (int i = 0; i < 200'000; ++i) {
    while (in_use > 64 * mib) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      heap->deallocate(blocks.back().first);
      in_use -= blocks.back().second;
      blocks.pop_back();
    }
    const std::size_t size = std::size_t{1} << (random() % 22U);
    const std::size_t some = size + random() % size;
    blocks.emplace_back(heap->allocate(some), some);
    REQUIRE(blocks.back().first != nullptr);
    in_use += some;
  }
  CHECK(heap->statistics().in_use_bytes >= in_use);
  CHECK(heap->statistics().held_bytes < 128 * mib);  // twice of what was ever in use
  for (const auto& block : blocks) heap->deallocate(block.first);
  CHECK(heap->statistics().in_use_bytes == 0);
}

TEST_CASE("Heap: trim gives the pages of free blocks back, and they are there again when needed") {
  const auto heap = make_heap();
  void* keep = heap->allocate(mib);
  void* block = heap->allocate(32 * mib);
  void* last = heap->allocate(64);
  std::memset(block, 1, 32 * mib);
  std::memset(keep, 2, mib);
  CHECK(resident_pages(block, 32 * mib) > 8000);
  heap->deallocate(block);
  CHECK(heap->statistics().held_bytes > 32 * mib);
  heap->trim();
  CHECK(resident_pages(block, 32 * mib) < 10);
  CHECK(heap->statistics().held_bytes < 2 * mib);
  CHECK(static_cast<unsigned char*>(keep)[mib - 1] == 2);
  void* again = heap->allocate(32 * mib);
  CHECK(again == block);
  std::memset(again, 3, 32 * mib);
  CHECK(heap->statistics().held_bytes > 32 * mib);
  for (void* one : {again, keep, last}) heap->deallocate(one);
}

TEST_CASE("Heap: more than the bound is not kept") {
  const auto heap = make_heap(256 * mib, 8 * mib);
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(heap->allocate(4 * mib));
  for (void* block : blocks) {
    std::memset(block, 1, 4 * mib);
    heap->deallocate(block);
    CHECK(heap->statistics().held_bytes - heap->statistics().in_use_bytes <= 8 * mib);
  }
}

TEST_CASE("Heap: blocks outlive its owner, and are given back by any thread") {
  void* block = nullptr;
  std::weak_ptr<ry::detail::Heap> watched;
  std::thread{[&] {
    const auto heap = make_heap();
    watched = heap;
    block = heap->allocate(1000);
  }}.join();
  CHECK_FALSE(watched.expired());
  std::memset(block, 1, 1000);
  ry::detail::Heap::give_back(block);
  CHECK(watched.expired());
}

TEST_CASE("Heap: many threads allocate, and free what others have allocated") {
  const auto heap = make_heap();
  std::mutex mutex;
  std::vector<std::pair<unsigned char*, std::size_t>> shared;
  std::vector<std::thread> threads;
  std::atomic<int> num_wrong{0};
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random{number};
      for (int i = 0; i < 5000; ++i) {
        const std::size_t size = 1 + random() % 5000;
        auto* block = static_cast<unsigned char*>(heap->allocate(size));
        std::memset(block, static_cast<int>(size % 251), size);
        const std::lock_guard lock{mutex};
        shared.emplace_back(block, size);
        std::swap(shared[random() % shared.size()], shared.back());
        if (shared.size() < 100) continue;
        const auto [other, other_size] = shared.back();
        shared.pop_back();
        if (other[0] != other_size % 251 || other[other_size - 1] != other_size % 251) ++num_wrong;
        heap->deallocate(other);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(num_wrong == 0);
  for (const auto& one : shared) heap->deallocate(one.first);
  CHECK(heap->statistics().in_use_bytes == 0);
}

TEST_CASE("Heap: a forked child neither takes nor gives, in memory that it shares with its parent") {
  constexpr std::size_t size_bytes = std::size_t{1} << 20U;
  void* memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const std::shared_ptr<const void> mapping{memory, [](void* mapped) { ::munmap(mapped, size_bytes); }};
  const auto heap = std::make_shared<ry::detail::Heap>(static_cast<std::byte*>(memory), size_bytes, mapping, true);
  void* block = heap->allocate(1000);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    heap->deallocate(block);
    heap->trim();
    ::_exit(heap->allocate(1000) == nullptr && heap->statistics().in_use_bytes == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(heap->statistics().in_use_bytes >= 1000);
  void* next = heap->allocate(1000);
  REQUIRE(next != nullptr);
  REQUIRE(next != block);
  heap->deallocate(next);
  heap->deallocate(block);
  REQUIRE(heap->statistics().in_use_bytes == 0);
}
