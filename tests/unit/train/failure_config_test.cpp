// SPDX-License-Identifier: MIT
// Runs that start again after failures, and the budget for that.
#include "railyard/train/failure_config.hpp"
#include "railyard/train/detail/failure_budget.hpp"
#include "railyard/train/detail/step_watch.hpp"

#include "support/catch.hpp"
#include "unit/train/toy_training.hpp"

namespace ry = railyard;
using namespace toy;  // its names stand in nearly every line

namespace {

/// Stands for threads that cannot be had the first times.
struct ScarceThreads {
  static constexpr std::string_view name = "ScarceThreads";
  static constexpr ry::Reach reach = ry::Threads::reach;
  static constexpr bool copies_function = ry::Threads::copies_function;
  static inline int num_refusals = 0;

  static std::unique_ptr<ry::WorkerGroup> start(const ry::GroupPlan& plan, const ry::WorkerBody& body) {
    if (num_refusals-- > 0) throw ry::Error{"none is left"};
    return ry::Threads{}.start(plan, body);
  }
};
struct SharedScarce {
  using B = ry::SharedMemory;
  using S = ScarceThreads;
};

}  // namespace

TEST_CASE("Run: tries again to start workers, for as long as the budget lasts") {
  const Scratch scratch;
  ScarceThreads::num_refusals = 2;
  const ry::Result late = run<SharedScarce>(scratch, never, {.name = "late", .failure = {.max_failures = 2}});
  REQUIRE(late);
  REQUIRE(late.attempts().size() == 3);
  CHECK(late.attempts()[1].error == "the workers could not be started: none is left");
  ScarceThreads::num_refusals = 3;
  const ry::Result never_started = run<SharedScarce>(scratch, never, {.name = "no", .failure = {.max_failures = 2}});
  CHECK_FALSE(never_started);
  CHECK_THAT(never_started.error(), ContainsSubstring("could not be started: none is left; it has failed 3 times"));
  ScarceThreads::num_refusals = 1;
  CHECK_FALSE(run<SharedScarce>(scratch, never, {.name = "strict"}));
  CHECK(ScarceThreads::num_refusals == 0);
}

TEMPLATE_TEST_CASE("Run: starts again after failures and ends as if nothing had happened", "", LocalThreads,
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result whole = run<TestType>(scratch, never);
  REQUIRE(whole);
  REQUIRE(whole.history().size() == num_epochs);
  const auto fail = [](auto& worker, std::uint64_t step) {
    const bool is_due = (worker.attempt() == 0 && step == 7) || (worker.attempt() == 1 && step == 23);
    if (is_due && worker.rank() == worker.attempt()) throw std::runtime_error{"a test"};
  };
  const ry::Result result = run<TestType>(scratch, fail, {.failure = {.max_failures = 2, .memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  REQUIRE(result.attempts().size() == 3);
  CHECK(result.attempts()[0].failed_rank == 0);
  CHECK(result.attempts()[0].end_step == 7);
  CHECK(result.attempts()[0].lost_steps == 2);
  CHECK_THAT(result.attempts()[0].error, ContainsSubstring("rank 0 of 2") && ContainsSubstring("a test"));
  CHECK(result.attempts()[1].failed_rank == 1);
  CHECK(result.attempts()[1].begin_step == 5);
  CHECK(result.attempts()[1].lost_steps == 3);
  CHECK(result.attempts()[2].error.empty());
  CHECK(read_lines(result.path() / "metrics.jsonl").size() == num_epochs);
  CHECK(names_in(result.path() / "checkpoints").size() == num_epochs);
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->manifest().step == num_epochs * steps_per_epoch);
}

TEST_CASE("Run: starts again after kill -9 of a worker and after exit()") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.rank() != 1) return;
    if (worker.attempt() == 0 && step == 8) ::kill(::getpid(), SIGKILL);
    if (worker.attempt() == 1 && step == 21) ::exit(3);
  };
  const ry::Result result = run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = -1}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  CHECK(result.attempts().size() == 3);
}

#if !defined(__SANITIZE_THREAD__)  // it does not follow a fork where the thread that writes checkpoints exists
TEST_CASE("Run: starts again after kill -9 of the process that starts workers") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.rank() == 1 && worker.attempt() == 0 && step == 13) ::kill(::getppid(), SIGKILL);
  };
  const ry::Result result = run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = 1}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  CHECK(result.attempts().size() == 2);
}
#endif

