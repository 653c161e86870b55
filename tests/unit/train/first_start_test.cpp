// SPDX-License-Identifier: MIT
// A run until it has workers: signals and signs of life.
#include "railyard/train/detail/first_start.hpp"

#include "railyard/train/detail/supervision.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"
#include "unit/train/toy_training.hpp"

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace ry = railyard;
using namespace std::chrono_literals;

namespace {

using StartOfGroup = std::function<std::unique_ptr<ry::WorkerGroup>(const ry::GroupPlan&)>;

ry::RunConfig patient_config() {
  return {.failure = {.max_failures = -1, .backoff = 1h, .max_backoff = 1h}, .progress = ry::Progress::quiet};
}

// Runs with one worker that is made by make_group.
ry::Result supervise(const Scratch& scratch, const ry::RunConfig& config, const StartOfGroup& make_group,
                     const ry::detail::LeaseTimes& times = {}) {
  ry::detail::Supervision supervision{config,
                                      ry::detail::ElasticSize{{.num_workers = 1}},
                                      {.name = "x", .path = scratch.path(), .world_size = 1},
                                      ry::Deadline::Clock::now(),
                                      ry::detail::RunLease{scratch.path(), times}};
  return supervision.run(make_group, [](int) {});
}

// Says that it has started, and ends when it is asked to stop, after some deadline at last.
void wait_for_stop(ry::WorkerLink& link) {
  link.post(ry::detail::encode_started("here"));
  const auto deadline = ry::Deadline::after(5min);
  while (!link.page().stop_requested.load() && !deadline.expired()) std::this_thread::sleep_for(1ms);
}

// Makes no workers.
struct NoWorkers {
  static constexpr std::string_view name = "NoWorkers";
  static constexpr ry::Reach reach = ry::Reach::host;
  static constexpr bool copies_function = true;
  [[nodiscard]] std::unique_ptr<ry::WorkerGroup> start(const ry::GroupPlan&, const ry::WorkerBody&) {
    throw ry::Error{"no processes are left"};
  }
};

}  // namespace

TEST_CASE("FirstStart: a signal while another start is waited for ends the run in order") {
  const Scratch scratch;
  for (const int signal : {SIGINT, SIGTERM}) {
    int num_starts = 0;
    const auto result =
        supervise(scratch, patient_config(), [&](const ry::GroupPlan&) -> std::unique_ptr<ry::WorkerGroup> {
          ++num_starts;
          ::raise(signal);
          throw ry::Error{"no processes are left"};
        });
    CHECK(num_starts == 1);
    CHECK_FALSE(result);
    CHECK(result.exit_status() == 128 + signal);
    CHECK_THAT(result.error(), ContainsSubstring("interrupted by " + ry::detail::signal_name(signal)));
    REQUIRE(result.attempts().size() == 1);
    CHECK_THAT(result.attempts().front().error, ContainsSubstring("no processes are left"));
  }
}

TEST_CASE("FirstStart: the file that announces the end of the machine ends the wait for another start as well") {
  const Scratch scratch;
  ry::RunConfig config = patient_config();
  config.preemption.file = scratch.path() / "notice";
  const auto result = supervise(scratch, config, [&](const ry::GroupPlan&) -> std::unique_ptr<ry::WorkerGroup> {
    std::ofstream{config.preemption.file};
    throw ry::Error{"no processes are left"};
  });
  CHECK(result.exit_status() == 128 + SIGTERM);
}

TEST_CASE("FirstStart: a signal while the workers are made asks them to stop, once") {
  const Scratch scratch;
  const bool hears_itself = GENERATE(false, true);  // the group, because it is there already
  const auto result = supervise(scratch, {.progress = ry::Progress::quiet}, [&](const ry::GroupPlan& plan) {
    if (!hears_itself) ::raise(SIGTERM);
    auto group = ry::Threads{}.start(plan, wait_for_stop);
    if (hears_itself) ::raise(SIGTERM);
    return group;
  });
  CHECK(result.exit_status() == 128 + SIGTERM);
  CHECK_THAT(result.error(), ContainsSubstring("interrupted by SIGTERM"));
}

TEST_CASE("FirstStart: signals before and after the workers can hear them count as they came") {
  const Scratch scratch;
  const auto begin = ry::Deadline::Clock::now();
  ry::RunConfig config{.progress = ry::Progress::quiet, .stop_grace = 1h};
  const auto result = supervise(scratch, config, [&](const ry::GroupPlan& plan) {
    ::raise(SIGTERM);
    auto group = ry::Processes{}.start(plan, [](ry::WorkerLink& link) {
      link.post(ry::detail::encode_started("here"));
      std::this_thread::sleep_for(5min);  // deaf
    });
    ::raise(SIGTERM);
    return group;
  });
  CHECK(result.exit_status() == 128 + SIGTERM);
  CHECK(ry::Deadline::Clock::now() - begin < 4min);  // the second one has killed it
}

