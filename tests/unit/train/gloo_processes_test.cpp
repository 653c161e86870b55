// SPDX-License-Identifier: MIT
// Whole runs with processes: what threads cannot show, for the faults are real ones.
#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"
#include "unit/workers/support.hpp"

#include "railyard/collectives/gloo.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <array>
#include <csignal>
#include <cstdio>
#include <memory>

#include <unistd.h>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

template <class F>
ry::Result run_processes(const Scratch& scratch, int num_workers, F&& function, ry::RunConfig config = {}) {
  return run_in<ry::Gloo, ry::Processes>(scratch, num_workers, std::forward<F>(function), std::move(config));
}

// Meets the others for ever: whoever does this ends only when the group does.
void meet_for_ever(ry::Worker& worker) {
  for (;;) worker.barrier();
}

// Takes Catch2's handlers away: a user's handlers are called as well, and Catch2's end the program.
class NoHandlers {
 public:
  NoHandlers() : interrupt_(std::signal(SIGINT, SIG_DFL)), terminate_(std::signal(SIGTERM, SIG_DFL)) {}
  NoHandlers(const NoHandlers&) = delete;
  NoHandlers& operator=(const NoHandlers&) = delete;
  ~NoHandlers() {
    std::signal(SIGINT, interrupt_);
    std::signal(SIGTERM, terminate_);
  }

 private:
  void (*interrupt_)(int);
  void (*terminate_)(int);
};

[[noreturn]] void deaf_for_ever() {
  for (;;) ::pause();
}

}  // namespace

TEST_CASE("Gloo with Processes: runs the function on every worker") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 4, [](auto& worker) {
    for (int i = 0; i < 3; ++i) worker.report({{"i", i}, {"mean", worker.mean(worker.rank())}});
  });
  REQUIRE(result.error() == "");
  CHECK(result.metrics() == ry::Metrics{{"i", 2}, {"mean", 1.5}});
  CHECK_THAT(read_text(result.path() / "run.json"), ContainsSubstring("\"scaling\": \"Processes\""));
}

TEST_CASE("Gloo with Threads: runs the function on every worker") {
  const Scratch scratch;
  const auto result = run_in<ry::Gloo, ry::Threads>(scratch, 3, [](auto& worker) {
    worker.report({{"mean", worker.mean(worker.rank())}});
  });
  REQUIRE(result.error() == "");
  CHECK(result.metrics() == ry::Metrics{{"mean", 1.0}});
}

TEST_CASE("Gloo with Threads: a throw in one rank ends the others (FAULTS A7)") {
  const Scratch scratch;
  const auto result = run_in<ry::Gloo, ry::Threads>(scratch, 3, [](auto& worker) {
    if (worker.rank() == 1) throw std::runtime_error("boo");
    meet_for_ever(worker);
  });
  CHECK(result.failed_rank() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 3") && ContainsSubstring("threw: boo"));
}

TEST_CASE("Processes: move-only captures work, and writes to captures do not come back") {
  const Scratch scratch;
  int written = 1;
  auto owned = std::make_unique<int>(5);
  const auto result = run_processes(scratch, 2, [&written, owned = std::move(owned)](auto& worker) mutable {
    written = 2;
    worker.report({{"owned", (*owned)++}});
  });
  CHECK(result.error() == "");
  CHECK(result.metrics().at("owned").number() == 5);
  CHECK(written == 1);
}

TEST_CASE("Processes: a throw in rank 1 ends the others and is what the caller sees (FAULTS A7)") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 3, [](auto& worker) {
    worker.report({{"a", 1}});
    worker.barrier();
    if (worker.rank() == 1) throw std::runtime_error("disk on fire");
    meet_for_ever(worker);
  });
  CHECK(result.failed_rank() == 1);
  CHECK(result.exit_status() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 3 on ") && ContainsSubstring("threw: disk on fire") &&
                                 ContainsSubstring("its last report was number 0"));
}

TEST_CASE("Processes: B17 exit(3) in a worker is told as such, with the worker's log") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 2, [](auto& worker) {
    if (worker.rank() == 1) {
      std::fputs("no licence\n", stderr);
      std::exit(3);
    }
    meet_for_ever(worker);
  });
  CHECK(result.failed_rank() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 2") && ContainsSubstring("exit(3)") &&
                                 ContainsSubstring((result.path() / "logs" / "rank-1.log").string()));
  CHECK(read_text(result.path() / "logs" / "rank-1.log") == "no licence\n");
  CHECK_FALSE(std::filesystem::exists(result.path() / "logs" / "rank-0.log"));
}

