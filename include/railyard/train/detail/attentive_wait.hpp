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
#include <csignal>
#include <functional>
#include <future>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

namespace railyard::inline v0_1 {
namespace detail {

/// Knows the last signal that has asked the run to end.
class AttentiveWait {
 public:
  /// All must outlive it.
  AttentiveWait(const PreemptionNotice& notice, RunDirectory& directory, RunLog& log) noexcept
      : notice_(&notice), directory_(&directory), log_(&log) {}

  /// From here on hear() returns the next signal that has come, if there is one; all that it uses must outlive what
  /// waits then.
  void listen(std::function<std::optional<int>()> hear) { hear_ = std::move(hear); }
  /// From here on a group does so, whenever it has no workers and so nothing else to tell.
  void listen_to(WorkerGroup& group) {
    listen([&group] {
      const auto event = group.next(Deadline::after(std::chrono::nanoseconds{0}));
      const auto* told = event ? std::get_if<SignalEvent>(&*event) : nullptr;
      return told != nullptr ? std::optional{told->signal} : std::nullopt;
    });
  }

  /// 0 if there was none.
  [[nodiscard]] int signal() const noexcept { return signal_; }
  /// One that somebody else has heard, or 0 for none. SIGUSR1, SIGUSR2, and a file that stands for a signal, are
  /// notices: the one that tells to leave is yet to come.
  void note(int signal, bool is_file = false) noexcept {
    signal_ = signal;
    was_told_to_leave_ = was_told_to_leave_ || (signal != 0 && !is_users_own(signal) && !is_file);
  }

  /// Returns false as soon as a signal comes.
  [[nodiscard]] bool sleep(std::chrono::nanoseconds time) {
    return sleeps_unless([this] { return hears_signal(); }, time);
  }

  /// Waits for storage until is_over(deadline), which waits for so long, says so; for a moment only once a signal has
  /// come. text: what is not waited for then, and what another signal does.
  template <class IsOver>
  void await_unless_told(const IsOver& is_over, std::string_view text) {
    std::optional<Deadline> end;
    while (!is_over(Deadline::after(slice))) {
      log_->tell_of_losses();
      if (hears_signal()) log_->print(compose("{}: {}", signal_name(signal_), text));
      if (signal_ != 0 && !end) end = Deadline::after(moment);
      if (end && end->expired()) return;
    }
  }

  /// Waits for storage until is_over(deadline) says so, though a signal comes. text: what is waited for, and what
  /// another signal does.
  template <class IsOver>
  void await(const IsOver& is_over, std::string_view text) {
    while (!is_over(Deadline::after(slice))) {
      log_->tell_of_losses();
      if (hears_signal()) log_->print(compose("{}: {}", signal_name(signal_), text));
    }
  }

  /// Waits until all that the run has told is written, or is lost.
  void settle() {
    await([this](const Deadline& deadline) { return directory_->settles(deadline); },
          "what the run has told is still being written; once more loses the rest of it");
    log_->tell_of_losses();
  }
  /// The same, and returns whether the storage of the run answers then.
  [[nodiscard]] bool finds_storage() {
    directory_->ask_storage();
    settle();
    return !directory_->has_given_up();
  }

  /// Calls use(), which waits for storage, on another thread, and awaits its end. Throws: what use() does.
  template <class Use>
  void await_use(const Use& use, std::string_view text) {
    std::future<void> end;
    try {
      const BlockSignals block{deferrable_signals()};  // they are for this thread
      end = std::async(std::launch::async, [&use] { use(); });
    } catch (const std::system_error&) {  // there is no thread
      return use();
    }
    await([&end](const Deadline& deadline) { return end.wait_for(deadline.remaining()) == std::future_status::ready; },
          text);
    end.get();
  }
  /// The same of what reads checkpoints.
  template <class Read>
  void read(const Read& read) {
    await_use(read, "checkpoints are being read; once more ends the program");
  }

 private:
  static constexpr std::chrono::milliseconds slice{20};
  static constexpr std::chrono::milliseconds moment{200};

  // Where one that is more than a notice has come before, the run was told to leave already, and the program ends: what
  // waits for storage cannot be interrupted, and what is committed stays.
  [[nodiscard]] bool hears_signal() {
    const auto signal = hear_ ? hear_() : std::nullopt;
    if (!signal || !notice_->concerns_run(*signal)) return false;
    const bool was_told = was_told_to_leave_;
    note(*signal);
    if (was_told) {
      directory_->settle(Deadline::after(moment));
      end_by_signal(signal_);
    }
    return true;
  }

  const PreemptionNotice* notice_;
  RunDirectory* directory_;
  RunLog* log_;
  std::function<std::optional<int>()> hear_{};
  int signal_ = 0;
  bool was_told_to_leave_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
