// SPDX-License-Identifier: MIT
// Gives out blocks of one range of memory, such as one that several processes map. Core room.
#pragma once

#include "railyard/core/pool_statistics.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

namespace railyard::inline v0_1 {

namespace detail {

/// Is held for some dozen instructions, also by threads that are more than the cores.
class SpinLock {
 public:
  void lock() noexcept {
    for (int spin = 0; is_taken_.exchange(true, std::memory_order_acquire); ++spin) {
      if (spin >= 64) ::sched_yield();
    }
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_taken_{false};
};

/// Knows whether this is the process that made it, or a copy in a child that was forked later. Asking costs one load.
class HomeMark {
 public:
  HomeMark() noexcept
      : page_(::mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED) return;
    if (::madvise(page_, size_bytes(), MADV_WIPEONFORK) == 0) {
      ::new (page_) unsigned char{1};
    } else {  // a kernel before 4.14, or none: nothing is known
      ::munmap(page_, size_bytes());
      page_ = MAP_FAILED;
    }
  }
  HomeMark(const HomeMark&) = delete;
  HomeMark& operator=(const HomeMark&) = delete;
  ~HomeMark() {
    if (page_ != MAP_FAILED) ::munmap(page_, size_bytes());
  }

  [[nodiscard]] bool is_home() const noexcept {
    return page_ == MAP_FAILED || *static_cast<const unsigned char*>(page_) != 0;
  }

 private:
  [[nodiscard]] static std::size_t size_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

  void* page_;
};

/// Gives out blocks of one range of memory, aligned to 64 bytes. Free neighbours are joined at once; a request takes
/// the block that was freed last among those of its size, or else one of the smallest that fit ("two-level segregated
/// fit", Masmano et al. 2004). Pages become real as they are used for the first time.
/// Any thread may give a block back, also after the owner has let go of the heap, which lives as long as its last
/// block. In a child that was forked later it gives out nothing and takes nothing back: the memory may be shared with
/// the process that it belongs to. Cost: some ten nanoseconds.
class Heap : public std::enable_shared_from_this<Heap> {
 public:
  static constexpr std::size_t alignment = 64;

  /// base: aligned to 64 bytes. keeps_mapping: whatever must live as long as the range is used. is_shared: other
  /// processes map it, too. max_cached: above so many free bytes the pages of large free blocks go back to the system.
  Heap(std::byte* base, std::size_t size, std::shared_ptr<const void> keeps_mapping, bool is_shared,
       std::size_t max_cached = ~std::size_t{0})
      : keeps_mapping_(std::move(keeps_mapping)),
        begin_(base),
        end_(base + size / alignment * alignment),
        touched_(base),
        max_cached_(max_cached),
        is_shared_(is_shared) {
    ::madvise(page_up(begin_), static_cast<std::size_t>(page_down(end_) - page_up(begin_)), MADV_HUGEPAGE);
    auto* all = ::new (begin_) Block{};
    all->heap = this;
    all->size = static_cast<std::size_t>(end_ - begin_) - sizeof(Block);
    insert(*all);
  }
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap() = default;

  /// Returns a block of at least size_bytes, or nullptr if there is no room, or nothing was asked for.
  [[nodiscard]] void* allocate(std::size_t size_bytes) noexcept {
    if (size_bytes == 0 || !home_.is_home()) return nullptr;
    const bool fits = size_bytes <= static_cast<std::size_t>(end_ - begin_);
    const std::size_t size = (size_bytes + alignment - 1) / alignment * alignment;
    const std::lock_guard lock{lock_};
    Block* block = fits ? find(size) : nullptr;
    if (block == nullptr) {
      ++statistics_.exhausted;
      return nullptr;
    }
    remove(*block);
    split(*block, size);
    block->is_free = false;
    touched_ = std::max(touched_, end_of(*block));
    ++statistics_.allocations;
    statistics_.in_use_bytes += block->size;
    statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.in_use_bytes);
    if (num_blocks_++ == 0) self_ = weak_from_this().lock();
    return block->payload();
  }

  /// Gives a block of this heap back. nullptr is none.
  void deallocate(void* memory) noexcept {
    if (memory != nullptr) give_back(memory);
  }
  /// Gives a block back to the heap that it came from.
  static void give_back(void* memory) noexcept {
    Block& block = *std::launder(reinterpret_cast<Block*>(static_cast<std::byte*>(memory) - sizeof(Block)));
    block.heap->take_back(block);
  }

  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }
  [[nodiscard]] std::byte* end() const noexcept { return end_; }