TEST_CASE("Processes: B17 a killed worker is told with its signal") {
  const Scratch scratch;
  for (const int signal : {SIGKILL, SIGSEGV}) {
    const auto result = run_processes(scratch, 3, [signal](auto& worker) {
      worker.barrier();
      if (worker.rank() == 2) {
        std::signal(signal, SIG_DFL);
        ::raise(signal);
      }
      meet_for_ever(worker);
    });
    CHECK(result.failed_rank() == 2);
    CHECK_THAT(result.error(), ContainsSubstring("rank 2 of 3") &&
                                   ContainsSubstring(fmt::format("signal {}", signal)) &&
                                   ContainsSubstring(ry::detail::signal_name(signal)));
  }
}

TEST_CASE("Processes: a stopped worker counts as failed after silence_limit") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 2,
                                    [](auto& worker) {
                                      worker.barrier();
                                      if (worker.rank() == 1) ::raise(SIGSTOP);
                                      meet_for_ever(worker);
                                    },
                                    {.stop_grace = 300ms, .silence_limit = 500ms});
  CHECK(result.failed_rank() == 1);
  CHECK_THAT(result.error(),
             ContainsSubstring("rank 1 of 2") && ContainsSubstring("stopped answering") &&
                 ContainsSubstring("; then rank 1 was outside of collectives after 1 of them (step 0), rank 0 "
                                   "had waited in collective "));
}

TEST_CASE("Processes: a rank that never answers is named after collective_timeout and killed after stop_grace") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 3,
                                    [](auto& worker) {
                                      worker.barrier();
                                      if (worker.rank() == 1) deaf_for_ever();
                                      worker.barrier();
                                    },
                                    {.collective_timeout = 500ms, .stop_grace = 200ms});
  CHECK(result.failed_rank() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 3") && ContainsSubstring("did not answer rank"));
  CHECK_THAT(result.error(),
             ContainsSubstring("; then rank 1 was outside of collectives after 1 of them (step 0), rank 0 had "
                               "waited in collective 2 for ") &&
                 ContainsSubstring(" s (step 0), rank 2 had waited in collective 2 for "));
}

TEST_CASE("Processes: a rank that returns early is named with the one that waited for it (FAULTS A1, A9)") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 3, [](auto& worker) {
    worker.barrier();
    if (worker.rank() == 2) return;
    worker.barrier();
  });
  CHECK(result.failed_rank() == 2);
  CHECK_THAT(result.error(),
             ContainsSubstring("rank 2 of 3") && ContainsSubstring("returned from the training function while rank"));
}

TEST_CASE("Processes: request_stop on one rank stops all at the same step (FAULTS A5)") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 3, [](auto& worker) {
    int steps = 0;
    while (!worker.should_stop()) {
      if (++steps == 5 && worker.rank() == 2) worker.request_stop();
    }
    worker.report({{"steps", worker.mean(steps)}});
  });
  CHECK(result.error() == "");
  CHECK(result.metrics().at("steps").number() == 5);
}

TEST_CASE("Processes: B1 B12 Ctrl-C lets all ranks stop in order and says so") {
  const NoHandlers no_handlers;
  const Scratch scratch;
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto result = run_processes(scratch, 3,
                                      [](auto& worker) {
                                        worker.report({{"ready", true}});
                                        while (!worker.should_stop()) {
                                        }
                                        worker.report({{"stopped", true}});
                                      },
                                      {.callbacks = {[signal](const ry::Report& report) {
                                         if (report.index == 0) ::raise(signal);
                                       }}});
    CHECK_FALSE(result);
    CHECK(result.exit_status() == 128 + signal);
    CHECK_THAT(result.error(), ContainsSubstring("interrupted by " + ry::detail::signal_name(signal)));
    CHECK(result.metrics().find("stopped") != nullptr);
  }
}

TEST_CASE("Processes: B7 workers that ignore Ctrl-C are killed after stop_grace, or at the second one") {
  const NoHandlers no_handlers;
  const Scratch scratch;
  for (const bool is_patient : {true, false}) {
    ry::RunConfig config{.stop_grace = is_patient ? 200ms : 1h};
    config.callbacks = {[is_patient](const ry::Report&) {
      ::raise(SIGINT);
      if (!is_patient) ::raise(SIGTERM);
    }};
    const auto result = run_processes(
        scratch, 2,
        [](auto& worker) {
          worker.report({});
          deaf_for_ever();
        },
        config);
    CHECK(result.exit_status() == 130);
  }
}

