// SPDX-License-Identifier: MIT
// Does what may wait for storage on a thread of its own, while whoever asks for it goes on. Train room.
#pragma once

#include "railyard/train/detail/leavable_thread.hpp"

#include "railyard/core/deadline.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Says how much may wait to be written, and how long storage that does nothing is waited for.
struct StorageLimits {
  std::size_t bytes = std::size_t{16} << 20U;  ///< of logs; what tells of the run itself has as much besides
  std::chrono::nanoseconds room = std::chrono::seconds{1};         ///< when there are as many, while workers train
  std::chrono::nanoseconds rest = std::chrono::milliseconds{250};  ///< before a fork, which a restart waits for
  std::chrono::nanoseconds notice = std::chrono::seconds{10};      ///< before people are told
  std::chrono::nanoseconds end = std::chrono::seconds{30};         ///< when the run ends
};

/// Does one thing after another, in the order in which they were asked for. Used by one thread, but for await().
class StorageThread {
 public:
  using Job = std::function<void()>;

  explicit StorageThread(const StorageLimits& limits = {}) : limits_(limits), work_(std::make_shared<Work>()) {}
  StorageThread(const StorageThread&) = delete;
  StorageThread& operator=(const StorageThread&) = delete;
  /// Does what was asked for, as drain().
  ~StorageThread() {
    if (drain()) {
      work_->rest();
      thread_.join();
    } else {
      thread_.join_or_leave(Deadline::after(std::chrono::nanoseconds{0}));
    }
  }

  /// Has it done. job: owns all that it uses, for storage may hold it for longer than all else lives, and throws
  /// nothing. size_bytes: that it holds; bound_bytes: that may wait together with it. Where there is no room it is
  /// waited for, up to StorageLimits::room, and after that not any more, nor for less, until half of it is free.
  /// Returns whether it will be done. Where there is no thread to be had it is done at once.
  bool post(std::size_t size_bytes, std::size_t bound_bytes, Job job) {
    go_on();
    const std::size_t size = size_bytes + bytes_of_job;
    std::unique_lock lock{work_->mutex};
    if (work_->is_given_up) return false;
    if (work_->bytes <= waited_for_ / 2) waited_for_ = 0;
    const auto has_room = [&] { return work_->jobs.empty() || work_->bytes + size <= bound_bytes; };
    if (!has_room()) {
      if (bound_bytes <= waited_for_) return false;
      if (!work_->changed.wait_for(lock, limits_.room, has_room)) {
        waited_for_ = bound_bytes;
        return false;
      }
    }
    work_->jobs.push_back({.job = std::move(job), .size = size});
    work_->bytes += size;
    ++work_->num_posted;
    work_->changed.notify_all();
    lock.unlock();
    if (!thread_.is_running()) start();
    return true;
  }

  /// Waits until all that was asked for is done. Returns false if nothing has come to be done for StorageLimits::end:
  /// nothing more will be, but for what storage holds at that moment.
  bool drain() {
    go_on();
    std::unique_lock lock{work_->mutex};
    while (!work_->is_given_up && work_->num_done < work_->num_posted) {
      const std::uint64_t before = work_->num_done;
      if (!work_->changed.wait_for(lock, limits_.end, [&] { return work_->num_done != before; })) work_->give_up();
    }
    return !work_->is_given_up;
  }
  /// The same in parts, between which something else is done: waits for so long at most, and returns whether all is
  /// done or given up. For StorageLimits::end from the first call on, or from when something has come to be done last.
  bool settles(const Deadline& deadline) {
    go_on();
    std::unique_lock lock{work_->mutex};
    const auto is_over = [this] { return work_->is_over(work_->num_posted); };
    if (!work_->changed.wait_for(lock, deadline.remaining(), is_over)) {
      const auto now = Deadline::Clock::now();
      if (!still_since_ || num_done_then_ != work_->num_done) still_since_ = now;
      num_done_then_ = work_->num_done;
      if (now - *still_since_ < limits_.end) return false;
      work_->give_up();
    }
    still_since_.reset();
    return true;
  }
  /// The same, for so long at most and without giving up.
  bool drain(const Deadline& deadline) {
    go_on();
    std::unique_lock lock{work_->mutex};
    return work_->changed.wait_for(lock, deadline.remaining(), [this] { return work_->is_over(work_->num_posted); });
  }
  /// Waits, on any thread, until all that was asked for so far is done, or given up.
  void await() {
    std::unique_lock lock{work_->mutex};
    const std::uint64_t last = work_->num_posted;
    work_->changed.wait(lock, [&] { return work_->is_over(last); });
  }

