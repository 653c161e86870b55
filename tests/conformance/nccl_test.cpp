// SPDX-License-Identifier: MIT
// The laws of Backend for Nccl, among threads and among processes, inside Checked, and for the host's buffers: on the
// fakes of tests/fakes, or on a GPU where tests/gpu.sh runs them.
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
using HostNcclOnThreads = Pair<HostNccl, railyard::Threads>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS NcclOnThreads, NcclOnProcesses, CheckedNcclOnThreads, HostNcclOnThreads
#include "backend_laws.hpp"
