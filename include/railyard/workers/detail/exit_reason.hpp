// SPDX-License-Identifier: MIT
// Says in words why a process has ended or does not answer. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"

#include <csignal>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the number behind key in a file of lines "key number", as the kernel writes them.
[[nodiscard]] inline std::optional<std::uint64_t> number_in_file(const std::string& path, std::string_view key) {
  std::ifstream file{path};
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return std::nullopt;
}

/// Counts kills by the kernel's out-of-memory killer, in this process's memory cgroup if that can be seen (version 2,
/// then 1), and on the whole system otherwise.
class OomCounter {
 public:
  OomCounter() : OomCounter(find_path()) {}
  explicit OomCounter(std::string path) : path_(std::move(path)), before_(count()) {}

  /// Has the counter moved since this object was made?
  [[nodiscard]] bool has_moved() const { return count() > before_; }
  [[nodiscard]] bool is_of_cgroup() const noexcept { return path_ != system_path; }

 private:
  static constexpr std::string_view system_path = "/proc/vmstat";

  static std::string find_path() {
    std::ifstream cgroups{"/proc/self/cgroup"};
    for (std::string line; std::getline(cgroups, line);) {
      std::string path;
      if (line.starts_with("0::")) {
        path = "/sys/fs/cgroup" + line.substr(3) + "/memory.events";
      } else if (const auto at = line.find(":memory:"); at != std::string::npos) {
        path = "/sys/fs/cgroup/memory" + line.substr(at + 8) + "/memory.oom_control";
      }
      if (!path.empty() && number_in_file(path, "oom_kill")) return path;
    }
    return std::string{system_path};
  }
  [[nodiscard]] std::uint64_t count() const { return number_in_file(path_, "oom_kill").value_or(0); }

  std::string path_;
  std::uint64_t before_;
};

/// Returns the likely reason for a signal that has ended a worker, other than SIGKILL.
[[nodiscard]] inline std::string_view likely_reason(int signal) noexcept {
  switch (signal) {
    case SIGSEGV:
      return "it used memory that is not its own, such as a null or dangling pointer";
    case SIGABRT:
      return "abort(): most likely an assertion, or an exception that left a thread or a noexcept function; "
             "its standard error tells";
    case SIGBUS:
      return "it touched a mapping with no memory behind it: a file cut short, or /dev/shm is full";
    case SIGFPE:
      return "most likely an integer division by zero";
    case SIGILL:
      return "the processor does not know an instruction: built for another one (-march), or a trap of the compiler";
    case SIGXFSZ:
      return "a file grew beyond the limit (ulimit -f)";
    case SIGXCPU:
      return "the limit of processor time is used up (ulimit -t)";
    case SIGSYS:
      return "a system call is forbidden here (seccomp)";
    case SIGPIPE:
      return "it wrote to a pipe or socket that nobody reads";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "somebody asked this one process to end";
    default:
      return "sent from outside or by itself";
  }
}

/// Returns the sentence for a worker that a signal has ended.
[[nodiscard]] inline std::string explain_signal(int signal, bool dumped_core, const OomCounter& oom) {
  const std::string core = dumped_core ? "; a core dump was written" : "";
  if (signal != SIGKILL) {
    return compose("killed by signal {} ({}): {}{}", signal, signal_name(signal), likely_reason(signal), core);
  }
  if (oom.has_moved()) {
    return compose(
        "killed by signal 9 (SIGKILL): out of memory, most likely: the kernel's OOM killer has ended a "
        "process {} since the start",
        oom.is_of_cgroup() ? "of this memory cgroup" : "on this machine");
  }
  return "killed by signal 9 (SIGKILL) from outside: by a user, a batch system, or an OOM killer in user space";
}

/// Returns what the system says about a process: the letter of its state in /proc, 0 if it is gone.
[[nodiscard]] inline char process_state(pid_t pid) {
  std::ifstream file{compose("/proc/{}/stat", pid)};
  std::string text;
  std::getline(file, text);
  const auto end = text.rfind(')');  // the name before may hold anything
  return end != std::string::npos && end + 2 < text.size() ? text[end + 2] : '\0';
}

/// Is a process in that state stopped, by a signal or a debugger?
[[nodiscard]] inline bool is_stop(char state) noexcept { return state == 'T' || state == 't'; }

[[nodiscard]] inline std::string_view describe_state(char state) noexcept {
  switch (state) {
    case 'T':
      return "it is stopped (SIGSTOP or SIGTSTP): kill -CONT lets it go on";
    case 't':
      return "it is stopped by a debugger";
    case 'D':
      return "it is in uninterruptible sleep (state D): most likely a disk or a network file system does not answer";
    case 'S':
      return "it sleeps (state S), and so does the thread in it that gives signs of life: most likely its function has "
             "returned, and something waits that comes after it, such as the destructor of a thread_local object; or "
             "the process is frozen (the freezer of its cgroup)";
    case 'Z':
    case 'X':
    case '\0':
      return "it has ended";
    default:
      return "it is running or runnable, but has had no chance to run: the machine may be overloaded or out of memory";
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
