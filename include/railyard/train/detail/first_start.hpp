// SPDX-License-Identifier: MIT
// Makes the first workers of a run, again if need be, and hears meanwhile who asks it to end. Train room.
#pragma once

#include "railyard/train/controller.hpp"
#include "railyard/train/detail/elastic_size.hpp"
#include "railyard/train/detail/failure_budget.hpp"
#include "railyard/train/detail/patience.hpp"
#include "railyard/train/detail/preemption_notice.hpp"
#include "railyard/train/detail/run_log.hpp"
#include "railyard/train/result.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/workers/detail/signal_watch.hpp"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the time until there is a group that hears signals itself.
class FirstStart {
 public:
  /// All must outlive it. attempts: gets those that have failed.
  FirstStart(FailureBudget& budget, PreemptionNotice& notice, RunLog& log, std::vector<Attempt>& attempts) noexcept
      : budget_(&budget), notice_(&notice), log_(&log), attempts_(&attempts) {}

  /// Calls start(num_workers) until it returns a group. Where hosts are lost meanwhile, those that are there, or come
  /// back within `patience`, make the workers, if these are enough. Returns nothing if the failures allowed are spent,
  /// or the run is asked to end while another start is waited for: failure() says which. begin_step: where the run goes
  /// on. Throws: ConfigError as start() does.
  template <class StartOnce>
  [[nodiscard]] std::unique_ptr<WorkerGroup> make(const StartOnce& start, int num_workers, ElasticSize& size,
                                                  std::chrono::nanoseconds patience, std::uint64_t begin_step) {
    while (!failure_) {
      try {
        return start(num_workers);
      } catch (const ConfigError&) {
        throw;
      } catch (const std::exception& error) {
        const Failure failure = Failure::of_start(error, "the workers could not be started");
        if (const auto found = find_room(failure, size, patience)) {
          num_workers = *found;
        } else if (!failure_) {
          judge(failure, begin_step);
          if (failure.is_host && size.is_elastic()) reason_ = size.no_room();
        }
      }
    }
    return nullptr;
  }

  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  /// Why it is final, if there is more to say.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// Whether it is that the machine will be taken away.
  [[nodiscard]] bool is_preempted() const noexcept { return is_preempted_; }

  /// Returns the next signal that has come, whatever it is about; nothing if there is none.
  [[nodiscard]] std::optional<int> take_signal() const noexcept { return watch_.take(); }

  /// Hands on what came while the group was made: its first events, until it has told of the signals that it has heard
  /// itself, and then those that came too early for it.
  template <class Handle, class HandleSignal>
  void catch_up(WorkerGroup& group, const Handle& handle, const HandleSignal& handle_signal) {
    const std::vector<int> signals = take_signals();
    std::size_t num_told = 0;
    while (num_told < signals.size()) {
      auto event = group.next(Deadline::after(std::chrono::nanoseconds{0}));
      if (!event) break;
      if (const auto* told = std::get_if<SignalEvent>(&*event); told && notice_->concerns_run(told->signal)) ++num_told;
      handle(*event);
    }
    // Each was heard by both from some moment on, so the first ones are those that the group has not heard.
    for (std::size_t at = 0; num_told + at < signals.size(); ++at) handle_signal(signals[at]);
  }

 private:
  [[nodiscard]] std::vector<int> take_signals() {
    std::vector<int> signals;
    while (const auto signal = watch_.take()) {
      if (notice_->concerns_run(*signal)) signals.push_back(*signal);
    }
    return signals;
  }

  // After the loss of a host, with which nothing of the run was lost.
  [[nodiscard]] std::optional<int> find_room(const Failure& failure, ElasticSize& size,
                                             std::chrono::nanoseconds patience) {
    if (!failure.is_host || !size.is_elastic()) return std::nullopt;
    log_->print(failure.what);
    return size.wait(
        patience, [this](auto time) { return sleeps_unless([this] { return is_asked_to_end(); }, time); },
        [this](const std::string& text) { log_->print(text); });
  }

  void judge(Failure failure, std::uint64_t begin_step) {
    const auto verdict = budget_->judge(failure, begin_step, false);
    reason_ = verdict.reason;
    attempts_->push_back({.error = failure.what, .begin_step = begin_step, .end_step = begin_step});
    if (!verdict.restarts) {
      failure_ = std::move(failure);
      return;
    }
    log_->print(compose("{}; it is tried again", failure.what));
    static_cast<void>(sleeps_unless([this] { return is_asked_to_end(); }, verdict.delay));
  }

  [[nodiscard]] bool is_asked_to_end() {
    const auto signals = take_signals();
    const bool has_file = notice_->take_file();
    if (signals.empty() && !has_file) return false;
    const int signal = has_file ? SIGTERM : signals.front();
    is_preempted_ = has_file || notice_->is_announced_by(signal);
    failure_ = Failure{.what = compose("interrupted by {} before its workers could be started", signal_name(signal)),
                       .signal = signal,
                       .kind = Failure::Kind::final};
    return true;
  }

  FailureBudget* budget_;
  PreemptionNotice* notice_;
  RunLog* log_;
  std::vector<Attempt>* attempts_;
  SignalWatch watch_{};
  std::optional<Failure> failure_{};
  std::string reason_{};
  bool is_preempted_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
