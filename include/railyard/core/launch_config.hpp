// SPDX-License-Identifier: MIT
// How a process finds the others that an engine has started beside it. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace railyard::inline v0_1 {

/// Says which of the launched processes this is and how it reaches the first one, which leads. Whatever is left empty
/// is found out from what Slurm, MPI, torchrun or Kubernetes have put into the environment.
struct LaunchConfig {
  int process = -1;       ///< which of the launched processes this is, from 0; -1 asks the environment
  int num_processes = 0;  ///< how many there are; 0 asks the environment
  std::string leader{};   ///< "host:port" on which process 0 listens
  std::string job{};      ///< what two jobs differ by, such as the number that a scheduler has given
  std::string network{};  ///< name ("eth0") or network ("10.0.0.0/8") of the address by which others reach this host
  std::filesystem::path rendezvous{};   ///< a folder that all processes see: process 0 leaves its address there
  std::filesystem::path secret_file{};  ///< mode 600; empty takes RAILYARD_SECRET_FILE or RAILYARD_SECRET, or else a
                                        ///< random secret that goes through the rendezvous folder
  std::optional<bool> tls{};  ///< TLS 1.3 for all that processes send to each other; unset takes RAILYARD_TLS (1 or 0),
                              ///< or else none: what is sent can be read on its way. The same in all processes.
};

}  // namespace railyard::inline v0_1
