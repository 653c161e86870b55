// SPDX-License-Identifier: MIT
// The laws of Backend for Nccl, among threads and among processes, and inside Checked: on the fakes of tests/fakes, or
// on a GPU where tests/gpu.sh runs them.
#include "railyard/collectives/nccl.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/staged_nccl.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using NcclOnThreads = Pair<StagedNccl, railyard::Threads>;
using NcclOnProcesses = Pair<StagedNccl, railyard::Processes>;
using CheckedNcclOnThreads = Pair<railyard::Checked<StagedNccl>, railyard::Threads>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS NcclOnThreads, NcclOnProcesses, CheckedNcclOnThreads
#include "backend_laws.hpp"
