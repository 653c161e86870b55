// SPDX-License-Identifier: MIT
// Finds out whether a fork has kept locks of the C and C++ libraries that another thread held. Workers room.
#pragma once

#include "railyard/core/detail/asked_child.hpp"

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <locale>
#include <system_error>

#include <libintl.h>
#include <link.h>
#include <syslog.h>

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

/// In a process with one thread, just forked from one with several: is none of these locks held, by a thread that was
/// left behind? Cost: one fork. At the deadline the answer is no.
[[nodiscard]] inline bool are_library_locks_free(const Deadline& deadline) {
  try {
    const auto takes_all = [] {
      take_library_locks();
      return true;
    };
    return ask_child(takes_all, deadline).value || !deadline.expired();
  } catch (const Error&) {
    return true;  // no process can be made: nor can a worker, which is when the limit is named
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
