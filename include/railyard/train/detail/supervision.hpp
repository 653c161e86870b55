// SPDX-License-Identifier: MIT
// Drives one run: passes the group's events to the controller, the files, the callbacks and the console. Train room.
#pragma once

#include "railyard/train/controller.hpp"
#include "railyard/train/detail/activity.hpp"
#include "railyard/train/detail/briefing.hpp"
#include "railyard/train/detail/elastic_size.hpp"
#include "railyard/train/detail/failure_budget.hpp"
#include "railyard/train/detail/farewell.hpp"
#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/first_start.hpp"
#include "railyard/train/detail/inheritance.hpp"
#include "railyard/train/detail/patience.hpp"
#include "railyard/train/detail/preemption_notice.hpp"
#include "railyard/train/detail/rank_watch.hpp"
#include "railyard/train/detail/result_file.hpp"
#include "railyard/train/detail/roll_call.hpp"
#include "railyard/train/detail/run_callbacks.hpp"
#include "railyard/train/detail/run_checkpoints.hpp"
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
#include <limits>
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
              RunRecord before = {}, Leadership leadership = {}, const Console& console = Console{})
      : config_(config),
        size_(std::move(size)),
        info_(std::move(info)),
        lease_(std::move(lease)),
        leadership_(std::move(leadership)),
        directory_(info_.path, size_.count().max()),
        history_(directory_, info_.world_size, std::move(before)),
        ranks_(info_.world_size),
        progress_(console, config.progress == Progress::quiet),
        log_(directory_, progress_, called_at),
        controller_(controller_settings(config, info_.world_size)),
        budget_(config.failure, size_.is_elastic()),
        watch_(config, info_.world_size),
        notice_(config.preemption),
        callbacks_(config.callbacks, [this](Failure failure) { note_hook_failure(std::move(failure)); }) {}

  /// Runs to the end. renew: called before the workers are started again.
  /// Throws: ConfigError if the run cannot go on as it was asked to, or if the group cannot be started because of its
  /// settings.
  [[nodiscard]] Result run(const Start& start, const Renew& renew) {
    look_out();
    if (history_.has_record()) go_on_from_earlier();  // a new run has no checkpoints to look for
    if (!lease_.takeover().empty()) log_.warn(lease_.takeover());
    if (leadership_.inherited) take_over(*leadership_.inherited, begin_step_, briefing_, budget_, attempts_, log_);
    callbacks_.tell("on_start", [this](const AnyCallback& callback) { callback.on_start(info_); });
    if (!failure_before_start_) start_group(start);
    if (group_) {
      if (leadership_.inherited) tell_of_resize(leadership_.inherited->ledger.world_size);
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
  }
  void rest() {
    lease_.pause();
    notice_.pause();
  }

  void start_group(const Start& start) {
    controller_.begin(Clock::now());
    leadership_.tell({briefing_.attempt, begin_step_, info_.world_size, budget_.counts(), attempts_});
    FirstStart first{budget_, notice_, log_, attempts_};
    const GroupPlan plan{.num_workers = info_.world_size,
                         .silence_limit = config_.silence_limit,
                         .briefing = encode_briefing(briefing_),
                         .most_workers = size_.count().max(),
                         .on_fork = [this](bool begins) { begins ? rest() : look_out(); }};
    try {
      group_ = first.make([&] { return start(plan); }, begin_step_);
    } catch (const ConfigError&) {
      if (!history_.has_record()) directory_.remove();
      throw;
    }
    last_word_ = first.reason();
    if (!group_) return note_no_start(first);
    group_->die_together(budget_.allows_any());
    timings_.start = log_.seconds();
    checkpoints_.emplace(info_, config_.checkpoint, lease_, *group_);
    first.catch_up(
        *group_, [this](GroupEvent& event) { std::visit([this](auto& one) { handle(one); }, event); },
        [this](int signal) { handle_signal(signal, notice_.is_announced_by(signal)); });
  }

  void note_no_start(const FirstStart& first) {
    failure_before_start_ = first.failure();
    left_.look_up(CheckpointFolder{info_.path / "checkpoints", lease_.generation()}, retention_of(config_.checkpoint),
                  log_);
    has_left_in_order_ = first.is_preempted() && left_.newest && !directory_.is_fenced();
    if (has_left_in_order_) last_word_ = Farewell{}.text(0);
  }

  void go_on_from_earlier() {
    for (const std::string& problem : history_.problems()) log_.warn(problem);
    std::vector<std::string> problems;
    const auto newest = find_checkpoint(info_.path, lease_, config_, history_.last_checkpoint(), problems);
    if (!newest && !history_.last_checkpoint().empty()) log_.tell_of_beginning_anew(history_.last_checkpoint());
    began_with_checkpoint_ = newest.has_value();
    go_on_from(newest);
    for (const std::string& problem : problems) log_.warn(problem);
  }

  // From here on, what was reported after the checkpoint will be reported anew.
  void go_on_from(const std::optional<Checkpoint>& checkpoint) {
    briefing_.checkpoint = checkpoint ? checkpoint->path().string() : std::string{};
    briefing_.slots.clear();
    begin_step_ = checkpoint ? checkpoint->manifest().step : 0;
    log_.complain(history_.go_back(checkpoint ? checkpoint->manifest().report + 1 : 0));
  }

  void go_on_from(const std::vector<SavedMessage>& copy) {
    briefing_.checkpoint = "memory";
    briefing_.slots = slots_of(copy);
    begin_step_ = copy.front().step;
    log_.complain(history_.go_back(copy.front().report + 1));
  }

  [[nodiscard]] std::uint64_t steps_of(int rank) const { return group_->page(rank).steps.load(); }

  void end_attempt() {
    controller_.blame_hosts(group_->lost_hosts());
    Attempt attempt{
        .begin_step = begin_step_, .end_step = begin_step_, .seconds = log_.seconds(), .world_size = info_.world_size};
    for (int rank = 0; rank < info_.world_size; ++rank) {
      attempt.end_step = std::max(attempt.end_step, steps_of(rank));
    }
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
    if (controller_.failure()) checkpoints_->write_newest_copy(briefing_.attempt);
    settle();
    left_ = checkpoints_->left(log_);
    has_left_in_order_ = farewell_.is_preempted() && left_.is_state_saved && left_.newest && !directory_.is_fenced();
    if (has_left_in_order_) last_word_ = farewell_.text(checkpoints_->num_written());
  }

  // While no worker is left: whether a signal has come that asks the run to end.
  [[nodiscard]] bool take_signal() {
    const auto event = group_->next(Deadline::after(std::chrono::nanoseconds{0}));
    const auto* signal = event ? std::get_if<SignalEvent>(&*event) : nullptr;
    if (signal == nullptr || !notice_.concerns_run(signal->signal)) return false;
    stop_signal_ = signal->signal;
    return true;
  }

  // Waits until all that was saved has been written.
  void settle() {
    bool was_asked = false;
    while (!checkpoints_->drain(Deadline::after(std::chrono::milliseconds{20}))) {
      if (!take_signal()) continue;
      if (was_asked) end_by_signal(stop_signal_);  // a write cannot be interrupted, and what is committed stays
      was_asked = true;
      log_.print(compose("{}: a checkpoint is still being written; once more leaves it unfinished",
                         signal_name(stop_signal_)));
    }
    checkpoints_->note_outcomes(log_, false);
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
      if (!delay || !go_on_from_newest(!is_resize && !has_memory_failed(briefing_, attempts_.back()))) return false;
      if (!is_resize) {
        attempts_.back().lost_steps = attempts_.back().end_step - begin_step_;
        log_.tell_of(attempts_);
        log_.tell_of_restart(briefing_.attempt + 1, attempts_.back(), briefing_.checkpoint, begin_step_);
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
    if (controller_.failure()->kind != Failure::Kind::final && stop_signal_ != 0) {
      interrupt_between_attempts();
      return std::nullopt;
    }
    const auto copy = checkpoints_->newest_in_memory();
    checkpoints_->note_outcomes(log_, false);
    const bool has_progress = checkpoints_->num_of_attempt() > 0 || (!copy.empty() && copy.front().step > begin_step_);
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
    if (!size && stop_signal_ == 0) last_word_ = size_.no_room();
    if (!size) return false;
    info_.world_size = *size;
    return true;
  }

  // Once the workers run: a callback that throws ends them.
  void tell_of_resize(int former) {
    if (info_.world_size == former || former == 0) return;
    const Resize resize{.from = former, .to = info_.world_size, .step = begin_step_};
    log_.tell_of_resize(resize);
    callbacks_.tell("on_resize", [&resize](const AnyCallback& callback) { callback.on_resize(resize); });
  }

  [[nodiscard]] bool go_on_from_newest(bool can_exchange) {
    if (look_for_taker(true)) return false;
    auto copy = checkpoints_->kept(checkpoints_->newest_in_memory(), can_exchange);
    if (copy.empty() || group_->forks_to_restart()) {
      if (copy.empty()) checkpoints_->write_newest_copy(briefing_.attempt);
      settle();
      copy = checkpoints_->kept(checkpoints_->newest_copy(), can_exchange);  // a newer checkpoint may have failed
    }
    if (!copy.empty()) {
      go_on_from(copy);
      return true;
    }
    try {
      go_on_from(checkpoints_->go_back(began_with_checkpoint_));
      return true;
    } catch (const Error& error) {
      last_word_ = compose("it cannot go on, because its checkpoints cannot be read: {}", error.what());
      return false;
    }
  }

  // A process may have been lost, or come back, since it was decided where to go on.
  [[nodiscard]] bool finds_its_place() {
    if (briefing_.slots.empty() || checkpoints_->still_keeps(briefing_.slots, info_.world_size)) return true;
    if (!go_on_from_newest(false)) return false;
    attempts_.back().lost_steps = attempts_.back().end_step - begin_step_;
    return true;
  }

  // Returns false if the run was interrupted meanwhile.
  [[nodiscard]] bool pause(std::chrono::nanoseconds delay) {
    if (sleeps_unless([this] { return take_signal(); }, delay)) return true;
    interrupt_between_attempts();
    return false;
  }

  // A signal that came when no worker was there to be asked: what there is already is all that there is to save.
  void interrupt_between_attempts() {
    farewell_.begin(notice_.is_announced_by(stop_signal_), checkpoints_->num_written(), Clock::now());
    controller_ = Controller{controller_settings(config_, info_.world_size)};
    controller_.begin(Clock::now());
    static_cast<void>(controller_.on_signal(stop_signal_, Clock::now()));
  }

  void begin_attempt() {
    ++briefing_.attempt;
    is_resizing_ = false;
    ranks_.begin_attempt(info_.world_size);
    watch_.begin_attempt(info_.world_size);
    history_.begin_attempt(info_.world_size);
    checkpoints_->begin_attempt(info_.world_size, briefing_.attempt);
    controller_ = Controller{controller_settings(config_, info_.world_size)};
    controller_.begin(Clock::now());
  }

  [[nodiscard]] bool start_again(const Renew& renew) {
    while (true) {
      begin_attempt();
      leadership_.tell({briefing_.attempt, begin_step_, info_.world_size, budget_.counts(), attempts_});
      try {
        renew(info_.world_size);
        group_->restart(info_.world_size, encode_briefing(briefing_));
        return true;
      } catch (const std::exception& error) {
        const std::string what = compose("the workers could not be started again: {}", error.what());
        if (size_.shrink(info_.world_size) && find_room() && finds_its_place()) {
          log_.print(what);
          continue;
        }
        static_cast<void>(controller_.on_failure(Failure::of_start(error, what), Clock::now()));
        attempts_.push_back({.error = what, .begin_step = begin_step_, .end_step = begin_step_});
        return false;
      }
    }
  }

  void handle_next() {
    const auto interval =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(progress_.interval()));
    const auto most = std::min<std::chrono::nanoseconds>(
        {interval, watch_.interval(), size_.interval(), notice_.interval(), lease_.interval()});
    const auto now = Clock::now();
    const auto wake = std::min({controller_.wakes_at(), now + most, farewell_.wakes_at(config_.stop_grace, now)});
    auto event = group_->next(Deadline::after(std::max(Clock::duration{0}, wake - Clock::now())));
    look_for_taker(false);
    if (event) std::visit([this](auto& one) { handle(one); }, *event);
    if (Clock::now() >= controller_.wakes_at()) carry_out(controller_.on_time(Clock::now()));
    checkpoints_->note_outcomes(log_, controller_.phase() == Phase::running);
    if (notice_.take_file()) handle_signal(SIGTERM, true);
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
    const bool will_restart =
        orders.abort && controller_.failure()->kind != Failure::Kind::final && budget_.allows(*controller_.failure());
    if (orders.kill || (will_restart && group_->can_kill())) group_->kill();
  }
  void fail(const Failure& failure) { carry_out(controller_.on_failure(failure, Clock::now())); }

  void handle(const MessageEvent& event) {
    try {
      WorkerMessage message = decode_message(event.bytes);
      if (auto* started = std::get_if<StartedMessage>(&message)) note_start(event.rank, std::move(started->host));
      if (auto* report = std::get_if<ReportMessage>(&message)) note_report(event.rank, std::move(report->metrics));
      if (auto* save = std::get_if<SavedMessage>(&message)) {
        checkpoints_->add(event.rank, std::move(*save), history_.newest(), briefing_.attempt);
        for (int rank = 0; rank < info_.world_size; ++rank) {
          if (controller_.has_exited(rank)) refuse_part_checkpoint(rank, all_steps);
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
    log_.complain(directory_.append_log(event.rank, event.line));
    progress_.print(event.is_error, compose("[rank {}] {}", event.rank, event.line));
  }
  void handle(ExitEvent& event) {
    if (event.exit.is_consequence) watch_.note_activity(*group_);
    if (event.exit.kind == WorkerExit::Kind::returned) refuse_part_checkpoint(event.rank, all_steps);
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
  void handle_signal(int signal, bool is_announced) {
    stop_signal_ = signal;
    const Orders orders = controller_.on_signal(signal, Clock::now());
    if (orders.request_leave) farewell_.begin(is_announced, checkpoints_->num_written(), Clock::now());
    log_.tell_of_signal(signal, orders, config_.stop_grace);
    carry_out(orders);
  }

  void look_for_standstill() {
    if (controller_.phase() != Phase::running) return;
    const auto found = watch_.look(*group_, begin_step_, [this](int rank) { return controller_.has_exited(rank); });
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
    const bool is_late = farewell_.is_late(checkpoints_->num_written(), config_.stop_grace, Clock::now());
    if (controller_.phase() == Phase::stopping && is_late) checkpoints_->write_newest_copy(briefing_.attempt);
  }

  void tell_of_ranks() {
    watch_.note_activity(*group_);
    log_.tell_of_stacks(group_->stacks(Deadline::after(std::chrono::milliseconds{500})));
  }

  // A program that was suspended may find its run taken over: nothing of it is changed any more then.
  bool look_for_taker(bool at_once) {
    std::string text = lease_.taker(at_once);
    if (text.empty() || directory_.is_fenced()) return directory_.is_fenced();
    directory_.fence();
    if (controller_.failure()) last_word_ = text;
    note_hook_failure({.what = std::move(text), .kind = Failure::Kind::final});
    return true;
  }

  void note_start(int rank, std::string host) {
    controller_.on_started(rank);
    if (ranks_.note_start(rank, std::move(host)) && briefing_.attempt == 0) timings_.first_line = log_.seconds();
  }

  void note_report(int rank, Metrics metrics) {
    if (rank == 0) progress_.on_report(history_.count(0), metrics);
    log_.complain(history_.add(rank, std::move(metrics), log_.seconds(), !config_.callbacks.empty()));
    tell_reports(false);
  }

  static constexpr std::uint64_t all_steps = std::numeric_limits<std::uint64_t>::max();

  // A rank that has gone by a step which others have saved would keep them waiting for ever. What it has posted may
  // still be on its way, so this is looked at for a while.
  void look_for_part_checkpoint() {
    const int found = checkpoints_->late_rank([this](int rank) { return steps_of(rank); });
    if (patience_.is_over(found, Clock::now())) refuse_part_checkpoint(found, steps_of(found));
  }

  void refuse_part_checkpoint(int rank, std::uint64_t steps) {
    if (auto failure = checkpoints_->part_failure(rank, steps)) fail(*failure);
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
    look_for_taker(true);
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
    log_.tell_of(attempts_);
    log_.tell_of_end(fields);
    fields.attempts = std::move(attempts_);
    left_.move_to(fields);
    fields.warnings = log_.all_warnings();
    fields.seconds = log_.seconds();
    fields.timings = timings_;
    fields.timings.teardown = std::max(0.0, fields.seconds - timings_.first_line - timings_.training);
    if (std::string loss = write_result(directory_, fields); !loss.empty()) fields.warnings.push_back(std::move(loss));
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
  Briefing briefing_{};
  std::uint64_t begin_step_ = 0;   // of this attempt
  std::uint64_t failed_step_ = 0;  // at which the last attempt failed
  Farewell farewell_{};
  bool has_left_in_order_ = false;
  Patience patience_{};  // with a rank that seems to have no part in a checkpoint
  int stop_signal_ = 0;  // the last one that asked the run to end
  std::vector<Attempt> attempts_{};
  std::string last_word_{};  // why a run with failures left is not started again
  std::unique_ptr<WorkerGroup> group_{};
  std::optional<RunCheckpoints> checkpoints_{};  // while there is a group
  LeftCheckpoints left_{};
  bool began_with_checkpoint_ = false;
  std::optional<Failure> failure_before_start_{};  // or after the end: outside of the group's life
  Timings timings_{};
  bool is_resizing_ = false;  // the ranks were asked to leave, for another number of them
};

}  // namespace detail
}  // namespace railyard::inline v0_1
