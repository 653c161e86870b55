// SPDX-License-Identifier: MIT
// The laws of Backend for Local, alone and inside Checked.
#include "railyard/collectives/local.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/workers/threads.hpp"

namespace railyard_test {
template <class B, class S>
struct Pair;
using LocalOnThreads = Pair<railyard::Local, railyard::Threads>;
using CheckedLocalOnThreads = Pair<railyard::Checked<railyard::Local>, railyard::Threads>;
}  // namespace railyard_test

#define RAILYARD_TEST_PAIRS LocalOnThreads, CheckedLocalOnThreads
#include "backend_laws.hpp"
