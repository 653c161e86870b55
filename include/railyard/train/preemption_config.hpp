// SPDX-License-Identifier: MIT
// How a run leaves when its machine is taken away. Train room.
#pragma once

#include "railyard/core/version.hpp"

#include <csignal>
#include <filesystem>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what announces that the machine will be taken away. Where the training function has a TrainState, all ranks
/// then save it at the end of the same step and leave, within RunConfig::stop_grace; so they do after Ctrl-C.
struct PreemptionConfig {
  /// Of SIGTERM, SIGUSR1, SIGUSR2, SIGINT and SIGHUP, those that do. SIGUSR1 and SIGUSR2 are the program's own if they
  /// do not.
  std::vector<int> signals{SIGTERM, SIGUSR1};
  /// A file that does as soon as it exists; none if empty.
  std::filesystem::path file{};
  /// Result::exit_status() when a checkpoint was saved so, or an older one is all that there is to go on from: a
  /// scheduler is to start the job again. 75 is EX_TEMPFAIL. From 1 to 255.
  int exit_status = 75;
};

}  // namespace railyard::inline v0_1
