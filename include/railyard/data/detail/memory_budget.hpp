// SPDX-License-Identifier: MIT
// Counts the memory of blocks under way against a bound. Data room.
#pragma once

#include "railyard/core/version.hpp"

#include <atomic>
#include <cstddef>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

// Is the memory that one reader's blocks may take together. Outlives its shares.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t bound) noexcept : bound_(bound) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  [[nodiscard]] std::size_t bound() const noexcept { return bound_; }
  [[nodiscard]] std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
  // Whether that much may be read ahead. A quarter is kept for what has to be read for anything to go on.
  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept { return used() + bytes <= most_ahead(); }
  [[nodiscard]] std::size_t most_ahead() const noexcept { return bound_ - bound_ / 4; }
  // Counts what windows hold of it. Returns what all of them do.
  std::size_t add_to_windows(std::size_t bytes) noexcept { return windows_.fetch_add(bytes) + bytes; }
  void take_from_windows(std::size_t bytes) noexcept { windows_.fetch_sub(bytes); }

 private:
  friend class MemoryShare;

  std::size_t bound_;
  std::atomic<std::size_t> used_ = 0;
  std::atomic<std::size_t> windows_ = 0;
};

// Counts some bytes as used for as long as it lives.
class MemoryShare {
 public:
  MemoryShare() = default;
  MemoryShare(MemoryBudget& budget, std::size_t bytes) noexcept : budget_(&budget) { resize(bytes); }
  MemoryShare(MemoryShare&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryShare& operator=(MemoryShare&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryShare() { resize(0); }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  void resize(std::size_t bytes) noexcept {
    if (budget_ == nullptr) return;
    budget_->used_.fetch_add(bytes - bytes_, std::memory_order_relaxed);  // wraps around where it gets smaller
    bytes_ = bytes;
  }

 private:
  MemoryBudget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
