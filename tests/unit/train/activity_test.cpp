// SPDX-License-Identifier: MIT
#include "railyard/train/detail/activity.hpp"

#include "support/catch.hpp"
#include "unit/workers/support.hpp"

#include "railyard/workers/threads.hpp"

namespace ry = railyard;

TEST_CASE("progress_of: tells what all ranks were given, and of rank 0 how far it is") {
  const auto group = ry::Threads{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    const auto first = static_cast<std::uint64_t>(link.world().rank == 0);
    link.page().samples = 10 + first;
    link.page().steps = 6 + first;
    link.page().epoch = 2 + static_cast<std::int64_t>(first);
    link.page().epoch_size = 40 + first;
    link.page().epoch_done = 20 + first;
  });
  REQUIRE(workers_test::follow_to_end(*group).exits.size() == 2);
  const ry::ProgressState state = ry::detail::progress_of(*group, 2, 1, 1.5);
  CHECK(state.seconds == 1.5);
  CHECK(state.alive == 1);
  CHECK(state.world_size == 2);
  CHECK(state.samples == 21);
  CHECK(state.steps == 7);
  CHECK(state.epoch == 3);
  CHECK(state.epoch_size == 41);
  CHECK(state.epoch_done == 21);
}
