// SPDX-License-Identifier: MIT
// The laws of Backend for Gloo among processes: over TCP, and as it is by default, which on one host is over shared
// memory, alone and inside Checked; and on two hosts, which one pretends to be.
#include "railyard/collectives/checked.hpp"
#include "railyard/collectives/gloo.hpp"
#include "railyard/workers/processes.hpp"

#include "support/pretended_hosts.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using GlooTcpOnProcesses = Pair<railyard::detail::GlooTcp, railyard::Processes>;
using GlooOnProcesses = Pair<railyard::Gloo, railyard::Processes>;
using CheckedGlooOnProcesses = Pair<railyard::Checked<railyard::Gloo>, railyard::Processes>;
using GlooOnTwoHostsOfProcesses = Pair<GlooOnTwoHosts, railyard::Processes>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS GlooTcpOnProcesses, GlooOnProcesses, CheckedGlooOnProcesses, GlooOnTwoHostsOfProcesses
#include "backend_laws.hpp"