TEST_CASE(
    "Run: ends when the failure repeats at one step, when the budget is spent, and at once without one (TRAPS 43)") {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (step == 7 && worker.rank() == 0) throw std::runtime_error{"a test"};
  };
  const ry::Result stuck = run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = -1}});
  CHECK(stuck.attempts().size() == 3);
  CHECK_THAT(stuck.error(), ContainsSubstring("a test") && ContainsSubstring("3 times in a row at step 7"));
  const auto later = [](auto& worker, std::uint64_t step) {
    if (step == 7 + static_cast<std::uint64_t>(worker.attempt())) throw std::runtime_error{"a test"};
  };
  const ry::Result spent = run<SharedProcesses>(scratch, later, {.failure = {.max_failures = 2}});
  CHECK(spent.attempts().size() == 3);
  CHECK_THAT(spent.error(), ContainsSubstring("the budget of 2 failures is spent"));
  CHECK(run<SharedProcesses>(scratch, fail).attempts().size() == 1);
  const ry::Result thrown =
      run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = 5, .retry_exceptions = false}});
  CHECK(thrown.attempts().size() == 1);
  CHECK_THAT(thrown.error(), ContainsSubstring("exceptions are not retried"));
}

TEMPLATE_TEST_CASE("Run: ends at once with a ConfigError of the training function, whatever failures are left", "",
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    const auto due = static_cast<std::uint64_t>(3 + worker.attempt());  // of any other exception the budget decides
    if (step == due && worker.rank() == 1) throw ry::ConfigError{"a batch of 0 samples: give it more"};
  };
  const ry::Result result = run<TestType>(scratch, fail, {.failure = {.max_failures = -1}});
  INFO(result.error());
  CHECK_FALSE(result);
  CHECK(result.attempts().size() == 1);
  CHECK_THAT(result.error(),
             ContainsSubstring("threw: a batch of 0 samples") && ContainsSubstring("a ConfigError is not retried"));
  CHECK_THAT(run<TestType>(scratch, fail).error(), !ContainsSubstring("retried"));
}

namespace {

using Kind = ry::Failure::Kind;

bool restarts(ry::detail::FailureBudget& budget, std::uint64_t step, bool has_progressed = false,
              Kind kind = Kind::lost) {
  return budget.judge({.rank = 0, .what = "a test", .kind = kind}, step, has_progressed).restarts;
}

}  // namespace

TEST_CASE("FailureBudget: allows as many failures as it is told, and none by default") {
  ry::detail::FailureBudget none{{}};
  CHECK_FALSE(restarts(none, 1));
  ry::detail::FailureBudget two{{.max_failures = 2}};
  CHECK(restarts(two, 1));
  CHECK(restarts(two, 2));
  CHECK_FALSE(restarts(two, 3));
  ry::detail::FailureBudget any{{.max_failures = -1}};
  for (std::uint64_t step = 0; step < 100; ++step) CHECK(restarts(any, step));
}

TEST_CASE("FailureBudget: retries no signal, callback and ConfigError, and exceptions only if told so") {
  ry::detail::FailureBudget any{{.max_failures = -1}};
  CHECK_FALSE(restarts(any, 1, false, Kind::setting));
  CHECK_FALSE(any.retries({.kind = Kind::setting}));
  CHECK_FALSE(any.retries({.kind = Kind::final}));
  CHECK(any.retries({.kind = Kind::exception}));
  CHECK(any.counts().failures == 0);
  CHECK_FALSE(restarts(any, 1, false, Kind::final));
  CHECK(restarts(any, 2, false, Kind::exception));
  ry::detail::FailureBudget lost{{.max_failures = -1, .retry_exceptions = false}};
  CHECK_FALSE(restarts(lost, 1, false, Kind::exception));
  CHECK_FALSE(lost.retries({.kind = Kind::exception}));
  CHECK(restarts(lost, 2));
}

