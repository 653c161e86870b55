// SPDX-License-Identifier: MIT
#include "railyard/train/worker_of.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/workers/threads.hpp"

#include <atomic>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

struct Last {
  static constexpr std::string_view extension_name = "last";
  ry::Worker* worker = nullptr;
  ~Last() { worker->barrier(); }
};

}  // namespace

TEST_CASE("WorkerOf: gives the typed backend, whose calls meet those of the worker") {
  const Scratch scratch;
  const auto result = run_in<ry::Local, ry::Threads>(scratch, 2, [](auto& worker) {
    std::int32_t value = worker.rank() + 1;
    if (worker.rank() == 0) {
      worker.backend().all_reduce(ry::buffer_of_value(value), ry::ReduceOp::sum, {});
    } else {
      worker.all_reduce(ry::buffer_of_value(value), ry::ReduceOp::sum);
    }
    worker.report({{"sum", value}});
  });
  CHECK(result.error() == "");
  CHECK(result.metrics().at("sum").number() == 3);
}

TEST_CASE(
    "WorkerOf: collectives give up after RunConfig::collective_timeout and say since when they waited (FAULTS A16)") {
  const Scratch scratch;
  std::atomic<bool> has_given_up = false;
  std::atomic<bool> was_seen_waiting = false;
  const auto result = run_in<ry::Local, ry::Threads>(scratch, 2,
                                                     [&](auto& worker) {
                                                       if (worker.rank() == 0)
                                                         return has_given_up.wait(false);  // never comes
                                                       std::thread watch{[&] {
                                                         while (!has_given_up) {
                                                           if (worker.page().waiting_since_ns.load() != 0)
                                                             was_seen_waiting = true;
                                                         }
                                                       }};
                                                       try {
                                                         worker.barrier();
                                                       } catch (const ry::CollectiveError& error) {
                                                         has_given_up = true;
                                                         has_given_up.notify_all();
                                                         watch.join();
                                                         throw;
                                                       }
                                                     },
                                                     {.collective_timeout = std::chrono::milliseconds{200}});
  CHECK(was_seen_waiting);
  CHECK_THAT(result.error(), Catch::ContainsSubstring("200 ms"));
}

TEST_CASE("WorkerOf: before a rank's first step has ended others wait for RunConfig::setup_timeout (FAULTS A16)") {
  const Scratch scratch;
  std::atomic<bool> has_met = false;
  std::atomic<bool> has_given_up = false;
  const auto result = run_in<ry::Local, ry::Threads>(
      scratch, 2,
      [&](auto& worker) {
        // Rank 0 alone prepares something, for longer than a collective may take later.
        if (worker.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds{150});
        worker.barrier();
        has_met = true;
        worker.samples(1);
        worker.end_step();
        if (worker.rank() == 0) return has_given_up.wait(false);  // never comes
        try {
          worker.barrier();
        } catch (const ry::CollectiveError&) {
          has_given_up = true;
          has_given_up.notify_all();
          throw;
        }
      },
      {.collective_timeout = std::chrono::milliseconds{50}, .setup_timeout = std::chrono::seconds{30}});
  CHECK(has_met);
  CHECK_THAT(result.error(), Catch::ContainsSubstring("50 ms"));
}

TEST_CASE("WorkerOf: extensions end while the backend still works") {
  const Scratch scratch;
  const auto result = run_in<ry::Local, ry::Threads>(
      scratch, 2, [](auto& worker) { static_cast<ry::Worker&>(worker).extension<Last>().worker = &worker; });
  CHECK(result.error() == "");
}

TEST_CASE("WorkerOf: a process forked by the training function may return from it and leaves the worker alone") {
  const Scratch scratch;
  const auto result = run_in<ry::Local, ry::Threads>(scratch, 2, [](auto& worker) {
    const pid_t child = worker.rank() == 1 ? ::fork() : -1;
    if (child == 0) return;
    int status = -1;
    if (child > 0) ::waitpid(child, &status, 0);
    worker.barrier();
    worker.report({{"status", worker.mean(worker.rank() == 1 ? status : 0)}});
  });
  CHECK(result.error() == "");
  CHECK(result.metrics().at("status").number() == 0);
}
