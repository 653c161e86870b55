// SPDX-License-Identifier: MIT
// Runs of which every process is stopped for a while, as where a scheduler suspends a job.
#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"
#include "unit/train/quick_trainer.hpp"
#include "unit/workers/support.hpp"

#include "railyard/collectives/gloo.hpp"
#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <array>
#include <csignal>
#include <cstdio>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using namespace std::chrono_literals;

namespace {

constexpr auto suspended_timeout = 2s;

// Is a program that trains, of which one rank is waited for by the others until it is told to go on.
class SuspendedRun {
 public:
  template <class B, class S>
  void start(typename B::Options options = {}) {
    program_ = ::fork();
    if (program_ != 0) return;
    const auto result = run_in<B, S>(
        scratch_, 2,
        [this](auto& worker) {
          worker.barrier();
          const auto deadline = workers_test::soon();
          if (worker.rank() == 1) {
            *moment_ = 1;
            while (*moment_ == 1 && !deadline.expired()) ::usleep(1000);
          }
          worker.barrier();
          worker.barrier();
        },
        {.collective_timeout = suspended_timeout}, std::move(options));
    if (!result) std::fprintf(stderr, "%s\n", result.error().c_str());
    ::_exit(result ? 0 : 1);
  }

  [[nodiscard]] bool is_waiting() const { return *moment_ == 1; }
  void go_on() { *moment_ = 2; }
  // To the supervisor, and to all that has come of it.
  void send(int signal) const { send(program_, signal); }
  [[nodiscard]] int end() const {
    int status = 0;
    ::waitpid(program_, &status, 0);
    return status;
  }

 private:
  // Whoever is stopped has no more children.
  static void send(pid_t process, int signal) {
    ::kill(process, signal);
    for (const pid_t child : workers_test::children_of(process)) send(child, signal);
  }

  Scratch scratch_{};
  workers_test::SharedNumber moment_{};
  pid_t program_ = -1;
};

}  // namespace

TEST_CASE("Run: goes on after all of it was suspended for longer than collective_timeout (TRAPS 25)") {
  std::array<SuspendedRun, 4> runs;
  runs[0].start<ry::SharedMemory, ry::Processes>();
  runs[1].start<ry::Gloo, ry::Processes>({.transport = ry::GlooTransport::tcp});
  runs[2].start<ry::Local, ry::Threads>();
  runs[3].start<ry::SharedMemory, ry::Threads>();
  for (const SuspendedRun& run : runs) CHECK(awaits([&] { return run.is_waiting(); }));
  for (const SuspendedRun& run : runs) run.send(SIGSTOP);
  const auto is_over = ry::Deadline::after(suspended_timeout + 6s);  // libgloo's own timer as well
  awaits([&] { return is_over.expired(); });
  for (SuspendedRun& run : runs) run.go_on();
  for (const SuspendedRun& run : runs) run.send(SIGCONT);
  for (const SuspendedRun& run : runs) CHECK(run.end() == 0);
}
