// SPDX-License-Identifier: MIT
// The two ends of the line through which one worker of a host hands batches to another. Data room.
#pragma once

#include "railyard/data/detail/feed_memory.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/system.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

// Tells a thread that reads ahead what the loop does that takes its batches.
struct FeedTaker {
  std::atomic<bool> waits{false};
  std::atomic<bool> has_left{false};
};

// Counts how long another worker that rests may hold up this one's loop. Only while the loop waits: what is read ahead
// has time. keeps_step: its loop takes as many batches as this one; then a rest for want of memory, which ends when the
// loop comes back from what it does between two batches, counts for little: to read by oneself would not be faster.
class FeedPatience {
 public:
  FeedPatience(const FeedTaker& taker, std::chrono::nanoseconds budget, bool keeps_step = false) noexcept
      : taker_(&taker), budget_(budget), memory_divisor_(keeps_step ? 30 : 1) {}

  // Sleeps for a moment, or until the word is another. False when it is enough. rest: of the other worker.
  [[nodiscard]] bool wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                          FeedRest rest = FeedRest::of_loop) noexcept {
    const auto begin = Deadline::Clock::now();
    const bool counts = rest != FeedRest::none && taker_->waits.load();
    futex_wait(word, seen, std::chrono::milliseconds{20});
    if (counts) spent_ += (Deadline::Clock::now() - begin) / (rest == FeedRest::of_memory ? memory_divisor_ : 1);
    return !is_spent() && !taker_->has_left.load();
  }
  [[nodiscard]] std::chrono::nanoseconds spent() const noexcept { return spent_; }
  [[nodiscard]] bool is_spent() const noexcept { return spent_ >= budget_; }

 private:
  const FeedTaker* taker_;
  std::chrono::nanoseconds budget_;
  int memory_divisor_;
  std::chrono::nanoseconds spent_{0};
};

// Says how long another worker is worth waiting for: hardly at all, once that was in vain, and less each time.
class FeedTrust {
 public:
  explicit FeedTrust(std::chrono::nanoseconds full) noexcept : full_(full), patience_(full) {}

  [[nodiscard]] std::chrono::nanoseconds patience() const noexcept { return patience_; }
  void gain() noexcept { patience_ = full_; }
  void lose() noexcept { patience_ = patience_ == full_ ? full_ / 40 : std::max(patience_ / 2, full_ / 1000); }

 private:
  std::chrono::nanoseconds full_;
  std::chrono::nanoseconds patience_;
};

// The leader's end. Used by one thread at a time.
class FeedWriter {
 public:
  FeedWriter(const FeedMemory& memory, std::size_t reader) noexcept
      : header_(&memory.header()), line_(&memory.line(reader)), bytes_(memory.bytes(reader)) {}

  // Serves the reader from here on, if it wants the batches that have the key. Once a session: a reader that has not
  // seen yet that it is no longer served stands somewhere else than where the leader begins again.
  [[nodiscard]] bool accept(std::uint64_t key) noexcept {
    const std::uint64_t session = line_->session.load();
    if (session == 0 || session == line_->accepted.load() || line_->key.load() != key) return false;
    written_ = line_->written.load();
    line_->start.store(written_);
    line_->served.store(session);
    line_->accepted.store(session);
    return true;
  }
  [[nodiscard]] bool is_serving() const noexcept {
    const std::uint64_t served = line_->served.load();
    return served != 0 && served == line_->session.load();
  }
  [[nodiscard]] std::size_t rank() const noexcept { return static_cast<std::size_t>(line_->rank.load()); }

