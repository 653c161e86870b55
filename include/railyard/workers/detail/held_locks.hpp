// SPDX-License-Identifier: MIT
// Finds out whether a fork has kept locks of the C and C++ libraries that another thread held. Workers room.
#pragma once

#include "railyard/workers/detail/library_locks.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/asked_child.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Has this process threads besides the calling one? Yes where the system does not say.
[[nodiscard]] inline bool has_other_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator threads{"/proc/self/task", error};
  return error || std::distance(begin(threads), end(threads)) != 1;
}

/// Does the process, of one thread, wait for a lock? Nothing where the system does not say. Takes no lock itself.
[[nodiscard]] inline std::optional<bool> waits_for_lock(pid_t pid) {
  const std::string call = system_text(compose("/proc/{}/syscall", pid).c_str());
  if (call.empty()) return std::nullopt;
  return std::strtol(call.c_str(), nullptr, 10) == SYS_futex;  // 0 while it runs
}

/// Returns how long the process has kept a processor busy; nothing if the system does not say. Takes no lock itself.
[[nodiscard]] inline std::chrono::nanoseconds processor_time(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
}

/// In a process with one thread, just forked from one with several: is none of the libraries' locks held, by a thread
/// that was left behind? Cost: one fork. At the deadline the answer is no; where the system says that the process which
/// tries waits for none, a slow machine may take longer.
[[nodiscard]] inline bool are_library_locks_free(const Deadline& deadline) {
  auto [reader, writer] = make_pipe(0, "start: a pipe to a process that tries locks");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return true;  // nor can a worker be made, which is when the limit is named
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) ::dup2(null, STDERR_FILENO);
    if (::getppid() == parent) take_library_locks();
    ::_exit(0);
  }
  writer.reset();
  pollfd ended{.fd = reader.get(), .events = POLLIN, .revents = 0};
  const Deadline slow = Deadline::after(std::chrono::seconds{15});
  constexpr std::chrono::milliseconds longest_work{50};
  bool has_ended = false;
  bool is_held = false;
  while (!has_ended && !is_held) {
    constexpr timespec look_every{.tv_sec = 0, .tv_nsec = 200'000};
    has_ended = ::ppoll(&ended, 1, &look_every, nullptr) > 0;
    if (has_ended) break;
    const auto waits = waits_for_lock(child);
    // Who waits for a lock of readers and writers that was just being handed over does so in a loop.
    is_held = waits.value_or(deadline.expired()) || processor_time(child) > longest_work || slow.expired();
  }
  const int status = end_child(child).value_or(0);
  constexpr int half_loaded = 127;  // what the loader ends a process with that finds a library so
  return has_ended && !(WIFEXITED(status) && WEXITSTATUS(status) == half_loaded);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
