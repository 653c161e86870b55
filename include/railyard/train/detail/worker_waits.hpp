// SPDX-License-Identifier: MIT
// Ends a worker's waits for other programs with its run, and tells the user of long ones. Train room.
#pragma once

#include "railyard/train/detail/wire.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/waiting.hpp"
#include "railyard/core/scaling.hpp"

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Lives on the worker's thread.
class WorkerWaits {
 public:
  /// The link must outlive it.
  explicit WorkerWaits(WorkerLink& link)
      : link_(&link),
        watch_([this](WaitFor whom) { return why_over(whom); }, [this](const std::string& text) { say(text); }) {}

  /// Ends them, on whatever thread.
  void end(std::string_view reason) {
    const std::lock_guard lock{mutex_};
    if (reason_.empty()) reason_ = reason.empty() ? std::string_view{"no reason is known"} : reason;
  }

 private:
  // What the run does itself may be done in time, and then all save together.
  [[nodiscard]] std::string why_over(WaitFor whom) {
    const bool is_to_leave = link_->page().leave_requested.load(std::memory_order_relaxed);
    if (is_to_leave && whom == WaitFor::another_program) return "the run was asked to end";
    const std::lock_guard lock{mutex_};
    return reason_.empty() ? std::string{} : compose("the group of workers has ended: {}", reason_);
  }
  void say(const std::string& text) {
    const World& world = link_->world();
    link_->post(encode_warning(compose("rank {}/{}: {}", world.rank, world.size, text)));
  }

  WorkerLink* link_;
  std::mutex mutex_{};
  std::string reason_{};
  WaitWatch watch_;
  WatchedThread thread_{watch_};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
