// SPDX-License-Identifier: MIT
// What a supervisor has to say while a run goes on: on the console, in events.jsonl, in the Result. Train room.
#pragma once

#include "railyard/train/controller.hpp"
#include "railyard/train/detail/checkpoint_writer.hpp"
#include "railyard/train/detail/result_file.hpp"
#include "railyard/train/detail/run_directory.hpp"
#include "railyard/train/result.hpp"

#include "railyard/callbacks/progress.hpp"
#include "railyard/core/callback.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which rank has failed where, and what there is to see of it.
[[nodiscard]] inline std::string text_of_rank_failure(const Failure& failure, int world_size, const std::string& host,
                                                      std::int64_t num_reports, const RunDirectory& directory) {
  std::string text = compose("rank {} of {} on {} {}", failure.rank, world_size, host, failure.what);
  text += num_reports > 0 ? compose("; its last report was number {}", num_reports - 1) : "; it had not reported yet";
  if (const auto log = directory.log_of(failure.rank)) text += "; its output is in " + log->string();
  return text;
}

/// Both the directory and the line must outlive it.
class RunLog {
 public:
  using Clock = Deadline::Clock;

  RunLog(RunDirectory& directory, ProgressLine& progress, Clock::time_point called_at) noexcept
      : directory_(&directory), progress_(&progress), called_at_(called_at) {}

  /// Since fit() was called.
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(Clock::now() - called_at_).count(); }

  void print(const std::string& text) { progress_->print(true, "railyard: " + text); }
  /// Tells of something that is wrong, unless there is nothing to tell.
  void complain(const std::string& text) {
    if (!text.empty()) print(text);
  }
  /// Tells of what storage has not taken since the last call.
  void tell_of_losses() {
    for (const std::string& text : directory_->take_complaints()) print(text);
  }
  /// Tells of it now and in the Result; once, of what several workers say alike.
  void warn(const std::string& text) {
    if (std::find(warnings_.begin(), warnings_.end(), text) != warnings_.end()) return;
    warnings_.push_back(text);
    print(text);
  }
  void warn_in_result(std::string text) { warnings_.push_back(std::move(text)); }
  /// All that the result is to warn of: lost lines of files and of the console as well.
  [[nodiscard]] std::vector<std::string> all_warnings() const {
    std::vector<std::string> all = directory_->warnings();
    if (std::string text = progress_->warning(); !text.empty()) all.push_back(std::move(text));
    all.insert(all.end(), warnings_.begin(), warnings_.end());
    return all;
  }

  /// is_training: whether workers train on meanwhile.
  void tell_of(const SaveOutcome& outcome, bool is_training) {
    JsonObject event = begin_event(outcome.path.empty() ? "checkpoint_failed" : "checkpoint");
    event.add("step", outcome.manifest.step).add("path", outcome.path.string());
    if (!outcome.error.empty()) event.add("error", outcome.error);
    write(event);
    if (outcome.error.empty()) return;
    warn(outcome.path.empty() ? compose("the checkpoint of step {} could not be written: {}{}", outcome.manifest.step,
                                        outcome.error, is_training ? "; training goes on" : "")
                              : outcome.error);
  }

  /// lost: the last of the checkpoints that are gone.
  void tell_of_beginning_anew(const std::string& lost) {
    write(begin_event("begun_anew").add("lost", lost));
    warn(compose("the run begins at the beginning, for {} and all other checkpoints of it are gone", lost));
  }

  /// attempt: the number of the one that begins; failed: the one before. checkpoint: where it goes on, at begin_step;
  /// empty for the beginning.
  void tell_of_restart(int attempt, const Attempt& failed, const std::string& checkpoint, std::uint64_t begin_step) {
    const std::string from = checkpoint.empty() ? "the beginning" : checkpoint;
    JsonObject event = begin_event("restart");
    event.add("attempt", attempt).add("error", failed.error).add("from", from).add("lost_steps", failed.lost_steps);
    write(event);
    print(compose("{}; all workers are started again, from {} (step {}; {} steps are lost)", failed.error, from,
                  begin_step, failed.lost_steps));
  }

  /// Another process has led the run until now, and has told of so many attempts.
  void tell_of_leader(const std::string& why, std::size_t num_attempts) {
    num_attempts_told_ = num_attempts;
    write(begin_event("leader_lost").add("error", why).add("leads", host_name()).add("pid", ::getpid()));
  }
  /// Tells of those that have ended since the last call.
  void tell_of(const std::vector<Attempt>& attempts) {
    for (; num_attempts_told_ < attempts.size(); ++num_attempts_told_) {
      JsonObject event = begin_event("attempt_ended").add("attempt", num_attempts_told_);
      write(add_attempt(event, attempts[num_attempts_told_]));
    }
  }
  void tell_of_end(const ResultFields& fields) {
    JsonObject event = begin_event("ended").add("succeeded", fields.error.empty()).add("error", fields.error);
    write(event.add("failed_rank", fields.failed_rank).add("exit_status", fields.exit_status));
  }

  /// stacks: by rank, the calls that it is in, one a line.
  void tell_of_stacks(const std::vector<std::string>& stacks) {
    for (std::size_t rank = 0; rank < stacks.size(); ++rank) {
      JsonObject event = begin_event("stack");
      event.add("rank", static_cast<std::int64_t>(rank)).add("stack", stacks[rank]);
      write(event);
      print(stacks[rank].empty() ? compose("rank {} does not tell where it is", rank)
                                 : compose("rank {} is in\n{}", rank, stacks[rank]));
    }
  }

  /// What is asked of the workers after it. grace: the time that they have.
  void tell_of_signal(int signal, const Orders& orders, std::chrono::nanoseconds grace) {
    if (orders.request_leave) {
      print(compose("{}: the workers are asked to stop and have {} for it; once more ends them at once",
                    signal_name(signal), Deadline::after(grace).budget_text()));
    } else if (orders.kill) {
      print(compose("{}: the workers are killed", signal_name(signal)));
    }
  }

  void tell_of_resize(const Resize& resize) {
    JsonObject event = begin_event("resize");
    event.add("from", resize.from).add("to", resize.to).add("step", resize.step);
    write(event);
    print(compose("the run goes on with {} workers instead of {}, from step {}", resize.to, resize.from, resize.step));
  }

 private:
  [[nodiscard]] JsonObject begin_event(std::string_view name) const {
    return JsonObject{}.add("event", name).add("seconds", seconds());
  }
  void write(const JsonObject& event) { directory_->append_event(event); }

  RunDirectory* directory_;
  ProgressLine* progress_;
  Clock::time_point called_at_;
  std::vector<std::string> warnings_{};
  std::size_t num_attempts_told_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
