// SPDX-License-Identifier: MIT
// Waits while a run has no workers, for time to pass or for storage, and hears signals meanwhile. Train room.
#pragma once

#include "railyard/train/detail/patience.hpp"
#include "railyard/train/detail/preemption_notice.hpp"
#include "railyard/train/detail/run_directory.hpp"
#include "railyard/train/detail/run_log.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/workers/detail/signal_watch.hpp"

#include <chrono>
#include <functional>
#include <future>
#include <string_view>
#include <system_error>
#include <variant>

namespace railyard::inline v0_1 {
namespace detail {

/// Knows the last signal that has asked the run to end.
class AttentiveWait {
 public:
  /// All must outlive it.
  AttentiveWait(const PreemptionNotice& notice, RunDirectory& directory, RunLog& log) noexcept
      : notice_(&notice), directory_(&directory), log_(&log) {}

  /// 0 if there was none.
  [[nodiscard]] int signal() const noexcept { return signal_; }
  /// One that has come while there were workers.
  void note(int signal) noexcept { signal_ = signal; }

  /// Returns false as soon as a signal comes.
  [[nodiscard]] bool sleep(WorkerGroup& group, std::chrono::nanoseconds time) {
    return sleeps_unless([&] { return hears_signal(group); }, time);
  }

  /// Waits for storage until is_over(deadline), which waits for so long, says so. The second signal ends the program:
  /// what waits for storage cannot be interrupted, and what is committed stays. text: what is waited for, and what
  /// another signal does.
  template <class IsOver>
  void await(WorkerGroup& group, const IsOver& is_over, std::string_view text) {
    bool was_asked = false;
    while (!is_over(Deadline::after(std::chrono::milliseconds{20}))) {
      log_->tell_of_losses();
      if (!hears_signal(group)) continue;
      if (was_asked) {
        directory_->settle(Deadline::after(std::chrono::milliseconds{200}));
        end_by_signal(signal_);
      }
      was_asked = true;
      log_->print(compose("{}: {}", signal_name(signal_), text));
    }
  }

  /// Calls read(), which waits for storage, on another thread, and waits for its end. Throws: what read() does.
  template <class Read>
  void read(WorkerGroup& group, const Read& read) {
    std::future<void> end;
    try {
      const BlockSignals block{deferrable_signals()};  // they are for this thread
      end = std::async(std::launch::async, [&read] { read(); });
    } catch (const std::system_error&) {  // there is no thread
      return read();
    }
    await(
        group,
        [&end](const Deadline& deadline) { return end.wait_for(deadline.remaining()) == std::future_status::ready; },
        "checkpoints are being read; once more ends the program");
    end.get();
  }

 private:
  [[nodiscard]] bool hears_signal(WorkerGroup& group) {
    const auto event = group.next(Deadline::after(std::chrono::nanoseconds{0}));
    const auto* told = event ? std::get_if<SignalEvent>(&*event) : nullptr;
    if (told == nullptr || !notice_->concerns_run(told->signal)) return false;
    signal_ = told->signal;
    return true;
  }

  const PreemptionNotice* notice_;
  RunDirectory* directory_;
  RunLog* log_;
  int signal_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