  /// Whether that has been given up.
  [[nodiscard]] bool has_given_up() const {
    const std::lock_guard lock{work_->mutex};
    return work_->is_given_up;
  }
  /// How long storage has held what is being done.
  [[nodiscard]] std::chrono::nanoseconds held_for() const {
    const std::lock_guard lock{work_->mutex};
    return work_->is_busy ? Deadline::Clock::now() - work_->begun_at : std::chrono::nanoseconds{0};
  }

  /// Lets the thread end after what it does at the moment, and all else wait, until it is to go on or is needed again:
  /// a fork wants no other threads. One that storage holds is not waited for any longer than StorageLimits::rest: it
  /// does nothing else meanwhile.
  void rest() {
    if (!thread_.is_running()) return;
    work_->rest();
    std::unique_lock lock{work_->mutex};
    const auto has_ended = [this] { return work_->has_ended; };
    if (work_->is_given_up ? !has_ended() : !work_->changed.wait_for(lock, limits_.rest, has_ended)) return;
    lock.unlock();
    thread_.join();
  }
  /// Ends the rest.
  void go_on() {
    std::unique_lock lock{work_->mutex};
    if (!std::exchange(work_->is_resting, false)) return;
    const bool has_ended = work_->has_ended;
    const bool is_needed = !work_->jobs.empty();
    lock.unlock();
    if (!has_ended) return;
    thread_.join();
    if (is_needed) start();
  }

  /// Why there is no thread; empty if there is one, or none was needed.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  static constexpr std::size_t bytes_of_job = 128;  // besides what it holds

  struct Item {
    Job job{};
    std::size_t size = 0;
  };
  struct Work {
    std::mutex mutex{};
    std::condition_variable changed{};
    std::deque<Item> jobs{};
    std::size_t bytes = 0;  // of what is to be done, and what is being done
    std::uint64_t num_posted = 0;
    std::uint64_t num_done = 0;
    Deadline::Clock::time_point begun_at{};
    bool is_busy = false;
    bool is_resting = false;
    bool has_ended = false;  // the thread
    bool is_given_up = false;

    [[nodiscard]] bool is_over(std::uint64_t number) const noexcept { return is_given_up || num_done >= number; }

    // With the mutex held.
    void give_up() {
      is_given_up = true;
      jobs.clear();
      changed.notify_all();
    }

    void rest() {
      const std::lock_guard lock{mutex};
      is_resting = true;
      changed.notify_all();
    }

    void run() {
      std::unique_lock lock{mutex};
      while (!is_resting && !is_given_up) {
        if (jobs.empty()) {
          changed.wait(lock);
        } else {
          do_next(lock);
        }
      }
      has_ended = true;
      changed.notify_all();
    }
    void run_here() {
      std::unique_lock lock{mutex};
      while (!jobs.empty()) do_next(lock);
    }

    void do_next(std::unique_lock<std::mutex>& lock) {
      Item item = std::move(jobs.front());
      jobs.pop_front();
      is_busy = true;
      begun_at = Deadline::Clock::now();
      lock.unlock();
      item.job();
      item.job = {};
      lock.lock();
      is_busy = false;
      bytes -= item.size;
      ++num_done;
      changed.notify_all();
    }
  };

  // While there is none.
  void start() {
    work_->has_ended = false;
    try {
      thread_ = LeavableThread{[work = work_] { work->run(); }};
    } catch (const std::system_error& error) {
      problem_ = error.what();
      work_->run_here();
    }
  }

  StorageLimits limits_;
  std::shared_ptr<Work> work_;
  LeavableThread thread_{};
  std::size_t waited_for_ = 0;                                // the bound, in vain
  std::optional<Deadline::Clock::time_point> still_since_{};  // while all is waited for
  std::uint64_t num_done_then_ = 0;
  std::string problem_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
