// SPDX-License-Identifier: MIT
// The memory that the workers of one group and their supervisor share. Workers room.
#pragma once

#include "railyard/workers/detail/message_ring.hpp"
#include "railyard/workers/detail/shared_store.hpp"
#include "railyard/workers/detail/snapshot_memory.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/memory_left.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>

namespace railyard::inline v0_1 {
namespace detail {

// The memory of these blocks is all zero when they are made. Their large arrays are left as they are then: each page
// that is touched costs a microsecond of the start.

/// Is shared by one worker and the supervisor.
struct alignas(64) RankBlock {
  WorkerPage page{};
  alignas(64) std::atomic<std::uint32_t> agent{0};  ///< a futex: moves when the worker's agent has to look
  std::atomic<std::uint64_t> heartbeat{0};
  std::atomic<std::uint32_t> life{0};           ///< a futex, which the kernel marks when the worker dies: see DeathMark
  std::atomic<std::uint32_t> stacks_wanted{0};  ///< counts how often the worker was asked for its stack
  std::atomic<std::uint32_t> stacks_told{0};    ///< a futex: which of these questions it has answered
  RingState ring{};
  std::uint32_t stack_size = 0;
  char stack[8192];

  [[nodiscard]] static bool is_death(std::uint32_t life) noexcept { return (life & FUTEX_OWNER_DIED) != 0; }
};

/// Says whose a rank's snapshots are, and how large it wants them. Beside what a restart forgets.
struct alignas(64) SnapshotOwners {
  static constexpr std::uint32_t nobody = 0;
  static constexpr std::uint32_t worker = 1;
  static constexpr std::uint32_t supervisor = 2;
  std::array<std::atomic<std::uint32_t>, num_snapshot_slots> slots{};  ///< futexes
  /// Of each kind, the last one's bytes; 0: none yet.
  std::array<std::atomic<std::uint64_t>, num_snapshot_slots / num_snapshots> wanted{};
};

/// Is shared by all workers and the supervisor. The reason is written before `aborted` and never changes after.
struct GroupBlock {
  alignas(64) Bell bell{};
  alignas(64) std::atomic<bool> aborted{false};
  std::atomic<bool> closed{false};  ///< nobody reads messages any more
  int num_workers = 0;
  std::uint32_t reason_size = 0;
  std::uint32_t briefing_size = 0;
  char briefing[max_briefing_bytes];
  char reason[4096];
  StoreBlock store;
};

/// Says who uses the memory of a group: what processes are to have in common must be there before they are.
enum class SharedBy { threads, processes };

/// Raises the limit of descriptors of this process for so many workers, where it must. Throws: ConfigError if the hard
/// limit does not allow it.
inline void prepare_descriptors(int num_workers, int num_per_worker) {
  std::error_code error;
  const std::filesystem::directory_iterator entries{"/proc/self/fd", error};
  const auto num_open = static_cast<rlim_t>(std::distance(begin(entries), end(entries)));
  const rlim_t needed = num_open + static_cast<rlim_t>(num_per_worker) * static_cast<rlim_t>(num_workers) + 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur) return;
  if (needed > limit.rlim_max) {
    throw ConfigError{compose(
        "start: {} workers need up to {} descriptors in this process, {} are open, and the hard limit is {}: raise it "
        "(ulimit -Hn, LimitNOFILE, nofile in limits.conf), close some, or use fewer workers",
        num_workers, needed - num_open, num_open, limit.rlim_max)};
  }
  limit.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Owns the mapping. Its pages cost nothing until they are touched; it is made before any fork, so that every process
/// has it at the same address, and it disappears with the last of them.
class GroupMemory {
 public:
  /// most_workers: how many there may be after a restart, if those are more.
  explicit GroupMemory(int num_workers, std::string_view briefing = {}, int most_workers = 0,
                       SharedBy users = SharedBy::processes)
      : users_(users),
        capacity_(std::max(num_workers, most_workers)),
        snapshots_(static_cast<std::size_t>(capacity_) * num_snapshot_slots) {
    check(briefing);
    for (auto& snapshot : snapshots_) {
      if (users == SharedBy::processes) snapshot.make_file();
    }
    const int kind = users == SharedBy::threads ? MAP_PRIVATE : MAP_SHARED;  // private pages cost half as much
    base_ = ::mmap(nullptr, size(), PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) {
      throw_system(compose("start: mapping {} bytes that {} workers share", size(), capacity_), errno);
    }
    ::madvise(base_, size(), MADV_DONTDUMP);  // a core dump of a worker would hold everybody's messages
    for (int at = 0; at < capacity_; ++at) ::new (bytes_at(owners_offset(at))) SnapshotOwners;
    begin(num_workers, briefing);
  }
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;
  ~GroupMemory() { ::munmap(base_, size()); }

