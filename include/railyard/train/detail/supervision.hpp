// SPDX-License-Identifier: MIT
// Drives one run: passes the group's events to the controller, the files, the callbacks and the console. Train room.
#pragma once

#include "railyard/train/controller.hpp"
#include "railyard/train/detail/activity.hpp"
#include "railyard/train/detail/attentive_wait.hpp"
#include "railyard/train/detail/elastic_size.hpp"
#include "railyard/train/detail/failure_budget.hpp"
#include "railyard/train/detail/farewell.hpp"
#include "railyard/train/detail/first_start.hpp"
#include "railyard/train/detail/inheritance.hpp"
#include "railyard/train/detail/preemption_notice.hpp"
#include "railyard/train/detail/rank_watch.hpp"
#include "railyard/train/detail/result_file.hpp"
#include "railyard/train/detail/resume_point.hpp"
#include "railyard/train/detail/roll_call.hpp"
#include "railyard/train/detail/run_callbacks.hpp"
#include "railyard/train/detail/run_checkpoints.hpp"
#include "railyard/train/detail/run_directory.hpp"
#include "railyard/train/detail/run_history.hpp"
#include "railyard/train/detail/run_lease.hpp"
#include "railyard/train/detail/run_log.hpp"
#include "railyard/train/detail/run_record.hpp"
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
#include <csignal>
#include <cstdint>
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
  using Renew = std::function<void(int num_workers)>;
  using Clock = Deadline::Clock;

  /// size: which says as well how many workers there are at first. before: what an earlier program has left of the run.
  Supervision(const RunConfig& config, ElasticSize size, RunInfo info, Clock::time_point called_at, RunLease lease,
              RunRecord before = {}, Leadership leadership = {}, const Console& console = Console{},
              std::shared_ptr<Files> files = std::make_shared<Files>(), const StorageLimits& limits = {})
      : config_(config),
        size_(std::move(size)),
        info_(std::move(info)),
        lease_(std::move(lease)),
        leadership_(std::move(leadership)),
        directory_(info_.path, size_.count().max(), std::move(files), limits),
        history_(directory_, info_.world_size, std::move(before)),
        ranks_(info_.world_size),
        progress_(console, config.progress == Progress::quiet),
        log_(directory_, progress_, called_at),
        controller_(controller_settings(config, info_.world_size)),
        budget_(config.failure, size_.is_elastic()),
        watch_(config, info_.world_size),
        notice_(config.preemption),
        callbacks_(config.callbacks, [this](Failure failure) { note_hook_failure(std::move(failure)); }),
        point_(history_),
        wait_(notice_, directory_, log_) {
    directory_.ask_before_late_writes(2 * lease_.interval(), lease_.question());
  }

  /// Runs to the end. renew: called before the workers are started again.
  /// Throws: ConfigError if the run cannot go on as it was asked to, or if the group cannot be started because of its
  /// settings.
  [[nodiscard]] Result run(const Start& start, const Renew& renew) {
    look_out();
    if (history_.has_record()) point_.find(info_.path, lease_, config_, log_);  // a new run has no checkpoints
    if (!lease_.takeover().empty()) log_.warn(lease_.takeover());
    if (leadership_.inherited) take_over(*leadership_.inherited, point_, budget_, attempts_, log_);
    callbacks_.tell("on_start", [this](const AnyCallback& callback) { callback.on_start(info_); });
    const int former = leadership_.inherited ? leadership_.inherited->ledger.world_size : info_.world_size;
    if (!failure_before_start_) start_group(start);
    if (group_) {
      tell_of_resize(former);
      do {
        while (controller_.phase() != Phase::finished) handle_next();
        end_attempt();
      } while (restarts(renew));
      save_what_is_left();
      timings_.training = log_.seconds() - timings_.first_line;
      tell_reports(true);
      progress_.finish(state());
      checkpoints_.reset();
      group_.reset();
    }
    return finish();
  }

 private:
  // What waits for storage is done by other threads, which a fork needs at rest: workers are watched meanwhile.
  void look_out() {
    log_.complain(lease_.keep_alive());
    log_.complain(notice_.look_out());
    directory_.go_on();
  }
  void rest() {
    lease_.pause();
    notice_.pause();
    directory_.rest();
  }

  void start_group(const Start& start) {
    FirstStart first{budget_, notice_, log_, attempts_};
    wait_.listen([&first] { return first.take_signal(); });
    const auto start_once = [&](int num_workers) {
      begin_workers(num_workers);
      return start({.num_workers = num_workers,
                    .silence_limit = config_.silence_limit,
                    .briefing = point_.encode(),
                    .most_workers = size_.count().max(),
                    .on_fork = [this](bool begins) { begins ? rest() : look_out(); }});
    };
    try {
      group_ = first.make(start_once, info_.world_size, size_, config_.start_timeout, point_.step());
    } catch (const ConfigError&) {
      directory_.note_end();
      if (!history_.has_record() && wait_.finds_storage()) {
        wait_.await_use([this] { remove_run_directory(info_.path); },
                        "the run's directory is being removed; once more leaves it");
      }
      throw;
    }
    last_word_ = first.reason();
    if (!group_) return note_no_start(first);
    wait_.listen_to(*group_);
    group_->die_together(budget_.allows_any());
    timings_.start = log_.seconds();
    checkpoints_.emplace(info_, config_.checkpoint, lease_, directory_, *group_);
    checkpoints_->begin_attempt(info_.world_size, point_.attempt());
    first.catch_up(
        *group_, [this](GroupEvent& event) { std::visit([this](auto& one) { handle(one); }, event); },
        [this](int signal) { handle_signal(signal, notice_.is_announced_by(signal)); });
  }

  void note_no_start(const FirstStart& first) {
    directory_.note_end();
    failure_before_start_ = first.failure();
    wait_.note(failure_before_start_->signal);
    look_at_what_is_left();
    has_left_in_order_ = first.is_preempted() && left_.newest && !directory_.is_fenced();
    if (has_left_in_order_) last_word_ = Farewell{}.text(0);
  }

  [[nodiscard]] std::uint64_t steps_of(int rank) const { return group_->page(rank).steps.load(); }

  void end_attempt() {
    controller_.blame_hosts(group_->lost_hosts());
    Attempt attempt{.begin_step = point_.step(),
                    .end_step = furthest_step(*group_, info_.world_size, point_.step()),
                    .seconds = log_.seconds(),
                    .world_size = info_.world_size};
    if (const auto& failure = controller_.failure()) {
      attempt.error = error_text(*failure);
      attempt.failed_rank = failure->rank;
      // Others may have gone further before they learnt of it.
      failed_step_ = failure->rank >= 0 ? steps_of(failure->rank) : attempt.end_step;
    }
    attempts_.push_back(std::move(attempt));
    checkpoints_->end_attempt();
  }

  // What is only in memory is lost with this process.
  void save_what_is_left() {
    directory_.note_end();
    if (ranks_.has_any_left())
      controller_.give_up("the run was to go on with another number of workers, and could not");
    if (controller_.failure()) checkpoints_->write_newest_copy(point_.attempt());
    settle();
    look_at_what_is_left();
    has_left_in_order_ = farewell_.is_preempted() && left_.is_state_saved && left_.newest && !directory_.is_fenced();
    if (has_left_in_order_) last_word_ = farewell_.text(checkpoints_->num_written());
  }

  // Waits until all that was saved has been written.
  void settle() {
    wait_.await([this](const Deadline& deadline) { return checkpoints_->drain(deadline); },
                "a checkpoint is still being written; once more leaves it unfinished");
    checkpoints_->note_outcomes(log_, false);
  }

  void look_at_what_is_left() {
    std::vector<std::string> problems;
    if (!wait_.finds_storage()) {
      if (checkpoints_) left_ = checkpoints_->not_looked_up();
      problems.push_back(compose("which checkpoints there are in {} cannot be told: its storage does not answer",
                                 info_.path.string()));
    } else {
      look_for_taker(true);
      wait_.read([&] {
        if (checkpoints_) {
          left_ = checkpoints_->left(problems);
        } else {
          left_.look_up(CheckpointFolder{info_.path / "checkpoints", lease_.generation()},
                        retention_of(config_.checkpoint), problems);
        }
      });
    }
    for (const std::string& problem : problems) log_.warn(problem);
  }

  // Decides about another attempt, and starts it.
  [[nodiscard]] bool restarts(const Renew& renew) {
    if (controller_.num_alive() > 0) {
      last_word_ = "a worker of it cannot be ended, so none is started again";
      return false;
    }
    // All have left although nothing has failed: for another number of them.
    bool is_resize = !controller_.failure() && ranks_.have_all_left();
    const int former = info_.world_size;
    while (is_resize || (controller_.failure() && budget_.allows(*controller_.failure()))) {
      const auto delay = is_resize ? std::optional{std::chrono::nanoseconds{0}} : delay_of_restart();
      if (!delay || !go_on_from_newest(!is_resize && !has_memory_failed(point_.briefing(), attempts_.back())))
        return false;
      if (!is_resize) {
        note_lost_steps();
        log_.tell_of(attempts_);
        log_.tell_of_restart(point_.attempt() + 1, attempts_.back(), point_.briefing().checkpoint, point_.step());
      }
      if (!pause(*delay) || !find_room() || !finds_its_place()) return false;
      if (start_again(renew)) {
        tell_of_resize(former);
        return true;
      }
      is_resize = false;
    }
    return false;
  }

  // Decides whether a run that has failed is started again, and after what time.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> delay_of_restart() {
    if (budget_.retries(*controller_.failure()) && wait_.signal() != 0) {
      interrupt_between_attempts();
      return std::nullopt;
    }
    const auto copy = checkpoints_->newest_in_memory();
    checkpoints_->note_outcomes(log_, false);
    const bool has_progress =
        checkpoints_->num_of_attempt() > 0 || (!copy.empty() && copy.front().step > point_.step());
    const auto verdict = budget_.judge(*controller_.failure(), failed_step_, has_progress);
    if (verdict.restarts) return verdict.delay;
    if (!verdict.reason.empty()) last_word_ = verdict.reason;
    return std::nullopt;
  }

  // Waits until there is room for enough workers. Returns false if there is none, or the run was interrupted meanwhile.
  [[nodiscard]] bool find_room() {
    const auto size = size_.wait(
        config_.start_timeout, [this](auto time) { return pause(time); },
        [this](const std::string& text) { log_.print(text); });
    if (!size && wait_.signal() == 0) last_word_ = size_.no_room();
    if (!size) return false;
    info_.world_size = *size;
    return true;
  }

  // Once the workers run: a callback that throws ends them.
  void tell_of_resize(int former) {
    if (info_.world_size == former || former == 0) return;
    const Resize resize{.from = former, .to = info_.world_size, .step = point_.step()};
    log_.tell_of_resize(resize);
    callbacks_.tell("on_resize", [&resize](const AnyCallback& callback) { callback.on_resize(resize); });
  }

  [[nodiscard]] bool go_on_from_newest(bool can_exchange) {
    if (look_for_taker(true) || !pause(std::chrono::nanoseconds{0})) return false;
    try {
      point_.go_to_newest(
          *checkpoints_, can_exchange, group_->forks_to_restart(), [this] { settle(); },
          [this](const auto& read) { wait_.read(read); });
    } catch (const Error& error) {
      last_word_ = compose("it cannot go on, because its checkpoints cannot be read: {}", error.what());
      return false;
    }
    return pause(std::chrono::nanoseconds{0});
  }

  // It may have been decided some time ago where to go on.
  [[nodiscard]] bool finds_its_place() {
    if (point_.is_there(*checkpoints_, info_.world_size)) return true;
    if (!go_on_from_newest(false)) return false;
    note_lost_steps();
    return true;
  }

  void note_lost_steps() { attempts_.back().lost_steps = attempts_.back().end_step - point_.step(); }

  // Returns false if the run was interrupted meanwhile, or while storage was waited for.
  [[nodiscard]] bool pause(std::chrono::nanoseconds delay) {
    if (wait_.signal() == 0 && wait_.sleep(delay)) return true;
    interrupt_between_attempts();
    return false;
  }

  // A signal that came when no worker was there to be asked: what there is already is all that there is to save.
  void interrupt_between_attempts() {
    farewell_.begin(notice_.is_announced_by(wait_.signal()), checkpoints_->num_written(), Clock::now());
    controller_ = Controller{controller_settings(config_, info_.world_size)};
    controller_.begin(Clock::now());
    static_cast<void>(controller_.on_signal(wait_.signal(), Clock::now()));
  }

  void begin_workers(int num_workers) {
    info_.world_size = num_workers;
    ranks_.begin_attempt(num_workers);
    watch_.begin_attempt(num_workers);
    history_.begin_attempt(num_workers);
    controller_ = Controller{controller_settings(config_, num_workers)};
    controller_.begin(Clock::now());
    tell_next_leader();
  }

  // Before each start of the workers: who leads next has to know of it.
  void tell_next_leader() const {
    leadership_.tell({point_.attempt(), point_.step(), info_.world_size, budget_.counts(), attempts_});
  }

  [[nodiscard]] bool start_again(const Renew& renew) {
    while (true) {
      is_resizing_ = false;
      point_.begin_attempt();
      checkpoints_->begin_attempt(info_.world_size, point_.attempt());
      begin_workers(info_.world_size);
      try {
        renew(info_.world_size);
        group_->restart(info_.world_size, point_.encode());
        return true;
      } catch (const std::exception& error) {
        const Failure failure = Failure::of_start(error, "the workers could not be started again");
        // A host that is lost counts no more, or comes back.
        const bool may_try = failure.is_host ? size_.is_elastic() : size_.shrink(info_.world_size);
        if (may_try) log_.print(failure.what);
        if (may_try && find_room() && finds_its_place()) continue;
        static_cast<void>(controller_.on_failure(failure, Clock::now()));
        attempts_.push_back({.error = failure.what, .begin_step = point_.step(), .end_step = point_.step()});
        return false;
      }
    }
  }

  void handle_next() {
    const auto most = std::min<std::chrono::nanoseconds>(
        {progress_.interval(), watch_.interval(), size_.interval(), notice_.interval(), lease_.interval()});
    const auto now = Clock::now();
    const auto wake = std::min({controller_.wakes_at(), now + most, farewell_.wakes_at(config_.stop_grace, now)});
    auto event = group_->next(Deadline::after(std::max(Clock::duration{0}, wake - Clock::now())));
    controller_.put_off(Clock::now() - wake);
    look_for_taker(false);
    if (event) std::visit([this](auto& one) { handle(one); }, *event);
    if (Clock::now() >= controller_.wakes_at()) carry_out(controller_.on_time(Clock::now()));
    checkpoints_->note_outcomes(log_, controller_.phase() == Phase::running);
    log_.tell_of_losses();
    if (notice_.take_file()) handle_signal(SIGTERM, true, true);
    look_for_standstill();
    look_for_part_checkpoint();
    save_before_it_is_too_late();
    look_for_room();
    progress_.update(state());
  }

  void carry_out(const Orders& orders) {
    if (orders.request_leave) {
      group_->die_together(false);  // those that are left may still save
      group_->request_leave();
    }
    if (orders.abort) group_->abort(*orders.abort);
    // Workers that are about to be started again have nothing left to do.
    const bool will_restart = orders.abort && budget_.retries(*controller_.failure());
    if (!orders.kill && !(will_restart && group_->can_kill())) return;
    if (!group_->can_kill()) directory_.settle(Deadline::after(std::chrono::milliseconds{200}));  // the program ends
    group_->kill();
  }
  void fail(const Failure& failure) { carry_out(controller_.on_failure(failure, Clock::now())); }

  void handle(const MessageEvent& event) {
    try {
      WorkerMessage message = decode_message(event.bytes);
      if (auto* started = std::get_if<StartedMessage>(&message)) note_start(event.rank, std::move(started->host));
      if (auto* report = std::get_if<ReportMessage>(&message)) note_report(event.rank, std::move(report->metrics));
      if (auto* save = std::get_if<SavedMessage>(&message)) {
        checkpoints_->add(event.rank, std::move(*save), history_.newest(), point_.attempt());
        for (int rank = 0; rank < info_.world_size; ++rank) {
          if (controller_.has_exited(rank)) refuse_part_checkpoint(rank);
        }
      }
      if (std::holds_alternative<LeftMessage>(message)) ranks_.note_left();
      if (const auto* told = std::get_if<StepTimesMessage>(&message)) ranks_.note_step_times(event.rank, told->times);
      if (const auto* warning = std::get_if<WarningMessage>(&message)) log_.warn(warning->text);
    } catch (const DataError& error) {
      fail({.rank = event.rank, .what = compose("sent nonsense: {}", error.what())});
    } catch (const std::exception& error) {  // no memory, no thread
      fail({.what = compose("the supervisor cannot go on: {}", error.what())});
    }
  }
  void handle(const OutputEvent& event) {
    directory_.append_log(event.rank, event.line);
    progress_.print(event.is_error, compose("[rank {}] {}", event.rank, event.line));
  }
  void handle(ExitEvent& event) {
    if (event.exit.is_consequence) watch_.note_activity(*group_);
    if (event.exit.kind == WorkerExit::Kind::returned) refuse_part_checkpoint(event.rank);
    carry_out(controller_.on_exit(event.rank, std::move(event.exit), Clock::now()));
  }
  void handle(const SilenceEvent& event) {
    tell_of_ranks();
    carry_out(controller_.on_silence(event.rank, event.message, Clock::now()));
  }
  void handle(const BrokenEvent& event) { fail({.what = event.message}); }
  void handle(const SignalEvent& event) {
    if (notice_.concerns_run(event.signal)) handle_signal(event.signal, notice_.is_announced_by(event.signal));
  }
  void handle_signal(int signal, bool is_announced, bool is_file = false) {
    wait_.note(signal, is_file);
    const Orders orders = controller_.on_signal(signal, Clock::now());
    if (orders.request_leave) farewell_.begin(is_announced, checkpoints_->num_written(), Clock::now());
    log_.tell_of_signal(signal, orders, config_.stop_grace);
    carry_out(orders);
  }

  void look_for_standstill() {
    if (controller_.phase() != Phase::running) return;
    const auto found = watch_.look(*group_, point_.step(), [this](int rank) { return controller_.has_exited(rank); });
    if (!found) return;
    tell_of_ranks();
    fail({.rank = found->rank, .what = found->what, .is_wait = true});
  }

  void look_for_room() {
    if (is_resizing_ || controller_.phase() != Phase::running || !size_.look(Clock::now(), info_.world_size)) return;
    group_->request_resize();
    is_resizing_ = true;
  }

  // Workers that were asked to leave, and end no step, may not do so in time.
  void save_before_it_is_too_late() {
    const bool is_late = farewell_.is_late(config_.stop_grace, Clock::now());
    if (controller_.phase() == Phase::stopping && is_late) checkpoints_->write_newest_copy(point_.attempt());
  }

  void tell_of_ranks() {
    watch_.note_activity(*group_);
    log_.tell_of_stacks(group_->stacks(Deadline::after(std::chrono::milliseconds{500})));
  }

  // A program that was suspended may find its run taken over: nothing of it is changed any more then. looks_anew: only
  // while there are no workers.
  bool look_for_taker(bool looks_anew) {
    if (looks_anew)
      wait_.await_unless_told(lease_.new_look(),
                              "whose the run is need not be said any more; once more ends the program");
    std::string text = lease_.taker(false);
    if (text.empty() || directory_.is_fenced()) return directory_.is_fenced();
    directory_.fence();
    if (controller_.failure()) last_word_ = text;
    note_hook_failure({.what = std::move(text), .kind = Failure::Kind::final});
    return true;
  }

  void note_start(int rank, std::string host) {
    controller_.on_started(rank);
    if (ranks_.note_start(rank, std::move(host)) && point_.attempt() == 0) timings_.first_line = log_.seconds();
  }

  void note_report(int rank, Metrics metrics) {
    if (rank == 0) progress_.on_report(history_.count(0), metrics);
    history_.add(rank, std::move(metrics), log_.seconds(), !config_.callbacks.empty());
    tell_reports(false);
  }

  void look_for_part_checkpoint() {
    const auto failure = checkpoints_->late_part_failure([this](int rank) { return steps_of(rank); }, Clock::now());
    if (failure) fail(*failure);
  }
  void refuse_part_checkpoint(int rank) {
    if (const auto failure = checkpoints_->part_failure(rank)) fail(*failure);
  }

  void tell_reports(bool is_end) {
    while (const auto report = history_.take(is_end)) {
      callbacks_.tell("on_report", [&](const AnyCallback& callback) {
        if (callback.on_report(*report) == Next::stop && !is_end) group_->request_stop();
      });
    }
  }

  void note_hook_failure(Failure failure) {
    if (group_) fail(failure);
    if (controller_.failure() && controller_.failure()->what == failure.what) return;
    if (controller_.failure() || failure_before_start_) {
      log_.warn_in_result(failure.what);
    } else {
      failure_before_start_ = std::move(failure);
    }
  }

  [[nodiscard]] ProgressState state() const {
    return progress_of(*group_, info_.world_size, controller_.num_alive(), log_.seconds());
  }

  [[nodiscard]] std::string error_text(const Failure& failure) const {
    std::string text = failure.what;
    if (failure.rank >= 0) {
      text = text_of_rank_failure(failure, info_.world_size, ranks_.host(failure.rank), history_.count(failure.rank),
                                  directory_);
    }
    if (failure.is_wait && !watch_.activity().empty()) text += "; then " + watch_.activity();
    if (!last_word_.empty()) text += "; " + last_word_;
    return text + compose("; the run's files are in {}", info_.path.string());
  }

  [[nodiscard]] Result finish() {
    look_for_taker(false);
    const Failure* failure = controller_.failure() ? &*controller_.failure() : nullptr;
    if (failure == nullptr && failure_before_start_) failure = &*failure_before_start_;
    ResultFields fields{.path = info_.path, .world_size = info_.world_size};
    const RunEnd end{.error = failure != nullptr ? error_text(*failure) : std::string{},
                     .metrics = history_.newest(),
                     .seconds = log_.seconds()};
    callbacks_.tell("on_end", [&end](const AnyCallback& callback) { callback.on_end(end); });
    if (failure == nullptr && failure_before_start_) failure = &*failure_before_start_;  // on_end has thrown
    if (failure != nullptr) {
      fields.error = error_text(*failure);
      fields.failed_rank = failure->rank;
      fields.exit_status = failure->signal != 0 ? 128 + failure->signal : 1;
      const bool is_cut_off = failure->is_host || (directory_.is_fenced() && leadership_.may_be_replaced);
      if (has_left_in_order_ || is_cut_off) fields.exit_status = config_.preemption.exit_status;
      if (is_cut_off) lease_.leave_to_others();
    }
    fields.history = history_.take_metrics();
    fields.step_times_by_rank = ranks_.take_step_times();
    HeldSignals held;
    wait_.listen([&held] { return held.take(); });
    log_.tell_of(attempts_);
    log_.tell_of_end(fields);
    wait_.settle();
    fields.attempts = std::move(attempts_);
    left_.move_to(fields);
    fields.warnings = log_.all_warnings();
    fields.seconds = log_.seconds();
    fields.timings = timings_;
    fields.timings.teardown = std::max(0.0, fields.seconds - timings_.first_line - timings_.training);
    std::string loss = write_result(directory_, fields, [this] { wait_.settle(); });
    if (!loss.empty()) fields.warnings.push_back(std::move(loss));
    return Result{std::move(fields)};
  }

  const RunConfig& config_;
  ElasticSize size_;
  RunInfo info_;
  RunLease lease_;
  Leadership leadership_;
  RunDirectory directory_;
  RunHistory history_;
  RollCall ranks_;
  ProgressLine progress_;
  RunLog log_;
  Controller controller_;
  FailureBudget budget_;
  RankWatch watch_;
  PreemptionNotice notice_;
  RunCallbacks callbacks_;
  ResumePoint point_;  // where this attempt has begun, or the next one will
  AttentiveWait wait_;
  std::uint64_t failed_step_ = 0;  // at which the last attempt failed
  Farewell farewell_{};
  bool has_left_in_order_ = false;
  std::vector<Attempt> attempts_{};
  std::string last_word_{};  // why a run with failures left is not started again
  std::unique_ptr<WorkerGroup> group_{};
  std::optional<RunCheckpoints> checkpoints_{};  // while there is a group
  LeftCheckpoints left_{};
  std::optional<Failure> failure_before_start_{};  // or after the end: outside of the group's life
  Timings timings_{};
  bool is_resizing_ = false;  // the ranks were asked to leave, for another number of them
};

}  // namespace detail
}  // namespace railyard::inline v0_1
