// SPDX-License-Identifier: MIT
#include "railyard/core/callback.hpp"

#include "support/catch.hpp"

namespace ry = railyard;

namespace {

struct HearsReportsOnly {
  void on_report(const ry::Report& /*report*/) {}
};
struct HearsNothing {
  void on_epoch(int /*epoch*/) {}
};
static_assert(ry::Callback<HearsReportsOnly>);
static_assert(!ry::Callback<HearsNothing>, "a misspelt hook must not pass for a callback");

}  // namespace

TEST_CASE("Report: metrics() are rank 0's, and empty if rank 0 has not reported") {
  ry::Report report;
  CHECK(report.metrics().empty());
  report.by_rank = {std::nullopt, ry::Metrics{{"loss", 2}}};
  CHECK(report.metrics().empty());
  report.by_rank[0] = ry::Metrics{{"loss", 1}};
  CHECK(report.metrics().at("loss").number() == 1);
}