TEST_CASE("FailureBudget: is whole again after progress if told so") {
  ry::detail::FailureBudget renewed{{.max_failures = 1, .renew_after_progress = true}};
  CHECK(restarts(renewed, 1));
  CHECK(restarts(renewed, 2, true));
  CHECK_FALSE(restarts(renewed, 3));
  ry::detail::FailureBudget kept{{.max_failures = 1}};
  CHECK(restarts(kept, 1));
  CHECK_FALSE(restarts(kept, 2, true));
}

TEST_CASE("FailureBudget: waits twice as long each time, up to a bound, and less again after progress") {
  using std::chrono::seconds;
  ry::detail::FailureBudget budget{{.max_failures = -1, .backoff = seconds{2}, .max_backoff = seconds{7}}};
  const auto delay = [&](std::uint64_t step, bool has_progressed) {
    return budget.judge({.rank = 0, .what = "a test"}, step, has_progressed).delay;
  };
  CHECK(delay(1, false) == seconds{2});
  CHECK(delay(2, false) == seconds{4});
  CHECK(delay(3, false) == seconds{7});
  CHECK(delay(4, false) == seconds{7});
  CHECK(delay(5, true) == seconds{2});
}

TEST_CASE("Run: starts again when a rank ends no step any more, and tells what each rank was doing (FAULTS A)") {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.attempt() == 0 && step == 8 && worker.rank() == 1) ::raise(SIGSTOP);
    if (worker.attempt() != 1 || step != 13 || worker.rank() != 0) return;
    while (!worker.wants_stop()) std::this_thread::yield();  // deaf to the end of the group: it is killed
  };
  ry::RunConfig config{.failure = {.max_failures = 2}};
  config.step_timeout = std::chrono::seconds{3};
  config.stop_grace = std::chrono::milliseconds{300};
  const ry::Result result = run<SharedProcesses>(scratch, fail, config);
  INFO(result.error());
  REQUIRE(result);
  REQUIRE(result.attempts().size() == 3);
  CHECK_THAT(result.attempts()[0].error,
             ContainsSubstring("rank 1 of 2") && ContainsSubstring("has ended no step for"));
  CHECK_THAT(result.attempts()[0].error, ContainsSubstring("collectives after") && ContainsSubstring("(step 8, for "));
  CHECK_THAT(result.attempts()[1].error, ContainsSubstring("rank 0 of 2") &&
                                             ContainsSubstring("has ended no step for") &&
                                             ContainsSubstring("rank 1 had waited in collective"));
  std::vector<std::string> stacks;
  for (const std::string& line : read_lines(result.path() / "events.jsonl")) {
    if (line.find(R"("event": "stack")") != std::string::npos) stacks.push_back(line);
  }
  REQUIRE(stacks.size() == 4);     // of both ranks, twice
#if !defined(__SANITIZE_THREAD__)  // which holds signals back until a thread calls something that it knows
  CHECK_THAT(stacks[0], ContainsSubstring(R"("rank": 0)") && ContainsSubstring("#0 "));
  CHECK_THAT(stacks[1], ContainsSubstring(R"("rank": 1)") && !ContainsSubstring("#0 "));  // stopped: no answer
  CHECK_THAT(stacks[2], ContainsSubstring("#0 "));
  CHECK_THAT(stacks[3], ContainsSubstring("#0 "));
#endif
}

TEST_CASE("Run: starts again when a rank does not come to the end of its first step, at the first start or later") {
  const Scratch scratch;
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [](auto& worker) {
                                                if (worker.attempt() == 0 && worker.rank() == 1)
                                                  ::raise(SIGSTOP);  // while it prepares
                                                Weights weights;
                                                ry::TrainState state{worker, {{"weights", weights}}};
                                                if (worker.attempt() == 2 && worker.rank() == 0)
                                                  ::raise(SIGSTOP);  // after it was put back
                                                for (int step = 0; step < 3; ++step) {
                                                  worker.samples(1);
                                                  weights.step(worker.steps());
                                                  worker.end_step();
                                                }
                                                worker.report({{"steps", worker.steps()}}, state);
                                                if (worker.attempt() == 1) throw std::runtime_error{"a test"};
                                              },
                                              {.failure = {.max_failures = 3},
                                               .collective_timeout = std::chrono::minutes{5},
                                               .setup_timeout = std::chrono::seconds{2},
                                               .step_timeout = std::chrono::seconds{1}});
  INFO(result.error());
  REQUIRE(result);
  REQUIRE(result.attempts().size() == 4);
  CHECK_THAT(result.attempts()[0].error,
             ContainsSubstring("rank 1 of 2") && ContainsSubstring("has not ended its first step"));
  CHECK_THAT(result.attempts()[2].error,
             ContainsSubstring("rank 0 of 2") && ContainsSubstring("has not ended its first step"));
}