  /// Forgets everything but the snapshots that the supervisor holds, for so many workers, at most as many as it was
  /// made for. Nobody else may be using the memory, but for those who give snapshots back.
  void reset(int num_workers, std::string_view briefing) {
    check(briefing);
    const int advice = users_ == SharedBy::threads ? MADV_DONTNEED : MADV_REMOVE;
    if (::madvise(base_, owners_offset(0), advice) != 0) std::memset(base_, 0, owners_offset(0));
    for (int at = 0; at < capacity_; ++at) {
      for (auto& owner : owners(at).slots) {
        std::uint32_t of_dead = SnapshotOwners::worker;
        owner.compare_exchange_strong(of_dead, SnapshotOwners::nobody);
      }
    }
    begin(num_workers, briefing);
  }

  [[nodiscard]] SharedBy users() const noexcept { return users_; }
  [[nodiscard]] int num_workers() const noexcept { return group().num_workers; }
  /// The most that there can be.
  [[nodiscard]] int capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::string_view briefing() const noexcept { return {group().briefing, group().briefing_size}; }
  /// The memory of a snapshot, at least so large. Belongs to the worker or to the supervisor, never to both.
  [[nodiscard]] std::span<std::byte> snapshot(int of_rank, int slot, std::size_t size_bytes) {
    return snapshots_[static_cast<std::size_t>(of_rank * num_snapshot_slots + slot)].map(size_bytes);
  }
  /// Reads from it without a mapping, for a worker that goes on from it. Throws: Error if there is less.
  void read_snapshot(int of_rank, int slot, std::size_t begin, std::span<std::byte> to) const {
    snapshots_[static_cast<std::size_t>(of_rank * num_snapshot_slots + slot)].read(begin, to);
  }
  /// The same for the supervisor, who reads it. Throws: Error if the snapshot is nobody's, as in memory that is new.
  [[nodiscard]] std::span<const std::byte> filled_snapshot(int of_rank, int slot, std::size_t size_bytes) {
    if (owner(of_rank, slot).load() != SnapshotOwners::nobody) return snapshot(of_rank, slot, size_bytes);
    throw Error{compose("snapshot {} of rank {} of this process holds nothing", slot, of_rank)};
  }
  /// The same if it is nobody's, and that large; nothing otherwise.
  [[nodiscard]] std::span<const std::byte> left_snapshot(int of_rank, int slot, std::size_t size_bytes) {
    const bool is_left = owner(of_rank, slot).load() == SnapshotOwners::nobody;
    return is_left && snapshot_size(of_rank, slot) >= size_bytes ? snapshot(of_rank, slot, size_bytes)
                                                                 : std::span<const std::byte>{};
  }
  /// How much memory there is already for snapshots of the kind, of all workers together, if each is to be so large.
  [[nodiscard]] std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept {
    std::size_t all = 0;
    for (int of_rank = 0; of_rank < num_workers(); ++of_rank) {
      const int first = of_rank * num_snapshot_slots + static_cast<int>(kind) * num_snapshots;
      for (int at = first; at < first + num_snapshots; ++at) {
        all += std::min(size_bytes, snapshots_[static_cast<std::size_t>(at)].size());
      }
    }
    return all;
  }
  /// Returns what a rank's snapshot has of memory.
  [[nodiscard]] std::size_t snapshot_size(int of_rank, int slot) const noexcept {
    return snapshots_[static_cast<std::size_t>(of_rank * num_snapshot_slots + slot)].size();
  }
  /// Says to the other ranks how large one wants its snapshots of a kind to be.
  void want_snapshot(int of_rank, SnapshotKind kind, std::size_t size_bytes) const noexcept {
    wanted(of_rank, static_cast<int>(kind)).store(size_bytes);
  }
  /// Gives the memory of the others of a rank's kind back, none of which is used.
  void empty_others(int of_rank, int slot) noexcept {
    for (const int other : others_of(slot)) {
      snapshots_[static_cast<std::size_t>(of_rank * num_snapshot_slots + other)].empty();
    }
  }
  /// Says why the snapshots of all workers, which take them at the same time, would not fit into memory; empty if they
  /// do. Memory that is promised and not there ends programs instead of calls. of_untold: what ranks want that have not
  /// said it yet. is_sole: each has given the memory of its other ones back. Cost: where it has to grow, 0.1 ms.
  [[nodiscard]] std::string lack_of_memory(int of_rank, int slot, std::size_t size_bytes, std::size_t of_untold,
                                           bool is_sole = false) const {
    if (snapshot_size(of_rank, slot) >= size_bytes) return {};
    std::size_t growth = 0;
    std::size_t left = free_memory();
    for (int rank = 0; rank < num_workers(); ++rank) {
      const std::uint64_t other_size = wanted(rank, slot / num_snapshots).load();
      const std::size_t untold_or_other = other_size == 0 ? of_untold : other_size;
      const std::size_t size = rank == of_rank ? size_bytes : untold_or_other;
      growth += size - std::min(size, snapshot_size(rank, slot));
      for (const int other : others_of(slot)) left += is_sole ? snapshot_size(rank, other) : 0;
    }
    if (growth <= left) return {};
    return compose(
        "the {} workers of this process need {} MiB for it, and {} MiB are free (see memory.max, or "
        "memory.limit_in_bytes, where this is a container)",
        num_workers(), growth >> 20U, left >> 20U);
  }
  /// Whether every rank has said how large it wants its snapshots of a kind to be.
  [[nodiscard]] bool has_everyone_told(SnapshotKind kind) const noexcept {
    for (int rank = 0; rank < num_workers(); ++rank) {
      if (wanted(rank, static_cast<int>(kind)).load() == 0) return false;
    }
    return true;
  }
  [[nodiscard]] std::atomic<std::uint32_t>& owner(int of_rank, int slot) const noexcept {
    return owners(of_rank).slots[static_cast<std::size_t>(slot)];
  }
  void hold_snapshot(int of_rank, int slot) const noexcept { owner(of_rank, slot).store(SnapshotOwners::supervisor); }
  void release_snapshot(int of_rank, int slot) const noexcept {
    auto& word = owner(of_rank, slot);
    word.store(SnapshotOwners::nobody);
    futex_wake(word);
  }

