// SPDX-License-Identifier: MIT
// Where a worker stands among the others. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <memory>
#include <string>

namespace railyard::inline v0_1 {

class RankConnector;

/// Says who this worker is. rank counts all workers from 0, local_rank those of this host, node the hosts.
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int num_nodes = 1;
  std::string host{};
  std::string address{};                       ///< by which other hosts reach this one; empty if unknown
  std::shared_ptr<RankConnector> connector{};  ///< how ranks connect, with proof that they belong to the run;
                                               ///< nullptr: a backend does it by itself, without
  int device = -1;  ///< its GPU, among those that its process is shown; -1: it was given none
};

/// Says how far apart the workers of a Scaling can be, and how far apart the ranks of a Backend may be.
enum class Reach { process, host, network };

}  // namespace railyard::inline v0_1
