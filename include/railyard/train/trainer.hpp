// SPDX-License-Identifier: MIT
// Runs a training function on many workers: the one place where a Backend and a Scaling meet. Train room.
#pragma once

#include "railyard/train/data_config.hpp"
#include "railyard/train/detail/accepted_changes.hpp"
#include "railyard/train/detail/briefing.hpp"
#include "railyard/train/detail/connecting_store.hpp"
#include "railyard/train/detail/elastic_size.hpp"
#include "railyard/train/detail/election.hpp"
#include "railyard/train/detail/follower_parts.hpp"
#include "railyard/train/detail/inheritance.hpp"
#include "railyard/train/detail/policies.hpp"
#include "railyard/train/detail/run_checkpoints.hpp"
#include "railyard/train/detail/run_lease.hpp"
#include "railyard/train/detail/run_record.hpp"
#include "railyard/train/detail/run_settings.hpp"
#include "railyard/train/detail/shared_shelves.hpp"
#include "railyard/train/detail/supervise.hpp"
#include "railyard/train/detail/together.hpp"
#include "railyard/train/detail/training_function.hpp"
#include "railyard/train/detail/unread_settings.hpp"
#include "railyard/train/detail/worker_devices.hpp"
#include "railyard/train/result.hpp"
#include "railyard/train/run_config.hpp"
#include "railyard/train/scaling_config.hpp"
#include "railyard/train/train_state.hpp"
#include "railyard/train/worker_of.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/joining.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <concepts>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

class Gloo;       // the defaults of Trainer are only named here: their headers stand on the same floor
class Processes;  // and are included by whoever uses them, railyard.hpp first of all