TEST_CASE("FirstStart: signs of life are given while the workers are made, however long that takes") {
  const Scratch scratch;
  bool has_sign = false;
  const auto last_sign = [&] { return std::filesystem::last_write_time(scratch.path() / "lease.json"); };
  const auto result = supervise(scratch, {.progress = ry::Progress::quiet},
                                [&](const ry::GroupPlan& plan) {
                                  ry::GroupPlan watched = plan;
                                  watched.on_fork = [&](bool begins) {
                                    plan.on_fork(begins);
                                    if (begins) return;
                                    const auto before = last_sign();
                                    const auto deadline = ry::Deadline::after(1min);
                                    while (last_sign() == before && !deadline.expired())
                                      std::this_thread::sleep_for(1ms);
                                    has_sign = last_sign() != before;
                                  };
                                  return ry::Processes{}.start(watched, [](ry::WorkerLink& link) {
                                    link.post(ry::detail::encode_started("here"));
                                  });
                                },
                                {.beat = 5ms});
  CHECK(result.error() == "");
  CHECK(has_sign);
}

TEST_CASE("FirstStart: where a host is lost while the workers are made, those that are there make fewer") {
  const Scratch scratch;
  std::vector<int> resizes;
  struct Teller {
    std::vector<int>* resizes;
    void on_resize(const ry::Resize& resize) const { resizes->insert(resizes->end(), {resize.from, resize.to}); }
  };
  const ry::RunConfig config{.progress = ry::Progress::quiet, .callbacks = {Teller{&resizes}}};
  int room = 3;
  std::vector<int> asked_for;
  ry::detail::Supervision supervision{
      config,
      ry::detail::ElasticSize{{.num_workers = {2, 3}, .capacity = [&] { return room; }}},
      {.name = "x", .path = scratch.path(), .world_size = 3},
      ry::Deadline::Clock::now(),
      ry::detail::RunLease{scratch.path()}};
  const auto result = supervision.run(
      [&](const ry::GroupPlan& plan) {
        asked_for.push_back(plan.num_workers);
        if (std::exchange(room, 2) == 3) throw ry::HostLostError{"process 2 is lost"};
        return ry::Threads{}.start(plan, [](ry::WorkerLink& link) { link.post(ry::detail::encode_started("here")); });
      },
      [](int) {});
  CHECK(result.error() == "");
  CHECK(result.world_size() == 2);
  CHECK(result.attempts().size() == 1);
  CHECK(asked_for == std::vector{3, 2});
  CHECK(resizes == std::vector{3, 2});
}

TEST_CASE("FirstStart: where a host is lost while the workers are made, and too few are left, all leave") {
  const Scratch scratch;
  const bool is_elastic = GENERATE(true, false);
  int num_starts = 0;
  const ry::RunConfig config{.failure = {.max_failures = 3}, .progress = ry::Progress::quiet, .start_timeout = 50ms};
  ry::ScalingConfig scaling{.num_workers = 3};
  if (is_elastic) scaling = {.num_workers = {2, 3}, .capacity = [] { return 1; }};
  ry::detail::Supervision supervision{config,
                                      ry::detail::ElasticSize{scaling},
                                      {.name = "x", .path = scratch.path(), .world_size = 3},
                                      ry::Deadline::Clock::now(),
                                      ry::detail::RunLease{scratch.path()}};
  const auto result = supervision.run(
      [&](const ry::GroupPlan&) -> std::unique_ptr<ry::WorkerGroup> {
        ++num_starts;
        throw ry::HostLostError{"process 2 is lost"};
      },
      [](int) {});
  CHECK(num_starts == 1);
  CHECK(result.exit_status() == 75);
  CHECK_THAT(result.error(), ContainsSubstring("process 2 is lost"));
  if (is_elastic) CHECK_THAT(result.error(), ContainsSubstring("there is no room for the 2 workers"));
}

TEST_CASE("FirstStart: a run whose workers cannot be made tells of the checkpoint that it would have gone on from") {
  const Scratch scratch;
  const auto save = [](ry::Worker& worker) {
    toy::Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    worker.report({{"loss", 1.0}}, state);
    throw std::runtime_error{"enough"};
  };
  ry::RunConfig config{.name = "run", .storage_path = scratch.path(), .progress = ry::Progress::quiet};
  const ry::Result first = ry::Trainer<ry::SharedMemory, ry::Threads>{save, {.num_workers = 2}, config}.fit();
  REQUIRE(first.checkpoint());
  config.preemption.file = scratch.path() / "notice";
  SECTION("because the failures allowed are spent") {
    const ry::Result result = ry::Trainer<ry::SharedMemory, NoWorkers>{save, {.num_workers = 2}, config}.fit();
    CHECK(result.exit_status() == 1);
    REQUIRE(result.checkpoint());
    CHECK(result.checkpoint()->path() == first.checkpoint()->path());
    CHECK(result.best_checkpoints().size() == 1);
  }
  SECTION("because the machine will be taken away") {
    config.failure = {.max_failures = -1, .backoff = 1h, .max_backoff = 1h};
    std::ofstream{config.preemption.file};
    const ry::Result result = ry::Trainer<ry::SharedMemory, NoWorkers>{save, {.num_workers = 2}, config}.fit();
    CHECK(result.exit_status() == 75);
    CHECK_THAT(result.error(), ContainsSubstring("goes on from its newest checkpoint"));
    CHECK(result.checkpoint());
  }
}
