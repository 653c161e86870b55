// SPDX-License-Identifier: MIT
// Decides what a run does next: a state machine without clock, workers or files of its own. Train room.
//
//   phase      what happens                                                 next phase
//   checking   settings and storage are looked at, nothing runs             starting: begin()
//   starting   workers come to be and connect                               running:  every rank has started
//   running    the training function runs                                   stopping: a signal
//   stopping   workers were asked to stop and have stop_grace to do so      ending:   grace over, second signal
//   ending     every wait was ended; who is left after stop_grace is killed finished
//              (after 1 s at most if stop_grace has passed in stopping)
//   finished   no worker is left (or none can be waited for any longer)
//
// From starting, running and stopping a failure leads to ending, and the exit of the last rank leads to finished.
#pragma once

#include "railyard/train/run_config.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Names the states of a run.
enum class Phase : std::uint8_t { checking, starting, running, stopping, ending, finished };

/// Says what ended a run first. what completes a sentence that begins with "rank 1 of 2", if there is a rank.
struct Failure {
  enum class Kind : std::uint8_t {
    lost,       ///< a worker, or the group, has gone: it may come back
    exception,  ///< out of the training function
    final,      ///< nothing that another start could change: a signal, a callback
    setting,    ///< a ConfigError out of the training function, which another start would not change either
  };
  int rank = -1;
  std::string what{};
  int signal = 0;        ///< the signal to the supervisor that interrupted the run, 0 if none did
  bool is_wait = false;  ///< known only by that somebody waits or is silent: what each rank does tells more
  Kind kind = Kind::lost;
  bool is_host = false;  ///< a process that an engine has started is gone: only the engine can start it again

  /// Is what workers have failed by that could not be started.
  [[nodiscard]] static Failure of_start(const std::exception& error, std::string_view what) {
    const bool is_host = dynamic_cast<const HostLostError*>(&error) != nullptr;
    return {.what = detail::compose("{}: {}", what, error.what()),
            .kind = is_host ? Kind::final : Kind::lost,
            .is_host = is_host};
  }
};

/// Says what the driver of a run has to do to its workers.
struct Orders {
  bool request_leave = false;
  std::optional<std::string> abort{};
  bool kill = false;
};

/// Is the state machine. Every event of a run goes in with its time; orders come out.
class Controller {
 public:
  using Time = Deadline::Clock::time_point;

  struct Settings {
    int num_workers = 1;
    std::chrono::nanoseconds start_timeout = std::chrono::minutes{1};
    std::chrono::nanoseconds stop_grace = std::chrono::seconds{30};
    /// How long the failure of a collective is held back, while the failure behind it may still become known.
    std::chrono::nanoseconds cause_wait = std::chrono::seconds{1};
    /// How long killed workers may take to be gone.
    std::chrono::nanoseconds kill_wait = std::chrono::seconds{10};
  };

  explicit Controller(const Settings& settings)
      : settings_(settings), ranks_(static_cast<std::size_t>(settings.num_workers)) {}

  void begin(Time now) {
    phase_ = Phase::starting;
    limit_ = after(now, settings_.start_timeout);
  }

