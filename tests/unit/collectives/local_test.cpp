// SPDX-License-Identifier: MIT
// What the laws of Backend do not say about Local; those are in tests/conformance.
#include "railyard/collectives/local.hpp"

#include "support/catch.hpp"
#include "support/repeated_memory.hpp"
#include "support/run_ranks.hpp"

namespace ry = railyard;
using namespace std::chrono_literals;

TEST_CASE("Local: a rank that comes after the others have given up gets an error and touches nothing") {
  // AddressSanitizer sees a hub that is used after it was freed, or never freed.
  railyard_test::run_ranks(3, [](const ry::World& world, ry::Store& store) {
    const bool is_late = world.rank == 2;
    if (is_late) {
      railyard_test::require(store.get("given up by 0", ry::Deadline::after(60s)).has_value(), "rank 0's event");
      railyard_test::require(store.get("given up by 1", ry::Deadline::after(60s)).has_value(), "rank 1's event");
    }
    bool was_refused = false;
    try {
      static_cast<void>(ry::Local::connect({}, world, store, ry::Deadline::after(is_late ? 60s : 100ms)));
    } catch (const ry::CollectiveError&) {
      was_refused = true;
    }
    railyard_test::require(was_refused, "a CollectiveError on every rank");
    store.set(fmt::format("given up by {}", world.rank), "");
  });
}

TEST_CASE("Local: one store serves one group after the other") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    for (int turn = 0; turn < 5; ++turn) {
      const auto backend = ry::Local::connect({}, world, store, ry::Deadline::after(60s));
      std::vector<std::int64_t> values{turn};
      backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, {});
      railyard_test::require(values[0] == 2 * turn, "this turn's sum");
    }
  });
}

TEST_CASE("Local: a deadline says what the missing rank is doing instead") {
  const auto thrown = railyard_test::run_ranks_to_end(2, [](const ry::World& world, ry::Store& store) {
    const auto backend = ry::Local::connect({}, world, store, ry::Deadline::after(60s));
    std::vector<float> values(3);
    if (world.rank == 0) {
      backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, {.deadline = ry::Deadline::after(300ms)});
    } else {
      backend->receive(ry::buffer_of(values), 0, {.deadline = ry::Deadline::after(60s)});
    }
  });
  REQUIRE(thrown[0]);
  CHECK_THROWS_WITH(std::rethrow_exception(thrown[0]),
                    Catch::ContainsSubstring("rank 1 is in receive(3 x f32, from 0)"));
}

TEST_CASE("connect: a world that makes no sense is refused") {
  railyard_test::MemoryStore store;
  CHECK_THROWS_AS(ry::Local::connect({}, {.rank = 2, .size = 2}, store, ry::Deadline::after(1s)), ry::ConfigError);
  CHECK_THROWS_AS(ry::Local::connect({}, {.rank = 0, .size = 0}, store, ry::Deadline::after(1s)), ry::ConfigError);
}

TEST_CASE("Local: counts and sizes beyond 2^31 bytes arrive whole (FAULTS D29)") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    const auto backend = ry::Local::connect({}, world, store, ry::Deadline::after(60s));
    railyard_test::check_large_counts(*backend, world.rank);
  });
}