  /// Keeps an object for as long as the heap lives.
  void keep(std::shared_ptr<const void> object) {
    const std::lock_guard lock{lock_};
    kept_.push_back(std::move(object));
  }

  [[nodiscard]] bool contains(const void* memory) const noexcept { return memory >= begin_ && memory < end_; }

  /// Gives the pages of free blocks back to the system.
  void trim() noexcept {
    if (!home_.is_home()) return;
    const std::lock_guard lock{lock_};
    release_pages();
  }

  /// All zero in a forked child, where the lock may be held by a thread that is not there.
  [[nodiscard]] std::size_t max_cached() const noexcept { return max_cached_; }
  [[nodiscard]] PoolStatistics statistics() const noexcept {
    if (!home_.is_home()) return {};
    const std::lock_guard lock{lock_};
    PoolStatistics statistics = statistics_;
    statistics.held_bytes = statistics.in_use_bytes + cached();
    return statistics;
  }

 private:
  static constexpr unsigned steps_log2 = 3;  // sizes of one list differ by an eighth at most
  static constexpr unsigned steps = 1U << steps_log2;
  static constexpr unsigned levels = 48;
  static constexpr std::size_t smallest_worth_releasing = std::size_t{128} << 10U;

  // Lies before the payload of every block. Free ones have their links in the payload.
  struct Block {
    Heap* heap = nullptr;
    std::size_t size = 0;       // of the payload
    Block* previous = nullptr;  // in memory
    bool is_free = true;
    bool is_clean = true;  // free, and its pages are not there
    std::array<std::byte, 38> padding{};

    [[nodiscard]] std::byte* payload() noexcept { return reinterpret_cast<std::byte*>(this) + sizeof(Block); }
  };
  static_assert(sizeof(Block) == alignment);
  struct Links {
    Block* next = nullptr;
    Block* previous = nullptr;
  };

  [[nodiscard]] static Links& links(Block& block) noexcept {
    return *std::launder(reinterpret_cast<Links*>(block.payload()));
  }
  [[nodiscard]] static std::byte* end_of(Block& block) noexcept { return block.payload() + block.size; }
  [[nodiscard]] Block* next_of(Block& block) const noexcept {
    std::byte* next = end_of(block);
    return next < end_ ? std::launder(reinterpret_cast<Block*>(next)) : nullptr;
  }
  [[nodiscard]] static std::byte* page_up(std::byte* at) noexcept {
    return at + (4096U - reinterpret_cast<std::uintptr_t>(at) % 4096U) % 4096U;
  }
  [[nodiscard]] static std::byte* page_down(std::byte* at) noexcept {
    return at - reinterpret_cast<std::uintptr_t>(at) % 4096U;
  }

  // The list for blocks of a size: level is its highest bit, step the three below.
  struct Place {
    unsigned level = 0;
    unsigned step = 0;
  };
  [[nodiscard]] static Place place_of(std::size_t size) noexcept {
    const auto level = static_cast<unsigned>(std::bit_width(size)) - 1;
    return {level, static_cast<unsigned>(size >> (level - steps_log2)) % steps};
  }

  void insert(Block& block) noexcept {
    const Place place = place_of(block.size);
    Block*& head = heads_[place.level][place.step];
    ::new (block.payload()) Links{.next = head, .previous = nullptr};
    if (head != nullptr) links(*head).previous = &block;
    head = &block;
    block.is_free = true;
    level_bits_ |= std::uint64_t{1} << place.level;
    step_bits_[place.level] = static_cast<std::uint8_t>(step_bits_[place.level] | 1U << place.step);
    if (block.is_clean) clean_ += clean_bytes(block);
  }

  void remove(Block& block) noexcept {
    if (block.is_clean) clean_ -= clean_bytes(block);
    const Place place = place_of(block.size);
    const Links old = links(block);
    if (old.next != nullptr) links(*old.next).previous = old.previous;
    if (old.previous != nullptr) {
      links(*old.previous).next = old.next;
      return;
    }
    heads_[place.level][place.step] = old.next;
    if (old.next != nullptr) return;
    step_bits_[place.level] = static_cast<std::uint8_t>(step_bits_[place.level] & ~(1U << place.step));
    if (step_bits_[place.level] == 0) level_bits_ &= ~(std::uint64_t{1} << place.level);
  }

