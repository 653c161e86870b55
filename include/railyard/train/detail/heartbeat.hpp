// SPDX-License-Identifier: MIT
// Does something again and again on a thread of its own. Train room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/signals.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns the thread.
class Heartbeat {
 public:
  Heartbeat(std::function<void()> beat, std::chrono::nanoseconds interval)
      : beat_(std::move(beat)), interval_(interval) {
    const BlockSignals block{deferrable_signals()};  // they are for the thread that called fit()
    thread_ = std::thread{[this] { run(); }};
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat() {
    {
      const std::lock_guard lock{mutex_};
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// Has it done once more, and waits until that is over. Returns whether it is.
  bool beat_now(const Deadline& deadline) {
    std::unique_lock lock{mutex_};
    const std::uint64_t wanted = num_begun_ + 1;  // not one that is under way
    num_wanted_ = wanted;
    changed_.notify_all();
    return changed_.wait_for(lock, deadline.remaining(), [&] { return num_done_ >= wanted; });
  }

 private:
  void run() {
    std::unique_lock lock{mutex_};
    while (true) {
      changed_.wait_for(lock, interval_, [this] { return is_ending_ || num_wanted_ > num_begun_; });
      if (is_ending_) return;
      const std::uint64_t number = ++num_begun_;
      lock.unlock();
      beat_();
      lock.lock();
      num_done_ = number;
      changed_.notify_all();
    }
  }

  std::function<void()> beat_;
  std::chrono::nanoseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::uint64_t num_begun_ = 0;
  std::uint64_t num_done_ = 0;
  std::uint64_t num_wanted_ = 0;
  std::thread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
