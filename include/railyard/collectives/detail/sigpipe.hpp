// SPDX-License-Identifier: MIT
// Keeps SIGPIPE, and other signals, away from code that writes to sockets. Collectives room.
#pragma once

#include "railyard/core/version.hpp"

#include <csignal>
#include <ctime>
#include <initializer_list>

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps a SIGPIPE that this thread causes from being delivered while it lives. A write to a closed socket sends
/// SIGPIPE to the writing thread; it is blocked meanwhile and taken back in the end, so that the process's own
/// disposition for SIGPIPE is never touched. Cost: three system calls.
class SigpipeGuard {
 public:
  SigpipeGuard() noexcept {
    sigemptyset(&only_sigpipe_);
    sigaddset(&only_sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &only_sigpipe_, &before_);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;
  ~SigpipeGuard() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&only_sigpipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t only_sigpipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

/// Blocks every signal that can wait while it lives: threads that are started meanwhile never run the user's handlers.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
