// SPDX-License-Identifier: MIT
// What result.json says. Train room.
#pragma once

#include "railyard/train/detail/json.hpp"
#include "railyard/train/result.hpp"

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] inline JsonObject result_object(const ResultFields& fields) {
  JsonObject object;
  object.add("succeeded", fields.error.empty()).add("error", fields.error).add("failed_rank", fields.failed_rank);
  object.add("exit_status", fields.exit_status).add("seconds", fields.seconds).add("reports", fields.history.size());
  object.add("start_seconds", fields.timings.start).add("first_line_seconds", fields.timings.first_line);
  object.add("training_seconds", fields.timings.training).add("attempts", fields.attempts.size());
  if (const StepTimes times = average_of(fields.step_times_by_rank); times.steps > 0) {
    object.add("steps", times.steps).add("compute_share", times.share_of_compute());
    object.add("data_share", times.share_of_data())
        .add("wait_share", times.share_of_wait())
        .add("communication_share", times.share_of_communication());
    object.add("optimizer_share", times.share_of_optimizer()).add("slowest_rank", times.slowest_rank);
    object.add("gradient_bytes", times.bytes);
  }
  return object;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
