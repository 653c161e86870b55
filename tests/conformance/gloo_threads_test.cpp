// SPDX-License-Identifier: MIT
// The laws of Backend for Gloo among threads: over TCP, alone and inside Checked, and as it is by default, which on one
// host is over shared memory.
#include "railyard/collectives/checked.hpp"
#include "railyard/collectives/gloo.hpp"
#include "railyard/workers/threads.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using GlooTcpOnThreads = Pair<railyard::detail::GlooTcp, railyard::Threads>;
using CheckedGlooTcpOnThreads = Pair<railyard::Checked<railyard::detail::GlooTcp>, railyard::Threads>;
using GlooOnThreads = Pair<railyard::Gloo, railyard::Threads>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS GlooTcpOnThreads, CheckedGlooTcpOnThreads, GlooOnThreads
#include "backend_laws.hpp"