  [[nodiscard]] Block* find(std::size_t size) const noexcept {
    // The list of this very size holds smaller ones as well, but most likely begins with one that was freed before.
    Place place = place_of(size);
    Block* block = heads_[place.level][place.step];
    for (int tries = 0; block != nullptr && tries < 8; ++tries, block = links(*block).next) {
      if (block->size >= size) return block;
    }
    // In any list above all fit.
    unsigned bits = place.step + 1 < steps ? step_bits_[place.level] & (~0U << (place.step + 1)) : 0;
    if (bits == 0) {
      const std::uint64_t above = level_bits_ & (~std::uint64_t{0} << (place.level + 1));
      if (above == 0) return nullptr;
      place.level = static_cast<unsigned>(std::countr_zero(above));
      bits = step_bits_[place.level];
    }
    return heads_[place.level][static_cast<unsigned>(std::countr_zero(bits))];
  }

  // Cuts what is not needed off a block that is in no list.
  void split(Block& block, std::size_t size) noexcept {
    if (block.size < size + sizeof(Block) + alignment) return;
    auto* rest = ::new (block.payload() + size) Block{};
    rest->heap = this;
    rest->size = block.size - size - sizeof(Block);
    rest->previous = &block;
    rest->is_clean = block.is_clean;
    if (Block* next = next_of(block)) next->previous = rest;
    block.size = size;
    insert(*rest);
  }

  void take_back(Block& freed) noexcept {
    if (!home_.is_home()) return;
    std::shared_ptr<Heap> self;  // released after the lock
    const std::lock_guard lock{lock_};
    statistics_.in_use_bytes -= freed.size;
    Block* block = &freed;
    block->is_clean = false;
    if (Block* next = next_of(*block); next != nullptr && next->is_free) {
      remove(*next);
      block->size += sizeof(Block) + next->size;
    }
    if (block->previous != nullptr && block->previous->is_free) {
      remove(*block->previous);
      block->previous->size += sizeof(Block) + block->size;
      block = block->previous;
      block->is_clean = false;
    }
    if (Block* next = next_of(*block)) next->previous = block;
    insert(*block);
    if (cached() > max_cached_) release_pages();
    if (--num_blocks_ == 0) self = std::move(self_);
  }

  // What lies beyond touched_ has never been there.
  [[nodiscard]] std::size_t clean_bytes(Block& block) const noexcept {
    std::byte* end = std::min(end_of(block), touched_);
    return end > block.payload() ? static_cast<std::size_t>(end - block.payload()) : 0;
  }
  [[nodiscard]] std::size_t cached() const noexcept {
    const auto touched = static_cast<std::size_t>(touched_ - begin_);
    const std::size_t gone = statistics_.in_use_bytes + clean_;
    return touched > gone ? touched - gone : 0;
  }

  void release_pages() noexcept {
    for (auto* block = std::launder(reinterpret_cast<Block*>(begin_)); block != nullptr; block = next_of(*block)) {
      if (!block->is_free || block->is_clean || block->size < smallest_worth_releasing) continue;
      // The links stay.
      std::byte* from = page_up(block->payload() + sizeof(Links));
      std::byte* to = page_down(std::min(end_of(*block), touched_));
      if (from < to) ::madvise(from, static_cast<std::size_t>(to - from), is_shared_ ? MADV_REMOVE : MADV_DONTNEED);
      block->is_clean = true;
      clean_ += clean_bytes(*block);
    }
  }

  std::shared_ptr<const void> keeps_mapping_;
  std::byte* begin_;
  std::byte* end_;
  std::byte* touched_;  // the end of what has ever been given out
  std::size_t max_cached_;
  bool is_shared_;
  HomeMark home_{};
  mutable SpinLock lock_{};
  std::array<std::array<Block*, steps>, levels> heads_{};
  std::array<std::uint8_t, levels> step_bits_{};
  std::uint64_t level_bits_ = 0;
  std::size_t clean_ = 0;  // bytes of clean blocks below touched_
  PoolStatistics statistics_{};
  std::size_t num_blocks_ = 0;
  std::shared_ptr<Heap> self_{};  // while blocks are out
  std::vector<std::shared_ptr<const void>> kept_{};
};

/// Makes a heap of memory that no other process sees: up to size bytes, fewer if there are no addresses for so many.
/// Returns nullptr if there are none at all.
[[nodiscard]] inline std::shared_ptr<Heap> make_private_heap(std::size_t size, std::size_t max_cached) {
  constexpr std::size_t least = std::size_t{64} << 20U;
  for (; size >= least; size /= 2) {
    void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;
    const std::shared_ptr<const void> mapping{base, [size](void* mapped) { ::munmap(mapped, size); }};
    return std::make_shared<Heap>(static_cast<std::byte*>(base), size, mapping, false, max_cached);
  }
  return nullptr;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
