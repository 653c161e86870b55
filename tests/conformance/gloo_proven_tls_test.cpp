// SPDX-License-Identifier: MIT
// The laws of Backend for Gloo on two hosts, which one pretends to be, whose ranks prove to each other that they belong
// to one run, and whose lines go by TLS: in groups of which both hosts have equally many, and in others, which are
// connected by lines alone.
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/proven_hosts.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using GlooOnTwoTlsHostsOfThreads = Pair<GlooOnTwoTlsHosts, railyard::Threads>;
using GlooOnTwoTlsHostsOfProcesses = Pair<GlooOnTwoTlsHosts, railyard::Processes>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS GlooOnTwoTlsHostsOfThreads, GlooOnTwoTlsHostsOfProcesses
#include "backend_laws.hpp"
