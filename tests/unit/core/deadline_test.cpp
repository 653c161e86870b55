// SPDX-License-Identifier: MIT
#include "railyard/core/deadline.hpp"

#include "support/catch.hpp"

namespace ry = railyard;
using namespace std::chrono_literals;

TEST_CASE("Deadline: a budget of nothing has expired at once, a large one has not") {
  CHECK(ry::Deadline::after(0s).expired());
  CHECK(ry::Deadline::after(0s).remaining() == 0ns);
  CHECK_FALSE(ry::Deadline::after(1h).expired());
  CHECK(ry::Deadline::after(1h).remaining() > 59min);
}

TEST_CASE("Deadline: never does not expire, and a budget beyond the clock's range does not wrap") {
  CHECK_FALSE(ry::Deadline::never().expired());
  CHECK(ry::Deadline::never().remaining() == std::chrono::nanoseconds::max());
  const auto huge = ry::Deadline::after(std::chrono::nanoseconds::max());
  CHECK(huge.is_never());
  CHECK_FALSE(huge.expired());
}

TEST_CASE("Deadline: prints its budget in the unit a reader expects") {
  CHECK(ry::Deadline::after(30s).budget_text() == "30 s");
  CHECK(ry::Deadline::after(10min).budget_text() == "600 s");
  CHECK(ry::Deadline::after(200ms).budget_text() == "200 ms");
  CHECK(ry::Deadline::after(12500ms).budget_text() == "12.5 s");
  CHECK(ry::Deadline::never().budget_text() == "unlimited time");
  CHECK(ry::Deadline::after(3s, "RunConfig::start_timeout").renewed().budget_text() ==
        "3 s (RunConfig::start_timeout)");
}

TEST_CASE("Deadline: renewed, it has its whole budget again") {
  const auto expired = ry::Deadline::after(0s);
  CHECK(expired.renewed().time() >= expired.time());
  CHECK(ry::Deadline::after(1h).renewed().remaining() > 59min);
  CHECK(ry::Deadline::after(1h).renewed().budget_text() == "3600 s");
  CHECK(ry::Deadline::never().renewed().is_never());
}
