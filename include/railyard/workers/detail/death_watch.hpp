// SPDX-License-Identifier: MIT
// How a supervisor hears that a worker is dying before it is gone. Workers room.
//
// A process that has gigabytes mapped takes tens of milliseconds to end, and only then do its parent and whoever holds
// its pidfd or a pipe of it learn of it. What the kernel does first of all when a thread ends is to look through its
// list of robust futexes: so each worker's first thread holds one, and the supervisor sleeps on it.
#pragma once

#include "railyard/workers/detail/group_memory.hpp"

#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the worker's end, made and taken back by the first thread of its process, on which nothing of the user's runs.
class DeathMark {
 public:
  /// word: in memory that the supervisor sees.
  explicit DeathMark(std::atomic<std::uint32_t>& word) noexcept {
    head_.list.next = &entry_;
    entry_.next = &head_.list;
    head_.futex_offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&entry_);
    word.store(static_cast<std::uint32_t>(::syscall(SYS_gettid)) | FUTEX_WAITERS);
    ::syscall(SYS_set_robust_list, &head_, sizeof head_);
    futex_wake(word);
  }
  DeathMark(const DeathMark&) = delete;
  DeathMark& operator=(const DeathMark&) = delete;
  ~DeathMark() { take_back(); }

  /// The worker ends in order: nobody is to be woken.
  void take_back() noexcept { head_.list.next = &head_.list; }

 private:
  robust_list entry_{};
  robust_list_head head_{};
};

/// Owns a thread that sleeps until a worker that has not taken its mark back begins to die. Where the kernel cannot
/// wait for several words at once (before 5.16), or a filter does not let it, it does nothing.
class DeathWatch {
 public:
  /// event_fd: rings then. Both must outlive it.
  DeathWatch(const GroupMemory& memory, int event_fd) : memory_(&memory), event_fd_(event_fd) {
    if (!is_possible() || memory.num_workers() > most_workers) return;
    const BlockSignals block{deferrable_signals()};
    try {
      thread_ = std::thread{[this] { run(); }};
    } catch (const std::system_error&) {  // then the news comes later
    }
  }
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;
  ~DeathWatch() {
    is_over_.store(1);
    futex_wake(is_over_);
    if (thread_.joinable()) thread_.join();
  }

  [[nodiscard]] static bool is_possible() noexcept {
#if defined(SYS_futex_waitv)
    return ::syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) < 0 && errno == EINVAL;
#else
    return false;
#endif
  }

 private:
#if defined(SYS_futex_waitv)
  static constexpr int most_workers = FUTEX_WAITV_MAX - 1;

  // Allocates nothing and holds no lock.
  void run() noexcept {
    std::array<bool, FUTEX_WAITV_MAX> is_told{};
    while (is_over_.load() == 0) {
      std::array<futex_waitv, FUTEX_WAITV_MAX> words{};
      std::size_t num_words = 0;
      const auto add = [&](const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
        words[num_words++] = {
            .val = seen, .uaddr = reinterpret_cast<std::uintptr_t>(&word), .flags = FUTEX_32, .__reserved = 0};
      };
      add(is_over_, 0);
      for (int rank = 0; rank < memory_->num_workers(); ++rank) {
        const RankBlock& block = memory_->rank(rank);
        const std::uint32_t seen = block.life.load();
        if (!RankBlock::is_death(seen)) {
          add(block.life, seen);
        } else if (!std::exchange(is_told[static_cast<std::size_t>(rank)], true)) {
          Bell::ring(event_fd_);
        }
      }
      const long woken = ::syscall(SYS_futex_waitv, words.data(), num_words, 0, nullptr, CLOCK_MONOTONIC);
      if (woken < 0 && errno != EAGAIN && errno != EINTR) return;
    }
  }
#else
  static constexpr int most_workers = 0;
  void run() noexcept {}
#endif

  const GroupMemory* memory_;
  int event_fd_;
  std::atomic<std::uint32_t> is_over_{0};
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
