// SPDX-License-Identifier: MIT
// Threads that compute blocks, helped by whoever waits for one. Data room.
#pragma once

#include "railyard/core/block.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/waiting.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

namespace railyard::inline v0_1 {
namespace detail {

// Tells the scheduler that the calling thread does what has time: when it is woken, it waits for a core instead of
// taking the one of who has woken it, which may be the training loop. A policy that somebody has set stays.
inline void have_time() noexcept {
  const sched_param none{};
  if (::sched_getscheduler(0) == SCHED_OTHER) ::sched_setscheduler(0, SCHED_BATCH, &none);
}

// Is the computation of one block. It depends on no other, so whoever waits for one may do any of them meanwhile.
class Task {
 public:
  explicit Task(std::function<Block()> compute) : compute_(std::move(compute)) {}

 private:
  friend class TaskPool;

  std::function<Block()> compute_;
  Block block_{};
  std::exception_ptr failure_{};
  bool is_done_ = false;
};

// Runs tasks in the order in which they are given. Without helpers they run when they are waited for.
class TaskPool {
 public:
  explicit TaskPool(std::size_t num_helpers)
      : watch_([this](WaitFor) { return has_ended() ? std::string{"its reader was left"} : std::string{}; }) {
    helpers_.reserve(num_helpers);
    const BlockSignals no_signals{deferrable_signals()};  // in the new threads, which run no handler of the user's
    try {
      for (std::size_t helper = 0; helper < num_helpers; ++helper) helpers_.emplace_back([this] { help(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;
  ~TaskPool() { stop(); }

  [[nodiscard]] std::size_t num_helpers() const noexcept { return helpers_.size(); }
  // Says that nobody wants what streams have yet to give, so that those which look for samples in vain end.
  void end_streams() noexcept { has_ended_.store(true, std::memory_order_release); }
  [[nodiscard]] bool has_ended() const noexcept { return has_ended_.load(std::memory_order_acquire); }

  // What waits of its helpers, and of whoever reads with them, look at.
  [[nodiscard]] const WaitWatch& watch() const noexcept { return watch_; }

  [[nodiscard]] std::shared_ptr<Task> submit(std::function<Block()> compute) {
    auto task = std::make_shared<Task>(std::move(compute));
    {
      const std::lock_guard lock{mutex_};
      queue_.push_back(task);
    }
    changed_.notify_one();
    return task;
  }

  // Returns the task's block, or throws what it threw.
  [[nodiscard]] Block wait(Task& task) {
    std::unique_lock lock{mutex_};
    while (!task.is_done_) {
      if (!queue_.empty()) {
        run_first(lock);
      } else {
        done_.wait(lock);
      }
    }
    if (task.failure_) std::rethrow_exception(task.failure_);
    return std::move(task.block_);
  }

  // Forgets a task that nobody waits for any more, if it has not begun.
  void cancel(const std::shared_ptr<Task>& task) noexcept {
    const std::lock_guard lock{mutex_};
    std::erase(queue_, task);
  }

 private:
  void help() {
    have_time();
    const WatchedThread watched{watch_};
    std::unique_lock lock{mutex_};
    while (true) {
      changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
      if (is_stopping_) return;
      run_first(lock);
    }
  }

  // Runs the first task of the queue, with the lock given back meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock) {
    const std::shared_ptr<Task> task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Block block;
    std::exception_ptr failure;
    try {
      block = task->compute_();
    } catch (...) {
      failure = std::current_exception();
    }
    task->compute_ = nullptr;  // what it read from is not needed any more
    lock.lock();
    task->block_ = std::move(block);
    task->failure_ = std::move(failure);
    task->is_done_ = true;
    done_.notify_all();
  }

  void stop() noexcept {
    {
      const std::lock_guard lock{mutex_};
      is_stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
    helpers_.clear();
  }

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::condition_variable done_{};
  std::deque<std::shared_ptr<Task>> queue_{};
  bool is_stopping_ = false;
  std::atomic<bool> has_ended_{false};
  WaitWatch watch_;
  std::vector<std::thread> helpers_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
