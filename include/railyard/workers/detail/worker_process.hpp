// SPDX-License-Identifier: MIT
// What a forked worker does from its first to its last instruction. Workers room.
#pragma once

#include "railyard/workers/detail/death_watch.hpp"
#include "railyard/workers/detail/signal_watch.hpp"
#include "railyard/workers/detail/silence_watch.hpp"
#include "railyard/workers/detail/worker_link.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/scaling.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <thread>

#include <sys/prctl.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Holds all that a worker needs and that is the same for every rank.
struct WorkerSetup {
  GroupMemory* memory = nullptr;
  const WorkerBody* body = nullptr;
  int event_fd = -1;
  std::string host{};
  std::chrono::nanoseconds heartbeat{};
  sigset_t signal_mask{};            ///< the supervisor's
  struct sigaction child_action {};  ///< the supervisor's, of SIGCHLD
  bool flushes_all = true;           ///< is it safe to flush every stdio stream?
};

/// Writes out what stdio and iostreams hold. Not every stream if one is locked by somebody who reads it: that could
/// last for ever.
inline void flush_streams(bool every_stream) noexcept {
  try {
    std::cout.flush();
    std::clog.flush();
    std::cerr.flush();
  } catch (...) {  // the program has asked its streams to throw; a closed terminal is not ours to report
  }
  if (every_stream) {
    std::fflush(nullptr);
  } else {
    std::fflush(stdout);
    std::fflush(stderr);
  }
}

/// Runs the body in this process, which has just been forked and has one thread. That thread becomes the agent: it
/// moves the heartbeat and runs the abort handler, whatever the body does.
class WorkerProcess {
 public:
  /// kept_file: see Store::take_memory().
  WorkerProcess(const WorkerSetup& setup, int rank, Descriptor kept_file)
      : setup_(&setup),
        rank_(rank),
        link_(*setup.memory, rank, setup.event_fd, setup.memory->rank(rank).agent, setup.host, std::move(kept_file)) {}

  /// Sets up what must be so before anything of the user's runs.
  static void prepare(const WorkerSetup& setup, int rank, pid_t zygote, int out, int err) noexcept {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != zygote) ::_exit(70);  // it died before the line above
    ::setpgid(0, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    char name[16];
    std::snprintf(name, sizeof name, "railyard:%d", rank);
    ::prctl(PR_SET_NAME, name);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null > 0) ::dup2(null, 0);
    if (null == 0) ::fcntl(null, F_SETFD, 0);  // the parent had none, and what the body starts shall have one
    if (null > 2) ::close(null);
    ::dup2(out, 1);
    ::dup2(err, 2);
    buffer_by_line();
    ::sigaction(SIGCHLD, &setup.child_action, nullptr);
    be_deaf();
    ::sigset_t mask = setup.signal_mask;
    for (const int signal : caught_signals) ::sigdelset(&mask, signal);
    ::sigdelset(&mask, SIGCHLD);
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  }

  [[noreturn]] void run() noexcept {
    DeathMark mark{block().life};
    // Handlers run in the opposite order of their registration: those of the body first, then this one, which ends the
    // process before those that the parent had registered and that are about the parent's things.
    ::on_exit(&WorkerProcess::leave, const_cast<bool*>(&setup_->flushes_all));
    WorkerExit exit{};
    std::thread body;
    try {
      body = std::thread{[this, &exit] { run_body(exit); }};
    } catch (const std::system_error& error) {
      exit.kind = WorkerExit::Kind::threw;
      exit.message =
          compose("making the thread that runs the training function: {}", explain_errno(error.code().value()));
      is_done_.store(true);
    }
    be_agent();
    if (body.joinable()) body.join();  // with the destructors of its thread-local objects, which may crash as well
    mark.take_back();                  // how it ends is posted, and its end is no surprise
    link_.post_exit(exit);
    leave(0, const_cast<bool*>(&setup_->flushes_all));
    ::_exit(0);
  }

 private:
  // Slurm and systemd send these signals to all processes of a job at once. The supervisor hears them, and has the
  // workers save and leave: one that died of them could not. With a handler that does nothing, since what the body
  // executes would ignore them as well if this process did.
  static void be_deaf() noexcept {
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    nothing.sa_flags = SA_RESTART;
    for (const int signal : caught_signals) {
      struct sigaction current {};
      ::sigaction(signal, nullptr, &current);
      if ((current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_IGN) continue;
      ::sigaction(signal, &nothing, nullptr);
    }
  }

  // To a pipe, stdio would write by the page, and a line come late. Only with a buffer of its own does glibc forget
  // that the parent's was one to be filled: otherwise puts() keeps the line feed back.
  static void buffer_by_line() noexcept {
    constexpr std::size_t size = 16U << 10U;
    if (auto* buffer = static_cast<char*>(std::malloc(size))) std::setvbuf(stdout, buffer, _IOLBF, size);
  }

  static void leave(int status, void* flushes_all) noexcept {
    flush_streams(*static_cast<const bool*>(flushes_all));
    ::_exit(status);
  }

  void run_body(WorkerExit& exit) noexcept {
    link_.begin_body();
    try {
      (*setup_->body)(link_);
    } catch (...) {
      exit = exit_of(std::current_exception());
    }
    link_.end_body();
    link_.on_abort({});  // what it refers to is most likely gone
    is_done_.store(true);
    nudge(block().agent);
  }

  void be_agent() noexcept {
    while (!is_done_.load()) {
      const std::uint32_t seen = block().agent.load();
      block().heartbeat.fetch_add(1);
      link_.run_handler_if_aborted();
      link_.tell_stack_if_wanted();
      if (!is_done_.load()) futex_wait(block().agent, seen, setup_->heartbeat);
    }
  }

  [[nodiscard]] RankBlock& block() const noexcept { return setup_->memory->rank(rank_); }

  const WorkerSetup* setup_;
  int rank_;
  SharedLink link_;
  std::atomic<bool> is_done_{false};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
