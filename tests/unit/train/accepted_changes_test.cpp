// SPDX-License-Identifier: MIT
#include "railyard/train/detail/accepted_changes.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"
#include "unit/train/scratch.hpp"

namespace ry = railyard;

TEST_CASE("accept_changes: a name that nothing has is refused, with those that there are") {
  const Scratch scratch;
  CHECK_THROWS_WITH(
      (run_in<ry::Local, ry::Threads>(scratch, 1, [](ry::Worker&) {}, {.accept_changes = {"seed", "sead"}})),
      ContainsSubstring("has \"sead\"") && ContainsSubstring("\"seed\", \"data\" and \"checkpoints\""));
  const ry::Result result = run_in<ry::Local, ry::Threads>(
      scratch, 1,
      [](ry::Worker& worker) {
        worker.report({{"seed", worker.accepts_change("seed")}, {"data", worker.accepts_change("data")}});
      },
      {.accept_changes = {"seed", "checkpoints"}});
  REQUIRE(result);
  CHECK(result.metrics() == ry::Metrics{{"seed", true}, {"data", false}});
}
