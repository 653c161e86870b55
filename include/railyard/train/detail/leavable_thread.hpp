// SPDX-License-Identifier: MIT
// A thread that need not be waited for without end, because storage may hold it up. Train room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/signals.hpp"

#include <future>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is for what waits for storage: a call of the system that never returns cannot be ended from outside.
class LeavableThread {
 public:
  LeavableThread() = default;
  /// run: owns all that it uses, for it may outlive everything else. Throws: std::system_error if there is no thread.
  template <class Run>
  explicit LeavableThread(Run run) {
    std::promise<void> end;
    end_ = end.get_future();
    const BlockSignals block{deferrable_signals()};  // they are for the thread that called fit()
    thread_ = std::thread{[run = std::move(run), end = std::move(end)]() mutable {
      {
        const Run own = std::move(run);
        own();
      }
      end.set_value();
    }};
  }
  LeavableThread(LeavableThread&&) = default;
  /// Only while it has no thread.
  LeavableThread& operator=(LeavableThread&&) = default;
  ~LeavableThread() = default;

  [[nodiscard]] bool is_running() const noexcept { return thread_.joinable(); }

  void join() {
    if (thread_.joinable()) thread_.join();
  }
  /// Waits for its end, and leaves it behind at the deadline: it goes on by itself then. Returns whether it has ended.
  bool join_or_leave(const Deadline& deadline) {
    if (!thread_.joinable()) return true;
    const bool has_ended = end_.wait_for(deadline.remaining()) == std::future_status::ready;
    has_ended ? thread_.join() : thread_.detach();
    return has_ended;
  }

 private:
  std::future<void> end_{};
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
