// SPDX-License-Identifier: MIT
// What run.json tells of the settings of a run. Train room.
#pragma once

#include "railyard/train/detail/environment.hpp"
#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/run_record.hpp"
#include "railyard/train/run_config.hpp"
#include "railyard/train/scaling_config.hpp"

#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/value.hpp"

#include <chrono>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Adds the settings that fit() was called with, but those that the record of a run has anyway (name, seed), that are
/// code (callbacks, functions), and accept_changes. Times are in seconds.
inline void add_settings(JsonObject& object, const RunConfig& run, const ScalingConfig& scaling) {
  const auto add_time = [&object](std::string_view name, std::chrono::nanoseconds time) {
    object.add(name, std::chrono::duration<double>(time).count());
  };
  object.add("min_workers", scaling.num_workers.min()).add("max_workers", scaling.num_workers.max());
  object.add("use_gpu", scaling.use_gpu);
  object.add("data_split", joined(run.data.split, ", "));
  object.add("checkpoint_keep", run.checkpoint.keep).add("checkpoint_score", run.checkpoint.score);
  object.add("checkpoint_order", run.checkpoint.order == ScoreOrder::max ? "max" : "min");
  object.add("checkpoint_every_steps", run.checkpoint.every_steps);
  add_time("checkpoint_interval_seconds", run.checkpoint.interval);
  object.add("checkpoint_synchronous", run.checkpoint.synchronous);
  object.add("max_failures", run.failure.max_failures).add("retry_exceptions", run.failure.retry_exceptions);
  object.add("renew_after_progress", run.failure.renew_after_progress);
  object.add("max_failures_at_same_step", run.failure.max_failures_at_same_step);
  add_time("backoff_seconds", run.failure.backoff);
  add_time("max_backoff_seconds", run.failure.max_backoff);
  object.add("memory_percent", run.failure.memory_percent);
  object.add("preemption_file", run.preemption.file.string()).add("preemption_status", run.preemption.exit_status);
  add_time("collective_timeout_seconds", run.collective_timeout);
  add_time("setup_timeout_seconds", run.setup_timeout);
  add_time("start_timeout_seconds", run.start_timeout);
  add_time("stop_grace_seconds", run.stop_grace);
  add_time("step_timeout_seconds", run.step_timeout);
  add_time("silence_limit_seconds", run.silence_limit);
  object.add("report_step_times", run.report_step_times);
}

/// Says which settings differ from those that run.json told, "max_failures 3 instead of 0, ..."; empty if none does.
/// has_other_size: the number of workers is told by itself.
[[nodiscard]] inline std::string difference_of_settings(const RunConfig& run, const ScalingConfig& scaling,
                                                        const NamedValues& then, bool has_other_size) {
  JsonObject object;
  add_settings(object, run, scaling);
  NamedValues now;
  for (const auto& [name, value] : values_of_record(parse_json(object.text()))) {
    if (!has_other_size || !name.ends_with("_workers")) now.set(name, value);
  }
  return difference_of(now, then);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