TEST_CASE("Run: every start of the workers and its cause stand in events.jsonl and result.json, the last one as well") {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    const bool is_due = step == 8U + static_cast<std::uint64_t>(worker.attempt());
    if (is_due && worker.rank() == 1) throw std::runtime_error{"boo " + std::to_string(worker.attempt())};
  };
  const ry::Result result =
      run<SharedProcesses>(scratch, fail, {.name = "run", .failure = {.max_failures = 1, .memory_percent = 0}});
  REQUIRE_FALSE(result);
  std::vector<ry::detail::Json> ended;
  ry::detail::Json last = ry::detail::parse_json("{}");
  for (const std::string& line : read_lines(result.path() / "events.jsonl")) {
    last = ry::detail::parse_json(line);
    if (last.at("event").text() == "attempt_ended") ended.push_back(last);
  }
  const ry::detail::Json told = ry::detail::parse_json(read_text(result.path() / "result.json"));
  const auto& listed = told.at("attempts").array();
  REQUIRE(ended.size() == 2);
  REQUIRE(listed.size() == 2);
  for (const std::size_t at : {0U, 1U}) {
    for (const ry::detail::Json& one : {ended[at], listed[at]}) {
      CHECK_THAT(std::string{one.at("error").text()}, ContainsSubstring("boo " + std::to_string(at)));
      CHECK(one.at("failed_rank").as<int>() == 1);
      CHECK(one.at("lost_steps").as<std::uint64_t>() == result.attempts()[at].lost_steps);
    }
  }
  CHECK(result.attempts()[0].lost_steps > 0);
  CHECK(last.at("event").text() == "ended");
  CHECK(std::string{last.at("error").text()} == result.error());
}

TEST_CASE("StepWatch: a rank that waits is not taken for the one it waits for, which has stood still for less") {
  using std::chrono::seconds;
  for (const bool others_wait : {false, true}) {
    ry::detail::StepWatch watch{2, seconds{8}, seconds{20}};
    std::vector<std::uint64_t> steps{1, 1};
    const auto look = [&](int at) {
      return watch.look(
          ry::detail::StepWatch::Time{seconds{at}}, 0,
          [&](int rank) { return std::optional{steps[static_cast<std::size_t>(rank)]}; },
          [&](int rank) { return rank == 0 || others_wait; });
    };
    for (int at = 10; at < 13; ++at) CHECK_FALSE(look(at));
    steps[1] = 2;
    for (int at = 13; at < 19; ++at) CHECK_FALSE(look(at));
    if (others_wait) {
      CHECK(look(20)->rank == 0);
      continue;
    }
    CHECK_FALSE(look(20));
    CHECK(look(22)->rank == 1);
    steps[1] = 3;  // it goes on, and nobody knows for whom the other one waits
    CHECK(look(23)->rank == 0);
  }
}

TEST_CASE("StepWatch: does not count time in which nobody looked, and gives the first step more of it (TRAPS 25)") {
  using std::chrono::seconds;
  ry::detail::StepWatch watch{3, seconds{8}, seconds{20}};
  std::vector<std::uint64_t> steps{1, 0};
  const auto look = [&](int at) {
    return watch.look(
        ry::detail::StepWatch::Time{seconds{at}}, 0,
        [&](int rank) -> std::optional<std::uint64_t> {
          if (rank == 2) return std::nullopt;  // it has gone
          return steps[static_cast<std::size_t>(rank)];
        },
        [](int) { return false; });
  };
  CHECK_FALSE(look(10));
  CHECK_FALSE(look(1000));  // suspended
  for (int at = 1001; at < 1005; ++at) CHECK_FALSE(look(at));
  CHECK(look(1010)->rank == 0);
  steps[0] = 2;
  CHECK_FALSE(look(1013));
  for (int at = 1014; at < 1019; ++at) CHECK_FALSE(look(at));
  CHECK(look(1019)->rank == 1);
}
