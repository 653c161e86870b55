// SPDX-License-Identifier: MIT
// The settings of a run. Train room.
#pragma once

#include "railyard/train/any_callback.hpp"
#include "railyard/train/checkpoint_config.hpp"
#include "railyard/train/data_config.hpp"
#include "railyard/train/failure_config.hpp"
#include "railyard/train/preemption_config.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Says whether a run shows how far it is, on standard error: one line that is redrawn on a terminal, else a plain line
/// now and then.
enum class Progress : std::uint8_t { automatic, quiet };

/// Says what fit() does about a run of the same name that is there already.
enum class Resume : std::uint8_t {
  if_unfinished,  ///< goes on with it; of one that has succeeded it returns the recorded Result and starts nothing, if
                  ///< Result::is_state_saved()
  never,          ///< refuses the name
  required,       ///< as if_unfinished, and refuses to begin at the beginning
};

/// Holds the settings of a run; fit() checks all of them before anything is started.
struct RunConfig {
  /// Name of the run's directory in storage_path; if empty, date and time and a random suffix.
  std::string name{};
  /// Where runs are kept; made if it does not exist.
  std::filesystem::path storage_path = "runs";
  /// What everything random in the run starts from; equal on all ranks.
  std::uint64_t seed = 0;
  /// What is done if the run exists already.
  Resume resume = Resume::if_unfinished;
  /// What may differ from what an existing run was started with: "seed", of which an epoch under way keeps the former
  /// one; "data", what the loader that goes on reads; "checkpoints", those that it has written: if all are gone, with
  /// or without run.json, the run begins at the beginning.
  std::vector<std::string> accept_changes{};
  CheckpointConfig checkpoint{};
  PreemptionConfig preemption{};
  FailureConfig failure{};
  DataConfig data{};
  Progress progress = Progress::automatic;
  /// Told about the run in this order, in the process and on the thread that called fit().
  std::vector<AnyCallback> callbacks{};
  /// How long a collective waits for the other ranks.
  std::chrono::nanoseconds collective_timeout = std::chrono::minutes{10};
  /// The same until this rank's first step has ended: what comes before may take one rank long, such as rank 0 that
  /// prepares the data for all. Where no step is ever ended, it stays that. 0: no longer than later on.
  std::chrono::nanoseconds setup_timeout{0};
  /// How long the workers may take until every one is about to call the training function.
  std::chrono::nanoseconds start_timeout = std::chrono::minutes{1};
  /// How long workers that were asked to stop, or that are left over after a failure, may go on before they are killed.
  std::chrono::nanoseconds stop_grace = std::chrono::seconds{30};
  /// How long a rank may take for a step until the group counts as failed and every rank's position is told; evaluation
  /// between steps included. The first step of each start of the workers may take setup_timeout (collective_timeout
  /// where that is 0) if that is longer. 0: as long as it likes.
  std::chrono::nanoseconds step_timeout{0};
  /// How long a worker process may show no sign of life (stopped, frozen) before it counts as failed.
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};
  /// Adds to the metrics of each report where the time of the rank's steps of a prepared model has gone since the last
  /// one: compute_share, data_share (waiting for batches), wait_share, communication_share, optimizer_share,
  /// gradient_bytes; and slowest_rank, which is of all steps since the workers were started. See StepTimes. A metric of
  /// the program's by one of these names stays as it is.
  bool report_step_times = false;
};

}  // namespace railyard::inline v0_1