  // False if the reader has left or died, or patience is at its end.
  [[nodiscard]] bool write(const void* from, std::size_t size, FeedPatience& patience) noexcept {
    const auto* next = static_cast<const std::byte*>(from);
    const std::size_t capacity = header_->capacity;
    while (size > 0) {
      const std::uint32_t seen = line_->taken.load();
      if (!is_serving()) return false;
      const std::size_t part = std::min<std::size_t>(size, capacity - (written_ - line_->read.load()));
      if (part == 0) {
        if (!wait_for_room(seen, patience)) return false;
        continue;
      }
      const std::size_t at = written_ % capacity;
      const std::size_t first = std::min(part, capacity - at);
      std::memcpy(bytes_ + at, next, first);
      std::memcpy(bytes_, next + first, part - first);
      line_->written.store(written_ += part);
      next += part;
      size -= part;
    }
    return true;
  }
  // Wakes the reader.
  void flush() const noexcept { nudge(line_->filled); }
  void leave() const noexcept {
    line_->served.store(0);
    flush();
  }

 private:
  // Patience is for readers that rest. Meanwhile the leader rests too, for whoever waits for it.
  [[nodiscard]] bool wait_for_room(std::uint32_t seen, FeedPatience& patience) const noexcept {
    flush();
    const FeedRest rest = line_->rest.load();
    header_->rest.store(rest);
    const bool may_go_on = patience.wait(line_->taken, seen, rest) && is_alive(line_->process.load());
    header_->rest.store(FeedRest::none);
    return may_go_on;
  }

  FeedHeader* header_;
  FeedLine* line_;
  std::byte* bytes_;
  std::uint64_t written_ = 0;
};

// The reader's end. Used by one thread at a time.
class FeedReader {
 public:
  FeedReader(const FeedMemory& memory, std::size_t reader) noexcept
      : memory_(&memory),
        line_(&memory.line(reader)),
        bytes_(memory.bytes(reader)),
        session_(std::max(line_->accepted.load(), line_->session.load())) {}

  // Asks to be served, and waits for that: also where the leader has written all by the time that this one sees it.
  // False if it comes too late, or patience is at its end.
  [[nodiscard]] bool join(std::uint64_t key, std::size_t rank, FeedPatience& patience) noexcept {
    FeedHeader& header = memory_->header();
    line_->key.store(key);
    line_->rank.store(rank);
    line_->process.store(::getpid());
    line_->session.store(++session_);
    nudge(header.asked);
    while (true) {
      const std::uint32_t seen = line_->filled.load();
      const bool is_late = header.key.load() == key;  // loaded first: it is set after the readers are known
      if (line_->accepted.load() == session_) break;
      if (is_late || header.is_gone.load() || !patience.wait(line_->filled, seen)) return false;
    }
    read_ = line_->start.load();
    line_->read.store(read_);
    return true;
  }

  // False if the leader has left or died, or patience with one that rests is at its end.
  [[nodiscard]] bool read(void* to, std::size_t size, FeedPatience& patience) noexcept {
    auto* next = static_cast<std::byte*>(to);
    const std::size_t capacity = memory_->header().capacity;
    while (size > 0) {
      const std::uint32_t seen = line_->filled.load();
      const bool was_served = line_->served.load() == session_;
      const std::size_t part = std::min<std::size_t>(size, line_->written.load() - read_);
      if (part == 0) {
        release();
        const FeedRest rest = memory_->header().rest.load();
        if (!was_served || !is_alive(memory_->maker()) || !patience.wait(line_->filled, seen, rest)) return false;
        continue;
      }
      const std::size_t at = read_ % capacity;
      const std::size_t first = std::min(part, capacity - at);
      std::memcpy(next, bytes_ + at, first);
      std::memcpy(next + first, bytes_, part - first);
      line_->read.store(read_ += part);
      next += part;
      size -= part;
    }
    return true;
  }
  // Wakes the leader, if it waits for room.
  void release() const noexcept { nudge(line_->taken); }
  void rest(FeedRest rest) const noexcept { line_->rest.store(rest); }
  void leave() const noexcept {
    line_->session.store(0);
    release();
  }

 private:
  const FeedMemory* memory_;
  FeedLine* line_;
  std::byte* bytes_;
  std::uint64_t session_;  // the last
  std::uint64_t read_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
