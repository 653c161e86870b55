// SPDX-License-Identifier: MIT
// The laws of Backend for SharedMemory, among threads and among processes, and inside Checked.
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using SharedMemoryOnThreads = Pair<railyard::SharedMemory, railyard::Threads>;
using SharedMemoryOnProcesses = Pair<railyard::SharedMemory, railyard::Processes>;
using CheckedSharedMemoryOnThreads = Pair<railyard::Checked<railyard::SharedMemory>, railyard::Threads>;
using CheckedSharedMemoryOnProcesses = Pair<railyard::Checked<railyard::SharedMemory>, railyard::Processes>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS \
  SharedMemoryOnThreads, SharedMemoryOnProcesses, CheckedSharedMemoryOnThreads, CheckedSharedMemoryOnProcesses
#include "backend_laws.hpp"
