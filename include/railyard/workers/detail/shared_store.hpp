// SPDX-License-Identifier: MIT
// A table of small values in shared memory that needs no lock, so that nobody can die while holding it. Workers room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/store.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include <sched.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Lies in shared memory, all zero at first. A record is written in full before one compare-and-swap makes its slot
/// point to it; whoever dies before that leaves nothing but unused bytes.
struct StoreBlock {
  static constexpr std::size_t num_slots = 1U << 14U;
  static constexpr std::size_t num_bytes = 16U << 20U;

  std::atomic<std::uint32_t> changes{0};       ///< a futex: moves with every new value
  std::atomic<std::uint64_t> used{64};         ///< bytes given out so far; offset 0 means an empty slot
  std::array<std::uint32_t, num_slots> slots;  ///< atomic; not set to zero once more, for its pages cost time
};

[[noreturn]] inline void throw_key_taken(std::string_view key) {
  throw KeyTakenError{
      compose("store.set(\"{}\"): the key has been set before; a key keeps its first value, so use another key", key)};
}
[[noreturn]] inline void throw_store_full(std::string_view key, std::string_view value,
                                          std::size_t max_keys = StoreBlock::num_slots) {
  throw Error{
      compose("store.set(\"{}\", {} bytes): the store is full (it holds {} MiB and {} keys); it is meant for small "
              "values, send large ones by a collective",
              key, value.size(), StoreBlock::num_bytes >> 20U, max_keys)};
}

/// Sets and finds values in a StoreBlock.
class SharedTable {
 public:
  SharedTable(StoreBlock& block, std::byte* bytes) noexcept : block_(&block), bytes_(bytes) {}

  /// Throws: KeyTakenError; Error if the table is full.
  void set(std::string_view key, std::string_view value) {
    if (find(key)) throw_key_taken(key);
    const std::uint32_t offset = write_record(key, value);
    std::size_t slot = hash_of(key);
    for (std::size_t tried = 0; tried < StoreBlock::num_slots; ++tried, ++slot) {
      std::uint32_t seen = 0;
      if (slot_at(slot).compare_exchange_strong(seen, offset)) {
        nudge(block_->changes);
        return;
      }
      if (key_at(seen) == key) throw_key_taken(key);
    }
    throw_store_full(key, value);
  }

  [[nodiscard]] std::optional<std::string> find(std::string_view key) const {
    std::size_t slot = hash_of(key);
    for (std::size_t tried = 0; tried < StoreBlock::num_slots; ++tried, ++slot) {
      const std::uint32_t offset = slot_at(slot).load();
      if (offset == 0) return std::nullopt;
      if (key_at(offset) == key) return std::string{value_at(offset)};
    }
    return std::nullopt;
  }

  /// Returns the count of changes to hand to wait(); read it before looking for what may be missing.
  [[nodiscard]] std::uint32_t changes() const noexcept { return block_->changes.load(); }
  /// Waits for a change since then. What comes at once is not slept for: to be woken up takes as long.
  void wait(std::uint32_t changes_seen, std::chrono::nanoseconds at_most) const noexcept {
    const auto end_of_looks = Deadline::Clock::now() + std::min<std::chrono::nanoseconds>(at_most, look_time);
    while (changes() == changes_seen) {
      if (Deadline::Clock::now() >= end_of_looks) return futex_wait(block_->changes, changes_seen, at_most);
      ::sched_yield();
    }
  }
  void wake_all() noexcept { nudge(block_->changes); }

 private:
  static constexpr std::chrono::microseconds look_time{50};

  struct Header {
    std::uint32_t key_size = 0;
    std::uint32_t value_size = 0;
  };

  // FNV-1a: std::hash may differ between two shared libraries that look at one table.
  static std::size_t hash_of(std::string_view key) noexcept {
    std::uint64_t hash = 14695981039346656037ULL;
    for (const char letter : key) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    return static_cast<std::size_t>(hash ^ (hash >> 32U));
  }

  std::uint32_t write_record(std::string_view key, std::string_view value) {
    if (key.size() + value.size() > StoreBlock::num_bytes) throw_store_full(key, value);
    const std::uint64_t size = (sizeof(Header) + key.size() + value.size() + 7U) / 8U * 8U;
    std::uint64_t offset = block_->used.load();
    do {
      if (offset + size > StoreBlock::num_bytes) throw_store_full(key, value);
    } while (!block_->used.compare_exchange_weak(offset, offset + size));
    const Header header{.key_size = static_cast<std::uint32_t>(key.size()),
                        .value_size = static_cast<std::uint32_t>(value.size())};
    std::memcpy(bytes_ + offset, &header, sizeof header);
    if (!key.empty()) std::memcpy(bytes_ + offset + sizeof header, key.data(), key.size());
    if (!value.empty()) std::memcpy(bytes_ + offset + sizeof header + key.size(), value.data(), value.size());
    return static_cast<std::uint32_t>(offset);
  }

  [[nodiscard]] std::atomic_ref<std::uint32_t> slot_at(std::size_t slot) const noexcept {
    return std::atomic_ref{block_->slots[slot % StoreBlock::num_slots]};
  }
  [[nodiscard]] Header header_at(std::uint32_t offset) const noexcept {
    Header header;
    std::memcpy(&header, bytes_ + offset, sizeof header);
    return header;
  }
  [[nodiscard]] std::string_view key_at(std::uint32_t offset) const noexcept {
    return {reinterpret_cast<const char*>(bytes_ + offset + sizeof(Header)), header_at(offset).key_size};
  }
  [[nodiscard]] std::string_view value_at(std::uint32_t offset) const noexcept {
    const Header header = header_at(offset);
    return {reinterpret_cast<const char*>(bytes_ + offset + sizeof(Header) + header.key_size), header.value_size};
  }

  StoreBlock* block_;
  std::byte* bytes_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
