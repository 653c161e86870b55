// SPDX-License-Identifier: MIT
// The laws of Backend for Gloo among processes that a launcher has started, which are parents of the workers: as it is
// by default, which on one host is over shared memory, and over TCP; and inside Checked.
#include "railyard/collectives/checked.hpp"
#include "railyard/collectives/gloo.hpp"

#include "support/launched_here.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using GlooOnLaunched = Pair<railyard::Gloo, LaunchedHere>;
using CheckedGlooTcpOnLaunched = Pair<railyard::Checked<railyard::detail::GlooTcp>, LaunchedHere>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS GlooOnLaunched, CheckedGlooTcpOnLaunched
#include "backend_laws.hpp"
