// SPDX-License-Identifier: MIT
// Does something again and again on a thread of its own. Train room.
#pragma once

#include "railyard/core/detail/signals.hpp"

#include <chrono>
#include <condition_variable>
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
    ending_.notify_all();
    thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock{mutex_};
    while (!ending_.wait_for(lock, interval_, [this] { return is_ending_; })) {
      lock.unlock();
      beat_();
      lock.lock();
    }
  }

  std::function<void()> beat_;
  std::chrono::nanoseconds interval_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
