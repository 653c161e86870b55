// SPDX-License-Identifier: MIT
// Drives one run: passes the group's events to the controller, the files, the callbacks and the console. Train room.
#pragma once

#include "railyard/train/controller.hpp"
#include "railyard/train/detail/activity.hpp"
#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/report_book.hpp"
#include "railyard/train/detail/wire.hpp"
#include "railyard/train/result.hpp"
#include "railyard/train/run_config.hpp"

#include "railyard/callbacks/progress.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one run from the start of its workers to its Result. Knows neither backend nor scaling: start makes the group.
class Supervision {
 public:
  using Start = std::function<std::unique_ptr<WorkerGroup>(const GroupPlan&)>;
  using Clock = Deadline::Clock;

  Supervision(const RunConfig& config, RunInfo info, Clock::time_point called_at, const Console& console = Console{})
      : config_(config),
        info_(std::move(info)),
        called_at_(called_at),
        directory_(info_.path, info_.world_size),
        book_(info_.world_size),
        hosts_(static_cast<std::size_t>(info_.world_size), host_name()),
        step_times_(static_cast<std::size_t>(info_.world_size)),
        progress_(console, config.progress == Progress::quiet),
        controller_({.num_workers = info_.world_size,
                     // a backend that cannot connect says more about it than we can: it goes first
                     .start_timeout = later(config.start_timeout),
                     .stop_grace = config.stop_grace}) {}

  /// Runs to the end. Throws: ConfigError if the group cannot be started because of its settings.
  [[nodiscard]] Result run(const Start& start) {
    tell("on_start", [this](const AnyCallback& callback) { callback.on_start(info_); });
    if (!failure_before_start_) start_group(start);
    if (group_) {
      while (controller_.phase() != Phase::finished) handle_next();
      timings_.training = seconds() - timings_.first_line;
      tell_reports(true);
      progress_.finish(state());
      group_.reset();
    }
    return finish();
  }

