// SPDX-License-Identifier: MIT
// The laws of Backend for Gloo, by either transport, among threads and among processes, and inside Checked.
#include "railyard/collectives/gloo.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using GlooOnProcesses = Pair<railyard::Gloo, railyard::Processes>;
using GlooTcpOnThreads = Pair<railyard::detail::GlooTcp, railyard::Threads>;
using GlooTcpOnProcesses = Pair<railyard::detail::GlooTcp, railyard::Processes>;
using CheckedGlooTcpOnThreads = Pair<railyard::Checked<railyard::detail::GlooTcp>, railyard::Threads>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS GlooOnProcesses, GlooTcpOnThreads, GlooTcpOnProcesses, CheckedGlooTcpOnThreads
#include "backend_laws.hpp"
