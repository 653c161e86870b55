// SPDX-License-Identifier: MIT
#include "railyard/train/step_times.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <stdexcept>
#include <string>
#include <thread>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

// As a room above does that has trained a model.
void pretend_steps(ry::Worker& worker) {
  const double rank = worker.rank();
  worker.on_step_times([rank](bool) {
    return ry::StepTimes{.steps = 10,
                         .compute = 4 + rank,
                         .data = 2,
                         .wait = 1 - rank,
                         .communication = 2,
                         .optimizer = 1,
                         .bytes = 100,
                         .slowest_rank = 1};
  });
}

}  // namespace

TEST_CASE("StepTimes: shares add up to one, and those of no step are zero") {
  const ry::StepTimes times{.compute = 4, .data = 1, .wait = 2, .communication = 2, .optimizer = 1};
  CHECK(times.share_of_compute() == 0.4);
  CHECK(times.share_of_data() == 0.1);
  CHECK(times.share_of_wait() == 0.2);
  CHECK(times.share_of_communication() == 0.2);
  CHECK(times.share_of_optimizer() == 0.1);
  CHECK(ry::StepTimes{}.share_of_compute() == 0);
}

TEST_CASE(
    "RunConfig: report_step_times adds the shares since the last report to the metrics, but none over the user's") {
  const Scratch scratch;
  const auto train = [](ry::Worker& worker) {
    worker.report({{"loss", 1}});  // of no step yet
    ry::StepTimes times{};
    worker.on_step_times([&times](bool) { return times; });
    times = {.steps = 1, .compute = 1, .data = 3, .bytes = 10};
    worker.report({{"loss", 1}});
    times = {.steps = 2, .compute = 2, .data = 3, .wait = 1, .bytes = 30, .slowest_rank = 1};
    worker.report({{"loss", 1}, {"wait_share", "mine"}});
    std::thread{[&worker] { worker.report({{"loss", 1}}); }}.join();
  };
  const auto history = [&](bool is_asked_for) {
    const auto result = run_in<ry::Local, ry::Threads>(scratch, 2, train, {.report_step_times = is_asked_for});
    REQUIRE(result.error() == "");
    return result.history();
  };
  const auto told = history(true);
  REQUIRE(told.size() == 4);
  CHECK(told[0] == ry::Metrics{{"loss", 1}});
  CHECK(told[1].at("compute_share").number() == 0.25);
  CHECK(told[1].at("data_share").number() == 0.75);
  CHECK(told[1].at("gradient_bytes").number() == 10);
  CHECK(told[2].at("compute_share").number() == 0.5);
  CHECK(told[2].at("data_share").number() == 0);
  CHECK(told[2].at("wait_share").as<std::string>() == "mine");
  CHECK(told[2].at("gradient_bytes").number() == 20);
  CHECK(told[2].at("slowest_rank").number() == 1);
  CHECK(told[3] == ry::Metrics{{"loss", 1}});
  for (const ry::Metrics& untold : history(false)) CHECK(untold.find("data_share") == nullptr);
}

TEST_CASE("StepTimes: a run's Result and result.json tell what every rank has told") {
  const auto check = [](const ry::Result& result) {
    REQUIRE(result.error() == "");
    const ry::StepTimes times = result.step_times();
    CHECK(times.steps == 10);
    CHECK(times.compute == 4.5);
    CHECK(times.data == 2);
    CHECK(times.wait == 0.5);
    CHECK(times.bytes == 200);
    CHECK(times.slowest_rank == 1);
    REQUIRE(result.step_times_by_rank().size() == 2);
    CHECK(result.step_times_by_rank()[1].compute == 5);
    CHECK_THAT(read_text(result.path() / "result.json"),
               ContainsSubstring(R"("steps": 10, "compute_share": 0.45, "data_share": 0.2, "wait_share": 0.05, )"
                                 R"("communication_share": 0.2, "optimizer_share": 0.1, "slowest_rank": 1, )"
                                 R"("gradient_bytes": 200)"));
  };
  const Scratch scratch;
  check(run_in<ry::Local, ry::Threads>(scratch, 2, pretend_steps));
  check(run_in<ry::SharedMemory, ry::Processes>(scratch, 2, pretend_steps));
}

TEST_CASE(
    "StepTimes: of a failed run those are known whose ranks had returned; nothing is told of a run without steps") {
  const Scratch scratch;
  const auto failed = run_in<ry::Local, ry::Threads>(scratch, 2, [](ry::Worker& worker) {
    pretend_steps(worker);
    if (worker.rank() == 1) throw std::runtime_error("boo");
  });
  CHECK_THAT(failed.error(), ContainsSubstring("boo"));
  CHECK(failed.step_times_by_rank()[1].steps == 0);
  CHECK((failed.step_times().steps == 0 || failed.step_times().compute == 4));

  const auto without = run_in<ry::Local, ry::Threads>(scratch, 2, [](ry::Worker&) {});
  CHECK(without.step_times().total() == 0);
  CHECK_THAT(read_text(without.path() / "result.json"), !ContainsSubstring("share"));
}