  void on_started(int rank) {
    ranks_[index(rank)].has_started = true;
    const bool all = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.has_started; });
    if (phase_ == Phase::starting && all) {
      phase_ = Phase::running;
      limit_ = Time::max();
    }
  }

  [[nodiscard]] Orders on_exit(int rank, WorkerExit exit, Time now) {
    Rank& gone = ranks_[index(rank)];
    gone.exit = std::move(exit);
    ++num_exited_;
    const bool has_returned = gone.exit->kind == WorkerExit::Kind::returned;
    const bool is_last = num_exited_ == ranks_.size();
    Orders orders;
    if (may_fail() && gone.exit->is_consequence) {
      if (suspects_.empty()) suspect_limit_ = after(now, settings_.cause_wait);
      suspects_.push_back(rank);
    } else if (may_fail() && !has_returned) {
      orders = fail({.rank = rank,
                     .what = text(*gone.exit),
                     .kind = kind_of(gone),
                     .is_host = gone.exit->kind == WorkerExit::Kind::lost},
                    now);
    } else if (phase_ == Phase::stopping && !has_returned) {
      orders = end(now);  // the others would wait for it
    }
    if (may_fail() && is_last && !suspects_.empty()) orders = fail(consequence(), now);
    if (is_last) phase_ = Phase::finished;
    cut_grace_of_silent_ones(now);
    return orders;
  }

  [[nodiscard]] Orders on_silence(int rank, const std::string& message, Time now) {
    ranks_[index(rank)].is_silent = true;
    Orders orders;
    if (may_fail()) orders = fail({.rank = rank, .what = "stopped answering: " + message, .is_wait = true}, now);
    cut_grace_of_silent_ones(now);
    return orders;
  }

  /// For what is no rank's fault: a broken group, a callback that throws.
  [[nodiscard]] Orders on_failure(Failure failure, Time now) {
    return may_fail() ? fail(std::move(failure), now) : Orders{};
  }

  /// The run cannot go on although, perhaps, no worker has failed.
  void give_up(std::string what) {
    if (!failure_) failure_ = Failure{.what = std::move(what), .kind = Failure::Kind::final};
  }

  /// These hosts, if there are any, were lost meanwhile: that is why ranks have waited in vain, if they have.
  void blame_hosts(const std::string& losses) {
    if (losses.empty() || !failure_ || !failure_->is_wait || failure_->is_host) return;
    failure_->is_host = true;
    failure_->what += "; " + losses;
  }

  [[nodiscard]] Orders on_signal(int signal, Time now) {
    if (phase_ == Phase::finished) return {};
    ++num_signals_;
    if (num_signals_ == 1 && may_fail()) {
      failure_ = Failure{.what = detail::compose("interrupted by {}", detail::signal_name(signal)),
                         .signal = signal,
                         .kind = Failure::Kind::final};
      phase_ = Phase::stopping;
      limit_ = after(now, settings_.stop_grace);
      return {.request_leave = true};
    }
    Orders orders = phase_ == Phase::ending ? Orders{} : end(now);
    orders.kill = true;  // who asks twice does not want to wait
    limit_ = after(now, settings_.kill_wait);
    is_killed_ = true;
    return orders;
  }

  /// Puts off all that is due, where nobody has looked for so much longer than was meant: the program was suspended,
  /// and its workers with it as a rule. What passes by the way on a busy machine counts.
  void put_off(std::chrono::nanoseconds late) {
    if (late <= detail::AwakeTime::most) return;
    for (Time* limit : {&limit_, &suspect_limit_}) {
      if (*limit != Time::max()) *limit = after(*limit, late);
    }
  }

  /// Does what is due at this time; called at wakes_at() or later.
  [[nodiscard]] Orders on_time(Time now) {
    if (may_fail() && !suspects_.empty() && now >= suspect_limit_) return fail(consequence(), now);
    if (now < limit_) return {};
    switch (phase_) {
      case Phase::starting:
        return fail(late_start(), now);
      case Phase::stopping: {  // they have had their grace: only a moment more for waits to end
        Orders orders = end(now);
        limit_ = after(now, moment());
        return orders;
      }
      case Phase::ending:
        if (is_killed_) {
          phase_ = Phase::finished;
          return {};
        }
        is_killed_ = true;
        limit_ = after(now, settings_.kill_wait);
        return {.kill = true};
      default:
        return {};
    }
  }

  /// When on_time() has something to do; Time::max() if never.
  [[nodiscard]] Time wakes_at() const {
    return may_fail() && !suspects_.empty() ? std::min(limit_, suspect_limit_) : limit_;
  }

  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  [[nodiscard]] int num_alive() const noexcept { return static_cast<int>(ranks_.size() - num_exited_); }
  [[nodiscard]] bool has_exited(int rank) const { return ranks_[index(rank)].exit.has_value(); }

 private:
  struct Rank {
    bool has_started = false;
    bool is_silent = false;
    std::optional<WorkerExit> exit{};
  };

  static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  static Time after(Time now, std::chrono::nanoseconds span) {
    return span >= Time::max() - now ? Time::max() : now + span;
  }

  // Before it has started, a worker joins the others: what is refused there, such as memory or a name, the system may
  // give the next time.
  static Failure::Kind kind_of(const Rank& gone) noexcept {
    if (gone.exit->kind != WorkerExit::Kind::threw) return Failure::Kind::lost;
    return gone.has_started && gone.exit->is_config_error ? Failure::Kind::setting : Failure::Kind::exception;
  }

  // Only the first failure counts: what follows from it, or from the end that it brings, is not looked at.
  [[nodiscard]] bool may_fail() const noexcept {
    return !failure_ && phase_ != Phase::finished && phase_ != Phase::checking;
  }

  [[nodiscard]] std::chrono::nanoseconds moment() const noexcept {
    return std::min<std::chrono::nanoseconds>(settings_.stop_grace, std::chrono::seconds{1});
  }

  // Where only those are left that do not answer, nobody uses the grace.
  void cut_grace_of_silent_ones(Time now) noexcept {
    if (phase_ != Phase::ending || is_killed_) return;
    const auto is_waited_for = [](const Rank& one) { return !one.exit && !one.is_silent; };
    if (std::none_of(ranks_.begin(), ranks_.end(), is_waited_for)) limit_ = std::min(limit_, after(now, moment()));
  }

  Orders fail(Failure failure, Time now) {
    failure_ = std::move(failure);
    return end(now);
  }

  Orders end(Time now) {
    phase_ = Phase::ending;
    limit_ = after(now, settings_.stop_grace);
    return {.abort = reason()};
  }

  [[nodiscard]] std::string reason() const {
    if (failure_->rank < 0) return failure_->what;
    return detail::compose("rank {} {}", failure_->rank, failure_->what);
  }

  static std::string text(const WorkerExit& exit) {
    switch (exit.kind) {
      case WorkerExit::Kind::returned:
        return "returned";
      case WorkerExit::Kind::threw:
        return "threw: " + exit.message;
      case WorkerExit::Kind::exited:
        return detail::compose("called exit({}) before its training function had returned{}{}", exit.code,
                               exit.message.empty() ? "" : ": ", exit.message);
      case WorkerExit::Kind::signalled:
        if (exit.message.find(detail::signal_name(exit.code)) != std::string::npos) return "was " + exit.message;
        return detail::compose("was ended by signal {} ({}){}{}", exit.code, detail::signal_name(exit.code),
                               exit.message.empty() ? "" : ": ", exit.message);
      case WorkerExit::Kind::lost:
        return "was lost: " + exit.message;
    }
    return exit.message;
  }

  [[nodiscard]] bool is_suspect(int rank) const {
    return std::find(suspects_.begin(), suspects_.end(), rank) != suspects_.end();
  }

  // The ranks that suspects blame and that have not failed in a collective themselves: returned ones first, for they
  // explain everything, then those that still run.
  [[nodiscard]] std::optional<std::pair<int, int>> culprit_and_witness() const {
    for (const bool must_be_gone : {true, false}) {
      for (const int witness : suspects_) {
        for (const int blamed : ranks_[index(witness)].exit->blamed) {
          const bool is_known = blamed >= 0 && index(blamed) < ranks_.size() && !is_suspect(blamed);
          if (is_known && (has_exited(blamed) || !must_be_gone)) return std::pair{blamed, witness};
        }
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] Failure consequence() const {
    const auto found = culprit_and_witness();
    if (!found)
      return {.rank = suspects_.front(), .what = text(*ranks_[index(suspects_.front())].exit), .is_wait = true};
    const auto [culprit, witness] = *found;
    const std::string& message = ranks_[index(witness)].exit->message;
    if (has_exited(culprit)) {
      return {.rank = culprit,
              .what = detail::compose(
                  "returned from the training function while rank {} still waited for it: {}; all ranks "
                  "must call the same collectives",
                  witness, message),
              .is_wait = true};
    }
    return {.rank = culprit, .what = detail::compose("did not answer rank {}: {}", witness, message), .is_wait = true};
  }

  [[nodiscard]] Failure late_start() const {
    std::string missing;
    int first = -1;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].has_started) continue;
      if (first < 0) {
        first = static_cast<int>(i);
      } else {
        missing += detail::compose("{}{}", missing.empty() ? "" : ", ", i);
      }
    }
    const double seconds = std::chrono::duration<double>(settings_.start_timeout).count();
    return {.rank = first,
            .what = detail::compose(
                "had not joined the group after {} s{}{}; raise RunConfig::start_timeout if it needs more", seconds,
                missing.empty() ? "" : ", nor had ", missing)};
  }

  Settings settings_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::checking;
  Time limit_ = Time::max();
  Time suspect_limit_ = Time::max();
  std::vector<int> suspects_{};
  std::size_t num_exited_ = 0;
  int num_signals_ = 0;
  bool is_killed_ = false;
  std::optional<Failure> failure_{};
};

namespace detail {

/// Are what a run's settings mean for its controller.
[[nodiscard]] inline Controller::Settings controller_settings(const RunConfig& config, int num_workers) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours{24 * 365};
  // A backend that cannot connect says more about it than we can: it goes first.
  return {.num_workers = num_workers,
          .start_timeout = std::min<std::chrono::nanoseconds>(config.start_timeout, longest) + std::chrono::seconds{1},
          .stop_grace = config.stop_grace};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