 private:
  static std::chrono::nanoseconds later(std::chrono::nanoseconds time) {
    constexpr std::chrono::nanoseconds most = std::chrono::nanoseconds::max() - std::chrono::seconds{1};
    return std::min(time, most) + std::chrono::seconds{1};
  }
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(Clock::now() - called_at_).count(); }

  void start_group(const Start& start) {
    controller_.begin(Clock::now());
    try {
      group_ = start({.num_workers = info_.world_size, .silence_limit = config_.silence_limit});
      timings_.start = seconds();
    } catch (const ConfigError&) {
      directory_.remove();
      throw;
    } catch (const std::exception& error) {
      failure_before_start_ = Failure{.what = compose("the workers could not be started: {}", error.what())};
    }
  }

  void handle_next() {
    const auto interval =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(progress_.interval()));
    const auto wake = std::min(controller_.wakes_at(), Clock::now() + interval);
    auto event = group_->next(Deadline::after(std::max(Clock::duration{0}, wake - Clock::now())));
    if (event) std::visit([this](auto& one) { handle(one); }, *event);
    if (Clock::now() >= controller_.wakes_at()) carry_out(controller_.on_time(Clock::now()));
    progress_.update(state());
  }

  void carry_out(const Orders& orders) {
    if (orders.request_stop) group_->request_stop();
    if (orders.abort) group_->abort(*orders.abort);
    if (orders.kill) group_->kill();
  }

  void handle(const MessageEvent& event) {
    try {
      WorkerMessage message = decode_message(event.bytes);
      if (auto* started = std::get_if<StartedMessage>(&message)) note_start(event.rank, std::move(started->host));
      if (auto* report = std::get_if<ReportMessage>(&message)) note_report(event.rank, std::move(report->metrics));
      if (const auto* told = std::get_if<StepTimesMessage>(&message)) {
        step_times_[static_cast<std::size_t>(event.rank)] = told->times;
      }
    } catch (const DataError& error) {
      carry_out(controller_.on_failure({.rank = event.rank, .what = compose("sent nonsense: {}", error.what())},
                                       Clock::now()));
    }
  }
  void handle(const OutputEvent& event) {
    complain(directory_.append_log(event.rank, event.line));
    progress_.print(event.is_error, compose("[rank {}] {}", event.rank, event.line));
  }
  void handle(ExitEvent& event) {
    if (event.exit.is_consequence) note_activity();
    carry_out(controller_.on_exit(event.rank, std::move(event.exit), Clock::now()));
  }
  void handle(const SilenceEvent& event) {
    note_activity();
    carry_out(controller_.on_silence(event.rank, event.message, Clock::now()));
  }
  void handle(const BrokenEvent& event) { carry_out(controller_.on_failure({.what = event.message}, Clock::now())); }
  void handle(const SignalEvent& event) {
    const Orders orders = controller_.on_signal(event.signal, Clock::now());
    const std::string name = signal_name(event.signal);
    if (orders.request_stop) {
      progress_.print(true, compose("railyard: {}: the workers are asked to stop and have {} for it; once more ends "
                                    "them at once",
                                    name, Deadline::after(config_.stop_grace).budget_text()));
    } else if (orders.kill) {
      progress_.print(true, compose("railyard: {}: the workers are killed", name));
    }
    carry_out(orders);
  }

  // Before the group is ended: the end is what all ranks do then.
  void note_activity() {
    if (activity_.empty()) activity_ = activity_text(*group_, info_.world_size, Clock::now());
  }

  void note_start(int rank, std::string host) {
    hosts_[static_cast<std::size_t>(rank)] = std::move(host);
    controller_.on_started(rank);
    if (++num_started_ == info_.world_size) timings_.first_line = seconds();
  }

  void note_report(int rank, Metrics metrics) {
    const double now = seconds();
    if (rank == 0) {
      const std::int64_t index = book_.count(0);
      const JsonObject line = JsonObject{}.add("report", index).add("seconds", now).add(metrics);
      complain(directory_.append_metrics(line.text()));
      history_.push_back(metrics);
      progress_.on_report(index, metrics);
    }
    if (config_.callbacks.empty()) {
      book_.count_only(rank);
      return;
    }
    book_.add(rank, std::move(metrics), now);
    tell_reports(false);
  }

  void tell_reports(bool is_end) {
    while (const auto report = book_.take(is_end)) {
      tell("on_report", [&](const AnyCallback& callback) {
        if (callback.on_report(*report) == Next::stop && !is_end) group_->request_stop();
      });
    }
  }

  // A callback that throws ends the run; the others still hear of everything.
  template <class Call>
  void tell(std::string_view hook, Call call) {
    for (const AnyCallback& callback : config_.callbacks) {
      try {
        call(callback);
      } catch (...) {
        const std::string what = exit_of(std::current_exception()).message;
        note_hook_failure({.what = compose("a callback's {} threw: {}", hook, what)});
      }
    }
  }

  void note_hook_failure(Failure failure) {
    if (group_) {
      carry_out(controller_.on_failure(failure, Clock::now()));
    }
    if (controller_.failure() && controller_.failure()->what == failure.what) return;
    if (controller_.failure() || failure_before_start_) {
      warnings_.push_back(failure.what);
    } else {
      failure_before_start_ = std::move(failure);
    }
  }

  void complain(const std::string& text) {
    if (!text.empty()) progress_.print(true, "railyard: " + text);
  }

  [[nodiscard]] ProgressState state() const {
    ProgressState state{.seconds = seconds(), .alive = controller_.num_alive(), .world_size = info_.world_size};
    for (int rank = 0; rank < info_.world_size; ++rank) {
      state.samples += group_->page(rank).samples.load(std::memory_order_relaxed);
    }
    const WorkerPage& page = group_->page(0);
    state.epoch = page.epoch.load(std::memory_order_relaxed);
    state.epoch_size = page.epoch_size.load(std::memory_order_relaxed);
    state.epoch_done = page.epoch_done.load(std::memory_order_relaxed);
    return state;
  }

  [[nodiscard]] std::string error_text(const Failure& failure) const {
    std::string text = failure.what;
    if (failure.rank >= 0) {
      const std::int64_t reports = book_.count(failure.rank);
      text = compose("rank {} of {} on {} {}", failure.rank, info_.world_size,
                     hosts_[static_cast<std::size_t>(failure.rank)], failure.what);
      text += reports > 0 ? compose("; its last report was number {}", reports - 1) : "; it had not reported yet";
      if (const auto log = directory_.log_of(failure.rank)) text += "; its output is in " + log->string();
    }
    if (failure.is_wait && !activity_.empty()) text += "; then " + activity_;
    return text + compose("; the run's files are in {}", info_.path.string());
  }

  [[nodiscard]] Result finish() {
    const Failure* failure = controller_.failure() ? &*controller_.failure() : nullptr;
    if (failure == nullptr && failure_before_start_) failure = &*failure_before_start_;
    ResultFields fields{.path = info_.path, .world_size = info_.world_size};
    RunEnd end{.seconds = seconds()};
    if (failure != nullptr) end.error = error_text(*failure);
    if (!history_.empty()) end.metrics = history_.back();
    tell("on_end", [&end](const AnyCallback& callback) { callback.on_end(end); });
    if (failure == nullptr && failure_before_start_) failure = &*failure_before_start_;  // on_end has thrown
    if (failure != nullptr) {
      fields.error = error_text(*failure);
      fields.failed_rank = failure->rank;
      fields.exit_status = failure->signal != 0 ? 128 + failure->signal : 1;
    }
    fields.history = std::move(history_);
    fields.step_times_by_rank = std::move(step_times_);
    fields.warnings = directory_.warnings();
    if (std::string text = progress_.warning(); !text.empty()) fields.warnings.push_back(std::move(text));
    fields.warnings.insert(fields.warnings.end(), warnings_.begin(), warnings_.end());
    write_result(fields);
    fields.seconds = seconds();
    fields.timings = timings_;
    fields.timings.teardown = std::max(0.0, fields.seconds - timings_.first_line - timings_.training);
    return Result{std::move(fields)};
  }

  void write_result(ResultFields& fields) const {
    JsonObject object;
    object.add("succeeded", fields.error.empty()).add("error", fields.error).add("failed_rank", fields.failed_rank);
    object.add("exit_status", fields.exit_status).add("seconds", seconds()).add("reports", fields.history.size());
    object.add("start_seconds", timings_.start).add("first_line_seconds", timings_.first_line);
    object.add("training_seconds", timings_.training);
    if (const StepTimes times = average_of(fields.step_times_by_rank); times.steps > 0) {
      object.add("steps", times.steps).add("compute_share", times.share_of_compute());
      object.add("wait_share", times.share_of_wait()).add("communication_share", times.share_of_communication());
      object.add("optimizer_share", times.share_of_optimizer()).add("slowest_rank", times.slowest_rank);
      object.add("gradient_bytes", times.bytes);
    }
    if (std::string loss = directory_.write_object("result.json", object); !loss.empty()) {
      fields.warnings.push_back(std::move(loss));
    }
  }

  const RunConfig& config_;
  RunInfo info_;
  Clock::time_point called_at_;
  RunDirectory directory_;
  ReportBook book_;
  std::vector<std::string> hosts_;
  std::vector<StepTimes> step_times_;  // by rank
  ProgressLine progress_;
  Controller controller_;
  std::unique_ptr<WorkerGroup> group_{};
  std::vector<Metrics> history_{};
  std::vector<std::string> warnings_{};
  std::optional<Failure> failure_before_start_{};  // or after the end: outside of the group's life
  std::string activity_{};                         // what each rank did when the first one was found waiting or silent
  Timings timings_{};
  int num_started_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
