// SPDX-License-Identifier: MIT
// What happens when a worker fails. Train room.
#pragma once

#include "railyard/core/version.hpp"

#include <chrono>

namespace railyard::inline v0_1 {

/// Says how often a run may be started again after a failure: all workers anew, from the newest state that there is, in
/// memory or on disk.
struct FailureConfig {
  /// How many failures the run survives; -1 for any number. A failure of the group counts once, however many ranks
  /// have failed. Ctrl-C, SIGTERM, exceptions of callbacks, and a ConfigError out of the training function, which would
  /// come again, end the run in any case.
  int max_failures = 0;
  /// Whether an exception out of the training function counts as such a failure; otherwise it ends the run.
  bool retry_exceptions = true;
  /// Whether a checkpoint that was made since the last failure makes the budget whole again.
  bool renew_after_progress = false;
  /// Ends the run when it has failed so often in a row at the same step, whatever the budget: the program does it.
  int max_failures_at_same_step = 3;
  /// How long to wait before the first restart; twice as long before each further one without progress between them.
  std::chrono::nanoseconds backoff{0};
  std::chrono::nanoseconds max_backoff = std::chrono::minutes{1};
  /// How much of the time of training goes into copies of the TrainState to memory that outlives the workers, in
  /// percent: a restart goes on from the last one, which loses a few steps only, and so does the next
  /// program where this one is told to end and no step does. Where no failure is survived, that is all that they are
  /// for: there is one in ten seconds at most (at one percent), and none while a checkpoint is as new. Each worker
  /// keeps two copies of its part; under Launched, each process two of what all ranks have alike. 0: none; nor are
  /// there any where memory is short on some host, which Result::warnings() tell, or where a TrainState has files.
  double memory_percent = 1;
};

}  // namespace railyard::inline v0_1
