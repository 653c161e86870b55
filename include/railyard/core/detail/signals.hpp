// SPDX-License-Identifier: MIT
// Keeps signals away from code that they would disturb, and names them. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/version.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string>

namespace railyard::inline v0_1 {
namespace detail {

/// Those that a run hears.
inline constexpr std::array caught_signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

/// Whether a signal tells a run to end only where it is said that it does: else it is the program's own.
[[nodiscard]] constexpr bool is_users_own(int signal) noexcept { return signal == SIGUSR1 || signal == SIGUSR2; }

/// Returns "SIGINT" and the like, or "signal 40" for one without a name.
[[nodiscard]] inline std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? compose("SIG{}", name) : compose("signal {}", signal);
}

/// Blocks signals in this thread, and so in the threads it makes, until it is destroyed.
class BlockSignals {
 public:
  explicit BlockSignals(const sigset_t& signals) noexcept { ::pthread_sigmask(SIG_BLOCK, &signals, &before_); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;
  ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  [[nodiscard]] const sigset_t& before() const noexcept { return before_; }

 private:
  sigset_t before_{};
};

/// Every signal that can wait: blocked while a thread is started that then never runs the user's handlers.
[[nodiscard]] inline sigset_t deferrable_signals() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) ::sigdelset(&all, fault);
  return all;
}

/// Keeps the signal that a failing write raises in the writing thread from being delivered while it lives: SIGPIPE for
/// a closed pipe or socket, SIGXFSZ for a file that is as large as it may become. It is blocked meanwhile and taken
/// back in the end, so that the process's own disposition is never touched. Cost: four system calls.
template <int signal>
class WriteSignalGuard {
 public:
  WriteSignalGuard() noexcept : was_pending_(is_pending()), block_(only_signal()) {}
  WriteSignalGuard(const WriteSignalGuard&) = delete;
  WriteSignalGuard& operator=(const WriteSignalGuard&) = delete;
  ~WriteSignalGuard() {
    const sigset_t only = only_signal();
    const timespec at_once{};
    while (!was_pending_ && ::sigtimedwait(&only, nullptr, &at_once) == -1 && errno == EINTR) {
    }
  }

 private:
  static sigset_t only_signal() noexcept {
    sigset_t only;
    ::sigemptyset(&only);
    ::sigaddset(&only, signal);
    return only;
  }
  static bool is_pending() noexcept {
    sigset_t pending;
    ::sigpending(&pending);
    return ::sigismember(&pending, signal) == 1;
  }

  bool was_pending_;
  BlockSignals block_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