  /// How long a rank that would be refused memory waits for others to say how much they want.
  std::chrono::nanoseconds patience = std::chrono::seconds{5};
  /// Tells the bytes that snapshots may still take.
  std::function<std::size_t()> free_memory = [] { return memory_and_swap_free(); };

  [[nodiscard]] GroupBlock& group() const noexcept { return *std::launder(static_cast<GroupBlock*>(base_)); }
  [[nodiscard]] RankBlock& rank(int rank) const noexcept {
    return *std::launder(reinterpret_cast<RankBlock*>(bytes_at(rank_offset(rank))));
  }
  [[nodiscard]] MessageRing ring(int of_rank) const noexcept {
    return {rank(of_rank).ring, bytes_at(rings_offset() + static_cast<std::size_t>(of_rank) * ring_bytes)};
  }
  [[nodiscard]] SharedTable store() const noexcept { return {group().store, bytes_at(store_offset())}; }

  [[nodiscard]] bool is_aborted() const noexcept { return group().aborted.load(); }
  [[nodiscard]] std::string_view reason() const noexcept { return {group().reason, group().reason_size}; }

  void request_stop() noexcept {
    for (int at = 0; at < num_workers(); ++at) rank(at).page.stop_requested.store(true);
  }

  void request_resize() noexcept {
    for (int at = 0; at < num_workers(); ++at) rank(at).page.resize_requested.store(true);
  }

