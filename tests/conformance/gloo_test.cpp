// SPDX-License-Identifier: MIT
// The laws of Backend for Gloo, among threads and among processes, and inside Checked: over TCP, and as it is by
// default, which on one host is over shared memory; and on two hosts, which one pretends to be.
#include "railyard/collectives/gloo.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/pretended_hosts.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using GlooTcpOnThreads = Pair<railyard::detail::GlooTcp, railyard::Threads>;
using GlooTcpOnProcesses = Pair<railyard::detail::GlooTcp, railyard::Processes>;
using CheckedGlooTcpOnThreads = Pair<railyard::Checked<railyard::detail::GlooTcp>, railyard::Threads>;
using CheckedGlooOnProcesses = Pair<railyard::Checked<railyard::Gloo>, railyard::Processes>;
using GlooOnThreads = Pair<railyard::Gloo, railyard::Threads>;
using GlooOnProcesses = Pair<railyard::Gloo, railyard::Processes>;
using GlooOnTwoHostsOfProcesses = Pair<GlooOnTwoHosts, railyard::Processes>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS                                                                             \
  GlooTcpOnThreads, GlooTcpOnProcesses, CheckedGlooTcpOnThreads, CheckedGlooOnProcesses, GlooOnThreads, \
      GlooOnProcesses, GlooOnTwoHostsOfProcesses
#include "backend_laws.hpp"