namespace detail {

/// Throws: ConfigError that names the first setting that cannot work.
inline void check_settings(const ScalingConfig& scaling, const RunConfig& run) {
  const WorkerCount& count = scaling.num_workers;
  if (count.min() <= 0) {
    throw ConfigError{compose("ScalingConfig::num_workers is {}: a run needs at least one worker", count.min())};
  }
  if (count.max() < count.min()) {
    throw ConfigError{compose("ScalingConfig::num_workers is {{{}, {}}}: it is the least and then the most",
                              count.min(), count.max())};
  }
  constexpr int most_workers = 16384;
  if (count.max() > most_workers) {
    throw ConfigError{compose("ScalingConfig::num_workers is {}: the most that one machine can be asked for is {}",
                              count.max(), most_workers)};
  }
  if (scaling.capacity_interval.count() <= 0) {
    throw ConfigError{"ScalingConfig::capacity_interval must be longer than nothing, such as std::chrono::seconds{10}"};
  }
  const auto check_time = [](const char* field, std::chrono::nanoseconds time) {
    if (time > std::chrono::nanoseconds{0}) return;
    throw ConfigError{
        compose("RunConfig::{} is {} s: it must be longer than nothing, such as std::chrono::seconds{{30}}", field,
                std::chrono::duration<double>(time).count())};
  };
  check_time("collective_timeout", run.collective_timeout);
  check_time("start_timeout", run.start_timeout);
  check_time("stop_grace", run.stop_grace);
  check_time("silence_limit", run.silence_limit);
  check_name(run.name);
  const auto check_path = [](const char* field, const std::filesystem::path& path) {
    if (path.native().find('\0') == std::string::npos) return;
    throw ConfigError{
        compose("RunConfig::{} is \"{}\" and goes on after a NUL byte, which no path can have: leave it out", field,
                path.c_str())};
  };
  check_path("storage_path", run.storage_path);
  check_path("preemption.file", run.preemption.file);
  check_accepted_changes(run.accept_changes);
  if (run.setup_timeout.count() < 0) {
    throw ConfigError{"RunConfig::setup_timeout is negative: 0 makes it as long as collective_timeout"};
  }
  if (run.step_timeout.count() < 0) throw ConfigError{"RunConfig::step_timeout is negative: 0 watches no steps"};
  if (run.checkpoint.keep < 0) {
    throw ConfigError{
        compose("RunConfig::checkpoint.keep is {}: it counts checkpoints, and 0 keeps all", run.checkpoint.keep)};
  }
  if (run.failure.max_failures < -1) {
    throw ConfigError{compose("RunConfig::failure.max_failures is {}: it counts failures, and -1 allows any number",
                              run.failure.max_failures)};
  }
  if (run.failure.max_failures_at_same_step < 1) {
    throw ConfigError{compose("RunConfig::failure.max_failures_at_same_step is {}: it must be 1 or more",
                              run.failure.max_failures_at_same_step)};
  }
  if (!(run.failure.memory_percent >= 0)) {
    throw ConfigError{compose("RunConfig::failure.memory_percent is {}: it is a share of the time, and 0 is none",
                              run.failure.memory_percent)};
  }
  if (run.checkpoint.interval.count() < 0) {
    throw ConfigError{"RunConfig::checkpoint.interval is negative: 0 makes no checkpoints by the clock"};
  }
  for (const int signal : run.preemption.signals) {
    if (std::find(caught_signals.begin(), caught_signals.end(), signal) != caught_signals.end()) continue;
    throw ConfigError{compose(
        "RunConfig::preemption.signals has {} ({}): those that a run hears are SIGTERM, SIGUSR1, SIGUSR2, SIGINT and "
        "SIGHUP",
        signal_name(signal), signal)};
  }
  if (run.preemption.exit_status < 1 || run.preemption.exit_status > 255) {
    throw ConfigError{
        compose("RunConfig::preemption.exit_status is {}: it must be 1 to 255, for 0 says that the job is done, and a "
                "status has no more than one byte",
                run.preemption.exit_status)};
  }
  if (run.failure.backoff.count() < 0 || run.failure.max_backoff.count() < 0) {
    throw ConfigError{"RunConfig::failure.backoff and max_backoff must not be negative"};
  }
}

/// Returns how many workers a run begins with. Throws: ConfigError if there is not even room for the least number.
[[nodiscard]] inline int first_size(ElasticSize& size, std::chrono::nanoseconds start_timeout) {
  const Deadline deadline = Deadline::after(start_timeout, "RunConfig::start_timeout");
  while (true) {
    if (const auto now = size.ask()) return *now;
    if (deadline.expired()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
  throw ConfigError{
      compose("after {} {}: ask for fewer, or look at ScalingConfig::capacity, by default the cores of this "
              "process, or its GPUs with ScalingConfig::use_gpu",
              deadline.budget_text(), size.no_room())};
}

/// Finds out what an earlier program has left of the run, and whether this one may go on with it.
/// Throws: ConfigError if it may not.
[[nodiscard]] inline RunRecord read_earlier(const RunPlace& place, const RunConfig& run, const ScalingConfig& scaling,
                                            const RunInfo& info) {
  const std::string remains = place.is_new ? std::string{} : looking_at_run([&] { return remains_of_run(place.path); });
  if (!remains.empty() && !accepts_change(run.accept_changes, "checkpoints")) {
    throw ConfigError{compose(
        "the run in {} has lost its run.json and its checkpoints, for {} still tell of it: put both back from a "
        "copy, or begin at the beginning by .accept_changes = {{\"checkpoints\"}}, which removes what it has "
        "told, or choose another RunConfig::name",
        place.path.string(), remains)};
  }
  const bool is_new = place.is_new || !remains.empty() || looking_at_run([&] { return is_barely_begun(place.path); });
  if (is_new && run.resume == Resume::required) {
    if (place.is_new) remove_run_directory(place.path);
    throw ConfigError{
        compose("RunConfig::resume is Resume::required, but there is no run in {}: check RunConfig::name "
                "and storage_path",
                place.path.string())};
  }
  if (!place.is_new) looking_at_run([&] { sweep_run_directory(place.path, is_new); });
  if (is_new) return {};
  if (run.resume == Resume::never) {
    throw ConfigError{
        compose("RunConfig::name is \"{}\", but {} exists already and RunConfig::resume is Resume::never: "
                "choose another name, or leave it empty for a unique one, or remove the directory",
                place.name, place.path.string())};
  }
  RunRecord before = read_run_record(place.path);
  const auto tell = [&before](std::string_view what, const std::string& now, const std::string& then) {
    if (now == then || before.has_succeeded) return;
    before.problems.push_back(
        compose("the run was started with {} {} and goes on with {}: bits may differ", what, then, now));
  };
  tell("the backend", info.backend, before.backend);
  tell("the scaling", info.scaling, before.scaling);
  tell("a world size of", compose("{}", info.world_size), compose("{}", before.world_size));
  const bool has_other_size = info.world_size != before.world_size;
  const std::string settings = difference_of_settings(run, scaling, before.settings, has_other_size);
  if (!settings.empty() && !before.has_succeeded) {
    before.problems.push_back(compose("the run goes on with other settings than it was started with: {}", settings));
  }
  if (before.seed && *before.seed != info.seed && !accepts_change(run.accept_changes, "seed")) {
    throw ConfigError{
        compose("RunConfig::seed is {}, but the run in {} was started with {}, and its order of samples "
                "would change half way: use that seed, or .accept_changes = {{\"seed\"}}, or choose "
                "another RunConfig::name",
                info.seed, place.path.string(), *before.seed)};
  }
  return before;
}

/// Returns the Result that a run has left which has succeeded.
[[nodiscard]] inline Result recorded_result(const RunPlace& place, const RunConfig& run, RunRecord before) {
  ResultFields fields{.history = std::move(before.history),
                      .path = place.path,
                      .world_size = before.world_size,
                      .seconds = before.seconds,
                      .warnings = std::move(before.problems),
                      .is_recorded = true};
  const CheckpointFolder folder{place.path / "checkpoints"};
  fields.checkpoint = folder.newest_whole(fields.warnings);
  if (!fields.checkpoint && !before.last_checkpoint.empty()) {
    fields.warnings.push_back(compose("the run has written checkpoints, the last one {}, but none is there any more",
                                      before.last_checkpoint));
  }
  std::vector<std::string> problems;
  fields.best_checkpoints = folder.best(retention_of(run.checkpoint), problems);
  for (std::string& problem : problems) {
    const auto& told = fields.warnings;
    if (std::find(told.begin(), told.end(), problem) == told.end()) fields.warnings.push_back(std::move(problem));
  }
  if (run.progress != Progress::quiet) {
    std::fprintf(stderr,
                 "railyard: the run in %s has succeeded before, and nothing is done: this is what it has left\n",
                 place.path.c_str());
    for (const std::string& warning : fields.warnings) std::fprintf(stderr, "railyard: %s\n", warning.c_str());
  }
  return Result{std::move(fields)};
}

/// Writes run.json. is_new: there is nothing else yet of the run, so that it need not last before the first checkpoint,
/// which sees to that. Throws: ConfigError if the storage takes no files.
inline void write_run(const RunInfo& info, const RunConfig& run, const ScalingConfig& scaling, bool is_new) {
  JsonObject object;
  object.add("name", info.name).add("backend", info.backend).add("scaling", info.scaling);
  object.add("world_size", info.world_size).add("seed", info.seed).add("started_at", time_text(std::time(nullptr)));
  object.add("railyard_version", version);
  add_settings(object, run, scaling);
  if (const std::string loss = write_object(info.path / "run.json", object, !is_new); !loss.empty()) {
    if (is_new) remove_run_directory(info.path);
    throw ConfigError{
        compose("RunConfig::storage_path is \"{}\": run.json cannot be written there ({}); choose a "
                "folder that you can write to and that has room",
                run.storage_path.string(), loss)};
  }
}

/// Writes run.json anew, as the record says that it was. info: of the run that goes on. Throws: as write_run().
inline void write_again(const RunRecord& before, RunInfo info, const RunConfig& run, const ScalingConfig& scaling) {
  info.backend = before.backend;
  info.scaling = before.scaling;
  info.world_size = before.world_size;
  info.seed = before.seed.value_or(info.seed);
  write_run(info, run, scaling, false);
}

}  // namespace detail

/// Is what policies that cannot work get: one sentence of the compiler about what is wrong with them. The one that
/// trains stands below.
template <class B = Gloo, class S = Processes>
class Trainer {
  using Refused = decltype(detail::refuse_policies<B, S>());

 public:
  // What the other one takes as well, so that nothing follows that sentence; and so that the arguments lead to the
  // default policies.
  template <class F>
  Trainer(F&&, ScalingConfig, RunConfig = {}, const detail::AnyOptions& = {}) {}
  template <class F>
  Trainer(F&&, ScalingConfig, RunConfig, Datasets, const detail::AnyOptions& = {}) {}
  template <class F, class Other, class... Rest>
  requires(!std::convertible_to<Other, ScalingConfig>) Trainer(F&&, Other&&, Rest&&...) {}
  Result fit();
};

/// Runs a training function on many workers and waits for them.
///
/// The function takes one argument: `auto& worker`, a Worker&, or a WorkerOf<Backend>&. Where workers are threads, each
/// runs its own copy of it; where they are processes, each has its own copy of the whole program, so that what the
/// function writes to its captures does not come back.
/// Example: ry::Trainer<ry::Gloo, ry::Processes> trainer{[](auto& worker) { ... }, {.num_workers = 2}};
/// The datasets are those that worker.dataset("train") gives; the options are the backend's.
template <class B, class S>
requires detail::FittingPolicies<B, S>
class Trainer<B, S> {
 public:
  /// Keeps the function and the settings; nothing is started or checked before fit().
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Trainer>)
      Trainer(F&& function, ScalingConfig scaling, RunConfig run = {}, Datasets datasets = {},
              typename B::Options options = {})
      : function_(keep(std::forward<F>(function))),
        scaling_(std::move(scaling)),
        run_(std::move(run)),
        datasets_(std::move(datasets)),
        options_(std::move(options)) {}
  /// Keeps them for a run without datasets.
  template <class F>
  Trainer(F&& function, ScalingConfig scaling, RunConfig run, typename B::Options options)
      : Trainer(std::forward<F>(function), std::move(scaling), std::move(run), Datasets{}, std::move(options)) {}

  /// Refuses a second argument that is no ScalingConfig.
  template <class F, class Other, class... Rest>
  requires(!std::convertible_to<Other, ScalingConfig>) Trainer(F&&, Other&&, Rest&&...) {
    static_assert(std::convertible_to<Other, ScalingConfig>,
                  "the second argument of a Trainer says how many workers there are, by name: {.num_workers = 2}");
  }

  /// Runs the function on all workers and returns when none of them is left. May be called again: a new run. Under
  /// Launched, every process calls it, and it returns the same in all of them.
  /// Throws: ConfigError before anything is started, if a setting cannot work; it names the setting and the remedy.
  Result fit() {
    std::vector<std::pair<std::string, detail::DatasetPreprocessors>> preprocessors;
    for (const NamedDataset& one : datasets_) {
      detail::DatasetPreprocessors of_one{one.dataset};
      if (!of_one.empty()) preprocessors.emplace_back(one.name, std::move(of_one));
    }
    return run().with(std::move(preprocessors));
  }

  /// Returns a Trainer that goes on with the run in that directory. Throws: ConfigError if the path names none; what
  /// fit() throws, when it is called.
  template <class F>
  [[nodiscard]] static Trainer restore(const std::filesystem::path& run_directory, F&& function, ScalingConfig scaling,
                                       RunConfig run = {}, Datasets datasets = {}, typename B::Options options = {}) {
    std::error_code code;
    auto path = std::filesystem::absolute(run_directory, code).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    if (code || !path.has_filename()) {
      throw ConfigError{detail::compose("Trainer::restore() was given \"{}\": give it the directory of a run",
                                        run_directory.string())};
    }
    run.name = path.filename().string();
    run.storage_path = path.parent_path();
    run.resume = Resume::required;
    return Trainer{std::forward<F>(function), std::move(scaling), std::move(run), std::move(datasets),
                   std::move(options)};
  }

 private:
  using Function = detail::TrainingFunction<B>;

  Result run() {
    const auto called_at = Deadline::Clock::now();
    detail::check_settings(scaling_, run_);
    detail::refuse_unread_settings(scaling_, S::name, JoiningScaling<S>);
    if (function_->is_empty()) {
      throw ConfigError{
          "the training function given to Trainer is empty (an empty std::function, or a null pointer): give "
          "it one that can be called"};
    }
    detail::check_datasets(datasets_, run_.data);
    find_devices();
    B::check(options_);
    detail::open_standard_streams();
    S scaling{};
    if constexpr (JoiningScaling<S>) {
      scaling.join({.launch = scaling_.launch,
                    .num_workers = scaling_.num_workers.max(),
                    .is_elastic = scaling_.num_workers.is_elastic(),
                    .settings = detail::common_settings(B::name, scaling_.num_workers, devices_.are_asked_for(), run_),
                    .timeout = run_.start_timeout,
                    .silence_limit = run_.silence_limit,
                    .say = detail::launch_lines(run_.progress),
                    .devices = devices_.told(),
                    .on_request = detail::part_writer(),
                    .find_chosen = [this] { return detail::chosen_leader(run_); }});
      if (!scaling.leads()) return follow(scaling, called_at);
      return detail::tell_others(scaling, [&] { return lead(scaling, called_at); });
    } else {
      return lead(scaling, called_at);
    }
  }

  // A Backend of GPUs needs one for each worker, unless its options say which.
  [[nodiscard]] bool gives_devices() const {
    if constexpr (requires { requires std::same_as<decltype(options_.device), int>; }) {
      if (options_.device >= 0) return false;
    }
    return B::device_kind != DeviceKind::cpu;
  }

  // Where workers are forked, nothing may have used CUDA here, and nothing does.
  void find_devices() {
    if constexpr (!S::copies_function) detail::refuse_to_fork_after_cuda();
    if (!scaling_.use_gpu && !gives_devices()) return;
    devices_ = {detail::find_devices(Deadline::after(run_.start_timeout, "RunConfig::start_timeout")),
                S::reach == Reach::process};
  }

  Result lead(S& scaling, Deadline::Clock::time_point called_at) {
    ScalingConfig count = scaling_;
    bool is_many = false;
    if constexpr (JoiningScaling<S>) {
      is_many = scaling.num_processes() > 1;
      if (is_many || !count.num_workers.is_elastic()) {
        count = detail::count_together(std::move(count), scaling.num_workers(), [&scaling] { return scaling.room(); });
      }
    }
    if (!is_many) {
      devices_.require(count.num_workers.min());
      count = detail::limit_to_devices(std::move(count), devices_);
    }
    detail::ElasticSize size{std::move(count)};
    RunInfo info{.backend = std::string{B::name},
                 .scaling = std::string{S::name},
                 .world_size = detail::first_size(size, run_.start_timeout),
                 .seed = run_.seed};
    const detail::RunPlace place = detail::make_run_directory(run_.name, run_.storage_path);
    return go_on(scaling, std::move(size), std::move(info), place, detail::take_lease(place), run_, called_at, {});
  }

  // In a process that leads, and has the run. run: its settings. inherited: of whoever led before.
  Result go_on(S& scaling, detail::ElasticSize size, RunInfo info, const detail::RunPlace& place,
               detail::RunLease lease, const RunConfig& run, Deadline::Clock::time_point called_at,
               std::optional<detail::Inheritance> inherited) {
    info.name = place.name;
    info.path = place.path;
    detail::RunRecord before = detail::read_earlier(place, run, scaling_, info);
    const bool has_other_seed = before.seed && *before.seed != info.seed && !before.has_succeeded;  // by permission
    if (has_other_seed) before.seed = info.seed;  // the next start needs none
    if (before.is_recovered || has_other_seed) detail::write_again(before, info, run, scaling_);
    if (before.has_succeeded) return detail::recorded_result(place, run, std::move(before));
    if (before.world_size == 0) detail::write_run(info, run, scaling_, true);
    detail::Leadership leadership{.inherited = std::move(inherited)};
    if constexpr (JoiningScaling<S>) {
      leadership.note = [&scaling](std::string_view note) { scaling.note(note); };
      leadership.may_be_replaced = scaling.num_processes() > 1 && scaling.lost_lead().may_go_on;
      if (leadership.may_be_replaced) lease.show();  // the others look for it
      scaling.tell(detail::encode_begin({.name = info.name, .path = info.path, .lease = lease.id()}));
    }

    const RunContext context = context_of(info.name, info.path);
    std::vector<std::unique_ptr<Function>> copies;  // made one after another, by the thread that called fit()
    const auto renew = [&](int num_workers) {
      copies.clear();
      for (int rank = 0; S::copies_function && rank < num_workers; ++rank) copies.push_back(function_->copy());
    };
    const WorkerBody body = [&](WorkerLink& link) {
      Function& own = S::copies_function ? *copies[static_cast<std::size_t>(link.world().rank)] : *function_;
      run_worker(link, context, own);
    };
    const auto start = [&](const GroupPlan& plan) {
      renew(plan.num_workers);
      return scaling.start(plan, body);
    };
    return detail::supervise(run, std::move(size), std::move(info), called_at, std::move(lease), std::move(before),
                             std::move(leadership), start, renew);
  }

  // In a process that another one leads: makes workers as it is told to, until it is told the result. If the one that
  // leads is lost, it follows another, or leads itself.
  Result follow(S& scaling, Deadline::Clock::time_point called_at) {
    std::optional<detail::BegunRun> begun;
    try {
      for (bool has_begun = false;;) {
        try {
          const std::string told = has_begun ? scaling.follow(body_of(*begun)) : scaling.hear();
          auto begin = detail::decode_begin(told);
          if (!begin) return detail::result_of_told(told);
          begin->is_seen = (begun && begun->is_seen) ||
                           (scaling.lost_lead().may_go_on && detail::sees_lease(begin->path, begin->lease));
          begun = std::move(begin);
          has_begun = true;
        } catch (const HostLostError& error) {
          const LostLead lost = scaling.lost_lead();
          if (!begun || !lost.may_go_on) throw;
          std::optional<detail::Election<S>> election;
          election.emplace(scaling, begun->path, run_, detail::launch_lines(run_.progress));
          detail::Elected elected = election->hold(*begun, error.what());
          const std::string why = detail::text_of_succession(lost, error.what());
          if (elected.lease) return succeed(scaling, election, std::move(*elected.lease), *begun, why, called_at);
          begun->lease = elected.leader;
          begun->is_seen = true;
          has_begun = false;
        }
      }
    } catch (const HostLostError& error) {
      return Result{{.error = error.what(),
                     .exit_status = run_.preemption.exit_status,
                     .path = begun ? begun->path : std::filesystem::path{},
                     .is_leader = false}};
    }
  }

  [[nodiscard]] WorkerBody body_of(const detail::BegunRun& begun) {
    return [this, context = context_of(begun.name, begun.path)](WorkerLink& link) {
      run_worker(link, context, *function_);
    };
  }

  // In a process that has taken the run over: leads those that are left. why: it does. election: ends before the run
  // goes on, which hears signals itself, and forks: no other thread may be at work then.
  template <class Election>
  Result succeed(S& scaling, std::optional<Election>& election, detail::RunLease lease, const detail::BegunRun& begun,
                 const std::string& why, Deadline::Clock::time_point called_at) {
    election->lead(lease);
    return detail::tell_others(scaling, [&] {
      const LostLead lost = scaling.lost_lead();
      RunConfig run = run_;
      run.resume = Resume::if_unfinished;  // whatever it was to begin with, it has begun
      detail::ElasticSize size{
          detail::count_together(scaling_, scaling.num_workers(), [&scaling] { return scaling.room(); })};
      RunInfo info{.backend = std::string{B::name}, .scaling = std::string{S::name}, .seed = run_.seed};
      try {
        info.world_size = election->find_room(size);
      } catch (const HostLostError& error) {
        lease.leave_to_others();
        return Result{{.error = error.what(), .exit_status = run_.preemption.exit_status, .path = begun.path}};
      }
      lease.pause();
      election.reset();
      return go_on(scaling, std::move(size), std::move(info), {begun.name, begun.path, false}, std::move(lease), run,
                   called_at, detail::inherit(lost, why, called_at));
    });
  }

  [[nodiscard]] RunContext context_of(std::string name, std::filesystem::path path) const {
    return {.name = std::move(name),
            .path = std::move(path),
            .seed = run_.seed,
            .collective_timeout = run_.collective_timeout,
            .setup_timeout = run_.setup_timeout,
            .checkpoint_every_steps = run_.checkpoint.every_steps,
            .checkpoint_interval = run_.checkpoint.interval,
            .is_elastic = scaling_.num_workers.is_elastic(),
            .memory_percent = run_.failure.memory_percent,
            .has_restarts = run_.failure.max_failures != 0,
            .waits_for_checkpoints = run_.checkpoint.synchronous,
            .accept_changes = run_.accept_changes,
            .datasets = datasets_,
            .data = run_.data,
            .reports_step_times = run_.report_step_times};
  }

  template <class F>
  static std::unique_ptr<Function> keep(F&& function) {
    using Kept = std::decay_t<F>;
    constexpr bool fits = std::is_invocable_v<Kept&, WorkerOf<B>&>;
    constexpr bool can_be_copied = !S::copies_function || std::is_copy_constructible_v<Kept>;
    static_assert(fits,
                  "the training function cannot be called with a worker: it takes exactly one argument, auto& worker, "
                  "railyard::Worker& or railyard::WorkerOf<Backend>&");
    static_assert(can_be_copied,
                  "each worker thread runs its own copy of the training function, but this function cannot be copied: "
                  "capture copyable things (std::shared_ptr instead of std::unique_ptr), or use Processes");
    if constexpr (fits && can_be_copied) {
      using Holder = detail::TrainingFunctionOf<B, Kept, S::copies_function>;
      return std::make_unique<Holder>(std::in_place, std::forward<F>(function));
    } else {
      return nullptr;
    }
  }

  void run_worker(WorkerLink& link, RunContext context, Function& function) const {
    detail::Briefing briefing = detail::decode_briefing(link.briefing());
    context.resumes_from = std::move(briefing.checkpoint);
    context.held_slots = std::move(briefing.slots);
    context.attempt = briefing.attempt;
    detail::ConnectingStore store{link.store(), link.world().rank};
    link.on_abort([&store](std::string_view reason) { store.abort(reason); });
    World world = link.world();
    world.device = devices_.give(world);
    std::unique_ptr<B> backend;
    try {
      backend = B::connect(options_, world, store, Deadline::after(run_.start_timeout, "RunConfig::start_timeout"));
    } catch (...) {
      link.on_abort({});
      throw;
    }
    WorkerOf<B> worker{link, context, world, std::move(backend)};
    link.post(detail::encode_started(worker.host()));
    detail::share_shelves(worker, link, datasets_);
    try {
      function.call(worker);
    } catch (const detail::Leave&) {
      link.post(detail::encode_left());
    }
    worker.post_step_times();
  }

  std::unique_ptr<Function> function_;
  ScalingConfig scaling_;
  RunConfig run_;
  Datasets datasets_;
  typename B::Options options_;
  detail::WorkerDevices devices_{};
};

// Of the options the refused one knows nothing.
template <class F, class B = Gloo>
Trainer(F&&, ScalingConfig, RunConfig, typename B::Options) -> Trainer<B, Processes>;
template <class F, class B = Gloo>
Trainer(F&&, ScalingConfig, RunConfig, Datasets, typename B::Options) -> Trainer<B, Processes>;

}  // namespace railyard::inline v0_1
