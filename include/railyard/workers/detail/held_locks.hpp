// SPDX-License-Identifier: MIT
// Finds out whether a fork has kept locks of the C and C++ libraries that another thread held. Workers room.
#pragma once

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
#include <locale>
#include <optional>
#include <string>
#include <system_error>

#include <libintl.h>
#include <link.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Has this process threads besides the calling one? Yes where the system does not say.
[[nodiscard]] inline bool has_other_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator threads{"/proc/self/task", error};
  return error || std::distance(begin(threads), end(threads)) != 1;
}

/// Takes every lock of the libraries that a fork does not free: whoever calls it while one is held for ever never
/// returns. For a process that is thrown away: random numbers, time zone, locale and syslog are not what they were.
inline void take_library_locks() {
  const std::time_t time = 0;
  std::tm parts{};
  ::localtime_r(&time, &parts);                                             // the time zone
  ::unsetenv("RAILYARD_NO_SUCH_VARIABLE");                                  // the environment
  std::srand(1);                                                            // the random numbers
  if (::locale_t copy = ::duplocale(LC_GLOBAL_LOCALE)) ::freelocale(copy);  // the locale of C
  std::locale::global(std::locale{});                                       // and that of C++
  ::textdomain(::textdomain(nullptr));                                      // translated messages, as of strerror()
  std::atexit([] {});                                                       // what is called at exit
  ::dl_iterate_phdr([](dl_phdr_info*, std::size_t, void*) { return 1; }, nullptr);  // the list of libraries
  ::closelog();                                                                     // the connection to syslog
}

/// Does the process, of one thread, wait for a lock? Nothing where the system does not say. Takes no lock itself.
[[nodiscard]] inline std::optional<bool> waits_for_lock(pid_t pid) {
  const std::string call = system_text(compose("/proc/{}/syscall", pid).c_str());
  if (call.empty()) return std::nullopt;
  return std::strtol(call.c_str(), nullptr, 10) == SYS_futex;  // 0 while it runs
}

/// In a process with one thread, just forked from one with several: is none of these locks held, by a thread that was
/// left behind? Cost: one fork. At the deadline the answer is no; where the system says that the process which tries
/// waits for none, a slow machine may take longer.
[[nodiscard]] inline bool are_library_locks_free(const Deadline& deadline) {
  auto [reader, writer] = make_pipe(0, "start: a pipe to a process that tries locks");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return true;  // nor can a worker be made, which is when the limit is named
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) take_library_locks();
    ::_exit(0);
  }
  writer.reset();
  pollfd ended{.fd = reader.get(), .events = POLLIN, .revents = 0};
  const Deadline slow = Deadline::after(std::chrono::seconds{15});
  bool has_ended = false;
  bool is_held = false;
  while (!has_ended && !is_held) {
    constexpr timespec look_every{.tv_sec = 0, .tv_nsec = 200'000};
    has_ended = ::ppoll(&ended, 1, &look_every, nullptr) > 0;
    if (has_ended) break;
    const auto waits = waits_for_lock(child);
    is_held = waits.value_or(deadline.expired()) || slow.expired();
  }
  [[maybe_unused]] const std::optional<int> status = end_child(child);
  return has_ended;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