TEST_CASE("Processes: a worker that does not get to the training function is named after start_timeout (FAULTS A16)") {
  const Scratch scratch;
  ry::RunConfig config{.progress = ry::Progress::quiet, .start_timeout = 300ms, .stop_grace = 200ms};
  ry::detail::Supervision supervision{config,
                                      ry::detail::ElasticSize{{.num_workers = 2}},
                                      {.name = "x", .path = scratch.path(), .world_size = 2},
                                      ry::Deadline::Clock::now(),
                                      ry::detail::RunLease{scratch.path()}};
  const auto start_group = [](const ry::GroupPlan& wanted) {
    return ry::Processes{}.start(wanted, [](ry::WorkerLink& link) {
      if (link.world().rank == 1) deaf_for_ever();
      link.post(ry::detail::encode_started("here"));
    });
  };
  const auto result = supervision.run(start_group, [](int) {});
  CHECK(result.failed_rank() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("had not joined the group") && ContainsSubstring("start_timeout"));
}

TEST_CASE("Processes: every line of output is in the log of its rank") {
  const Scratch scratch;
  const auto result = run_processes(scratch, 2, [](auto& worker) {
    for (int i = 0; i < 200; ++i) fmt::print("line {} of rank {}\n", i, worker.rank());
  });
  CHECK(result.error() == "");
  for (int rank = 0; rank < 2; ++rank) {
    const auto lines = read_lines(result.path() / "logs" / fmt::format("rank-{}.log", rank));
    REQUIRE(lines.size() == 200);
    for (int i = 0; i < 200; ++i)
      CHECK(lines[static_cast<std::size_t>(i)] == fmt::format("line {} of rank {}", i, rank));
  }
}

TEST_CASE("Processes: standard streams that are closed harm neither the run nor its logs") {
  const Scratch scratch;
  ::fflush(stdout);
  const std::array<int, 3> kept{::dup(0), ::dup(1), ::dup(2)};
  for (int stream = 0; stream < 3; ++stream) ::close(stream);
  const auto result = run_processes(scratch, 2, [](auto& worker) {
    fmt::print("hello\n");
    worker.report({{"mean", worker.mean(worker.rank())}});
  });
  for (int stream = 0; stream < 3; ++stream) {
    ::dup2(kept[static_cast<std::size_t>(stream)], stream);
    ::close(kept[static_cast<std::size_t>(stream)]);
  }
  CHECK(result.error() == "");
  CHECK(read_text(result.path() / "logs" / "rank-1.log") == "hello\n");
  CHECK(read_lines(result.path() / "metrics.jsonl").size() == 1);
}

TEST_CASE("Processes: output into a pipe that nobody reads any more is kept in the logs, and the run goes on") {
  const Scratch scratch;
  ::fflush(stdout);
  const int kept = ::dup(1);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  ::dup2(ends[1], 1);
  ::close(ends[1]);
  ::close(ends[0]);
  const auto result = run_processes(scratch, 2, [](auto& worker) {
    fmt::print("hello\n");
    worker.barrier();
  });
  ::dup2(kept, 1);
  ::close(kept);
  CHECK(result.error() == "");
  CHECK(read_text(result.path() / "logs" / "rank-0.log") == "hello\n");
}

TEST_CASE("fit: leaves nothing behind, whatever the end: no process, descriptor, memory or port") {
  const Scratch scratch;
  REQUIRE(run_processes(scratch, 1, [](auto&) {}));  // whatever is made once per process is made now
  const workers_test::Holdings before;
  for (int kind = 0; kind < 4; ++kind) {
    const auto end = [kind](auto& worker) {
      worker.barrier();
      if (kind == 1 && worker.rank() == 1) throw std::runtime_error("boo");
      if (kind == 2 && worker.rank() == 0) ::raise(SIGKILL);
      if (kind == 3 && worker.rank() == 0) std::exit(1);
      if (kind != 0) meet_for_ever(worker);
    };
    for (const auto transport : {ry::GlooTransport::automatic, ry::GlooTransport::tcp}) {
      const auto result = run_in<ry::Gloo, ry::Processes>(scratch, 2, end, {}, {.transport = transport});
      CHECK(result.error().empty() == (kind == 0));
      CHECK(workers_test::come_back_to(before));
    }
  }
}

TEST_CASE("fit: threads that are connected by ports leave none behind, nor anything else, whatever the end") {
  const Scratch scratch;
  const auto run_by_tcp = [&scratch](bool fails) {
    const auto end = [fails](auto& worker) {
      worker.barrier();
      if (fails && worker.rank() == 1) throw std::runtime_error("boo");
      if (fails) meet_for_ever(worker);
    };
    return run_in<ry::Gloo, ry::Threads>(scratch, 2, end, {}, {.transport = ry::GlooTransport::tcp});
  };
  REQUIRE(run_by_tcp(false));  // whatever is made once per process is made now
  const workers_test::Holdings before;
  for (const bool fails : {false, true}) {
    CHECK(run_by_tcp(fails).error().empty() != fails);
    CHECK(workers_test::come_back_to(before));
  }
}
