// SPDX-License-Identifier: MIT
// The laws of Backend for Gloo, among threads and among processes, and inside Checked.
#include "railyard/collectives/gloo.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using GlooOnThreads = Pair<railyard::Gloo, railyard::Threads>;
using GlooOnProcesses = Pair<railyard::Gloo, railyard::Processes>;
using CheckedGlooOnThreads = Pair<railyard::Checked<railyard::Gloo>, railyard::Threads>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS GlooOnThreads, GlooOnProcesses, CheckedGlooOnThreads
#include "backend_laws.hpp"