  void request_leave() noexcept {
    for (int at = 0; at < num_workers(); ++at) rank(at).page.leave_requested.store(true);
    request_stop();
  }

  /// Makes every wait of every worker that goes through this memory end. Only the first reason counts.
  void abort(std::string_view reason) noexcept {
    GroupBlock& block = group();
    if (!block.aborted.load()) {
      const std::size_t size = std::min(reason.size(), sizeof block.reason);
      if (size > 0) std::memcpy(block.reason, reason.data(), size);
      block.reason_size = static_cast<std::uint32_t>(size);
      block.aborted.store(true);
    }
    for (int at = 0; at < num_workers(); ++at) {
      nudge(rank(at).agent);
      futex_wake(rank(at).ring.writer_waits);
      for (const auto& word : owners(at).slots) futex_wake(word);
    }
    store().wake_all();
  }

 private:
  static void check(std::string_view briefing) {
    if (briefing.size() <= max_briefing_bytes) return;
    throw ConfigError{compose("start: the briefing of the workers has {} bytes, the most is {}", briefing.size(),
                              max_briefing_bytes)};
  }

  void begin(int num_workers, std::string_view briefing) {
    auto* group = ::new (base_) GroupBlock;
    group->num_workers = num_workers;
    for (int at = 0; at < capacity_; ++at) ::new (bytes_at(rank_offset(at))) RankBlock;
    briefing.copy(group->briefing, briefing.size());
    group->briefing_size = static_cast<std::uint32_t>(briefing.size());
  }

  static constexpr std::size_t page_up(std::size_t size) noexcept { return (size + 4095U) / 4096U * 4096U; }
  static constexpr std::size_t rank_offset(int rank) noexcept {
    return page_up(sizeof(GroupBlock)) + static_cast<std::size_t>(rank) * sizeof(RankBlock);
  }
  [[nodiscard]] std::size_t rings_offset() const noexcept { return page_up(rank_offset(capacity_)); }
  [[nodiscard]] std::size_t store_offset() const noexcept {
    return rings_offset() + static_cast<std::size_t>(capacity_) * ring_bytes;
  }
  [[nodiscard]] std::size_t owners_offset(int rank) const noexcept {
    return page_up(store_offset() + StoreBlock::num_bytes) + static_cast<std::size_t>(rank) * sizeof(SnapshotOwners);
  }
  [[nodiscard]] std::size_t size() const noexcept { return page_up(owners_offset(capacity_)); }
  [[nodiscard]] SnapshotOwners& owners(int rank) const noexcept {
    return *std::launder(reinterpret_cast<SnapshotOwners*>(bytes_at(owners_offset(rank))));
  }
  [[nodiscard]] std::atomic<std::uint64_t>& wanted(int rank, int kind) const noexcept {
    return owners(rank).wanted[static_cast<std::size_t>(kind)];
  }
  // The slots of the same kind.
  [[nodiscard]] static std::array<int, num_snapshots - 1> others_of(int slot) noexcept {
    static_assert(num_snapshots == 2);
    return {slot ^ 1};
  }
  [[nodiscard]] std::byte* bytes_at(std::size_t offset) const noexcept {
    return static_cast<std::byte*>(base_) + offset;
  }

  SharedBy users_;
  int capacity_;
  void* base_ = nullptr;
  std::vector<SnapshotMemory> snapshots_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
