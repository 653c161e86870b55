// SPDX-License-Identifier: MIT
// Time that passes only where a model says so: tasks run the real code, one after the other, and wait without waiting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <semaphore>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace bench {

class VirtualTime {
 public:
  using Seconds = double;

  /// Is code that runs on a thread of its own, and only while all others rest.
  class Task {
   private:
    friend class VirtualTime;
    std::binary_semaphore turn_{0};
    bool waits_ = false;
    bool is_over_ = false;
    std::thread thread_{};
  };

  VirtualTime() = default;
  VirtualTime(const VirtualTime&) = delete;
  VirtualTime& operator=(const VirtualTime&) = delete;

  [[nodiscard]] Seconds now() const noexcept { return now_; }

  /// Calls what at that time, on no task; what happens at one time happens in the order in which it was said.
  void at(Seconds when, std::function<void()> what) {
    events_.emplace(std::pair{std::max(when, now_), ++num_events_}, std::move(what));
  }

  /// Begins a task now.
  template <class Body>
  void spawn(Body body) {
    Task& task = tasks_.emplace_back();
    task.thread_ = std::thread{[this, &task, body = std::move(body)]() mutable {
      task.turn_.acquire();
      current_ = &task;
      try {
        body();
      } catch (const std::exception& error) {  // the others would wait for it for ever
        fmt::print(stderr, "a simulated rank has failed: {}\n", error.what());
        std::_Exit(1);
      }
      task.is_over_ = true;
      resting_.release();
    }};
    at(now_, [this, &task] { resume(task); });
  }

  // These are for the task that runs.
  [[nodiscard]] static Task& current() noexcept { return *current_; }
  void wait_until(Seconds when) {
    Task& task = current();
    at(when, [this, &task] { resume(task); });
    rest(task);
  }
  /// Until somebody wakes it.
  void wait() {
    current().waits_ = true;
    rest(current());
  }

  /// Ends the wait() of a task; does nothing to one that is not in it.
  void wake(Task& task) {
    if (!std::exchange(task.waits_, false)) return;
    at(now_, [this, &task] { resume(task); });
  }

  /// Returns when nothing is left to happen.
  void run() {
    while (!events_.empty()) {
      auto event = events_.extract(events_.begin());
      now_ = event.key().first;
      event.mapped()();
    }
    if (tasks_.empty()) return;
    fmt::print(stderr, "{} simulated ranks wait for what does not come\n", tasks_.size());
    std::_Exit(1);
  }

 private:
  void resume(Task& task) {
    task.turn_.release();
    resting_.acquire();
    if (!task.is_over_) return;
    task.thread_.join();
    tasks_.remove_if([&](const Task& one) { return &one == &task; });
  }
  void rest(Task& task) {
    resting_.release();
    task.turn_.acquire();
  }

  inline static thread_local Task* current_ = nullptr;
  Seconds now_ = 0;
  std::uint64_t num_events_ = 0;
  std::map<std::pair<Seconds, std::uint64_t>, std::function<void()>> events_{};
  std::list<Task> tasks_{};
  std::binary_semaphore resting_{0};
};

}  // namespace bench
