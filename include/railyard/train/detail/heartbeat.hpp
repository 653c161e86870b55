// SPDX-License-Identifier: MIT
// Does something again and again on a thread of its own. Train room.
#pragma once

#include "railyard/train/detail/leavable_thread.hpp"

#include "railyard/core/deadline.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns the thread. What it does may wait for storage.
class Heartbeat {
 public:
  /// beat: owns all that it uses, for storage may hold it for longer than all else lives.
  Heartbeat(std::function<void()> beat, std::chrono::nanoseconds interval)
      : pulse_(std::make_shared<Pulse>()), thread_{[pulse = pulse_, beat = std::move(beat), interval] {
          pulse->run(beat, interval);
        }} {}
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat() { end(Deadline::after(std::chrono::seconds{1})); }

  /// Does it no more. Returns false at the deadline if storage holds it then: it goes on by itself when that answers,
  /// and ends.
  bool end(const Deadline& deadline) {
    {
      const std::lock_guard lock{pulse_->mutex};
      pulse_->is_ending = true;
    }
    pulse_->changed.notify_all();
    return thread_.join_or_leave(deadline);
  }

  /// Has it done once more. Returns its number.
  [[nodiscard]] std::uint64_t ask() {
    const std::lock_guard lock{pulse_->mutex};
    pulse_->num_wanted = pulse_->num_begun + 1;  // not one that is under way
    pulse_->changed.notify_all();
    return pulse_->num_wanted;
  }
  /// Waits until the one of that number is over. Returns whether it is.
  [[nodiscard]] bool has_done(std::uint64_t number, const Deadline& deadline) {
    std::unique_lock lock{pulse_->mutex};
    return pulse_->changed.wait_for(lock, deadline.remaining(), [&] { return pulse_->num_done >= number; });
  }
  /// Has it done once more, and waits until that is over. Returns whether it is.
  bool beat_now(const Deadline& deadline) { return has_done(ask(), deadline); }

 private:
  struct Pulse {
    std::mutex mutex{};
    std::condition_variable changed{};
    bool is_ending = false;
    std::uint64_t num_begun = 0;
    std::uint64_t num_done = 0;
    std::uint64_t num_wanted = 0;

    void run(const std::function<void()>& beat, std::chrono::nanoseconds interval) {
      std::unique_lock lock{mutex};
      while (true) {
        changed.wait_for(lock, interval, [this] { return is_ending || num_wanted > num_begun; });
        if (is_ending) return;
        const std::uint64_t number = ++num_begun;
        lock.unlock();
        beat();
        lock.lock();
        num_done = number;
        changed.notify_all();
      }
    }
  };

  std::shared_ptr<Pulse> pulse_;
  LeavableThread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
