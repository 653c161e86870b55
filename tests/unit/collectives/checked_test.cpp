// SPDX-License-Identifier: MIT
// What the laws of Backend do not say about Checked; those are in tests/conformance.
#include "railyard/collectives/checked.hpp"

#include "railyard/collectives/local.hpp"

#include "support/catch.hpp"
#include "support/run_ranks.hpp"

namespace ry = railyard;
using namespace std::chrono_literals;

static_assert(ry::Backend<ry::Checked<ry::Local>>);
static_assert(ry::Backend<ry::Checked<ry::Checked<ry::Local>>>);

TEST_CASE("Checked: all ranks get the same sentence and blame both sides") {
  const auto thrown = railyard_test::run_ranks_to_end(3, [](const ry::World& world, ry::Store& store) {
    const auto backend = ry::Checked<ry::Local>::connect({}, world, store, ry::Deadline::after(60s));
    std::vector<float> values(8);
    backend->broadcast(ry::buffer_of(values), world.rank == 2 ? 1 : 0, {});
  });
  for (const auto& exception : thrown) {
    REQUIRE(exception);
    try {
      std::rethrow_exception(exception);
    } catch (const ry::CollectiveError& error) {
      CHECK_THAT(error.what(), Catch::ContainsSubstring(
                                   "rank 2 called broadcast(8 x f32, root 1), rank 0 broadcast(8 x f32, root 0)"));
      CHECK(error.blamed() == std::vector<int>{0, 2});
    }
  }
}

TEST_CASE("Checked: a message and its receiver are compared both ways") {
  const auto thrown = railyard_test::run_ranks_to_end(2, [](const ry::World& world, ry::Store& store) {
    const auto backend = ry::Checked<ry::Local>::connect({}, world, store, ry::Deadline::after(60s));
    std::vector<float> values(4);
    if (world.rank == 0) {
      backend->send(ry::buffer_of(values), 1, {});
      backend->send({values.data(), 3, ry::Dtype::f32}, 1, {});
    } else {
      backend->receive(ry::buffer_of(values), 0, {});
      backend->receive(ry::buffer_of(values), 0, {});
    }
  });
  for (const auto& exception : thrown) {
    REQUIRE(exception);
    CHECK_THROWS_WITH(std::rethrow_exception(exception),
                      Catch::ContainsSubstring("rank 1 called receive(4 x f32, from 0), rank 0 send(3 x f32, to 1)"));
  }
}
