// SPDX-License-Identifier: MIT
// What result.json says. Train room.
#pragma once

#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/run_directory.hpp"
#include "railyard/train/result.hpp"

#include "railyard/core/error.hpp"
#include "railyard/workers/detail/signal_watch.hpp"

#include <csignal>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says how one start of the workers ended.
inline JsonObject& add_attempt(JsonObject& object, const Attempt& attempt) {
  object.add("error", attempt.error).add("failed_rank", attempt.failed_rank).add("begin_step", attempt.begin_step);
  object.add("end_step", attempt.end_step).add("lost_steps", attempt.lost_steps);
  return object.add("world_size", attempt.world_size).add("ended_after_seconds", attempt.seconds);
}

[[nodiscard]] inline std::vector<JsonObject> attempt_objects(const std::vector<Attempt>& attempts) {
  std::vector<JsonObject> objects(attempts.size());
  for (std::size_t at = 0; at < attempts.size(); ++at) add_attempt(objects[at], attempts[at]);
  return objects;
}

[[nodiscard]] inline JsonObject result_object(const ResultFields& fields) {
  JsonObject object;
  object.add("succeeded", fields.error.empty()).add("error", fields.error).add("failed_rank", fields.failed_rank);
  object.add("exit_status", fields.exit_status).add("seconds", fields.seconds).add("reports", fields.history.size());
  object.add("state_saved", fields.is_state_saved).add("failed_checkpoints", fields.failed_checkpoints);
  object.add("start_seconds", fields.timings.start).add("first_line_seconds", fields.timings.first_line);
  object.add("training_seconds", fields.timings.training).add("attempts", attempt_objects(fields.attempts));
  if (const StepTimes times = average_of(fields.step_times_by_rank); times.steps > 0) {
    object.add("steps", times.steps);
    object.add("compute_share", times.share_of_compute());
    object.add("data_share", times.share_of_data())
        .add("wait_share", times.share_of_wait())
        .add("communication_share", times.share_of_communication());
    object.add("optimizer_share", times.share_of_optimizer()).add("slowest_rank", times.slowest_rank);
    object.add("gradient_bytes", times.bytes).add("skipped_steps", times.skipped);
  }
  return object;
}

/// Keeps signals that would end the program from doing so while it lives, and lets the first one do it then, so that a
/// result is written first.
class HeldSignals {
 public:
  HeldSignals() {
    try {
      watch_.emplace();
    } catch (const Error&) {  // there is no descriptor left: then they come as they come
    }
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() {
    static_cast<void>(take());
    watch_.reset();
    if (!first_) return;
    struct sigaction current {};
    ::sigaction(*first_, nullptr, &current);
    // Otherwise whoever it is for has heard it.
    if ((current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL) ::raise(*first_);
  }

  /// Returns the next one that has come; nothing if there is none.
  [[nodiscard]] std::optional<int> take() noexcept {
    const auto signal = watch_ ? watch_->take() : std::nullopt;
    if (!first_) first_ = signal;
    return signal;
  }

 private:
  std::optional<SignalWatch> watch_{};
  std::optional<int> first_{};
};

/// Writes result.json, or else a run that has succeeded would be done again; as durably as what there is to go
/// on from. settle: see RunDirectory::write_last(). Returns what went wrong, or an empty text.
template <class Settle>
[[nodiscard]] std::string write_result(RunDirectory& directory, const ResultFields& fields, const Settle& settle) {
  return directory.write_last("result.json", result_object(fields), fields.checkpoint.has_value(), settle);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
