// SPDX-License-Identifier: MIT
// Asks a question in a process that is thrown away, for what it would leave behind in this one. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a child has answered, or why there is no answer.
template <class T>
struct ChildAnswer {
  std::optional<T> value{};
  std::string problem{};
};

/// Returns false at the deadline, else whether so many bytes have come before the writers' end.
[[nodiscard]] inline bool read_whole(int fd, void* data, std::size_t size, const Deadline& deadline) {
  std::size_t num_read = 0;
  while (num_read < size) {
    pollfd waiting{fd, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    constexpr std::chrono::milliseconds longest = std::chrono::hours{1};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::min(left, longest).count()));
    if (ready < 0 && errno != EINTR) return false;
    if (ready > 0) {
      const ssize_t got = ::read(fd, static_cast<std::byte*>(data) + num_read, size - num_read);
      if (got == 0 || (got < 0 && errno != EINTR)) return false;
      if (got > 0) num_read += static_cast<std::size_t>(got);
    } else if (deadline.expired()) {
      return false;
    }
  }
  return true;
}

/// Ends a child and returns its status; nothing where it hangs in a call of a driver that no signal ends: it is left
/// then, and is gone when that call returns.
[[nodiscard]] inline std::optional<int> end_child(pid_t child) {
  ::kill(child, SIGKILL);
  const auto deadline = Deadline::after(std::chrono::seconds{2});
  for (auto pause = std::chrono::microseconds{50};;
       pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds{20})) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if ((ended < 0 && errno != EINTR) || deadline.expired()) return {};
    std::this_thread::sleep_for(pause);
  }
}

/// Returns what ask() gives in a forked child. What it needs is loaded before: the child of a program with several
/// threads may not be able to. Throws: Error if there can be no child.
template <class Ask, class T = std::invoke_result_t<const Ask&>>
requires std::is_trivially_copyable_v<T>
[[nodiscard]] ChildAnswer<T> ask_child(const Ask& ask, const Deadline& deadline) {
  auto [reader, writer] = make_pipe(0, "no pipe to ask a child process by");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw_system("no child process to ask", errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);                                    // which has ended before
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);  // handlers are for the program alone
    const T answer = ask();
    ::_exit(::write(writer.get(), &answer, sizeof answer) == static_cast<ssize_t>(sizeof answer) ? 0 : 1);
  }
  writer.reset();
  T answer;
  const bool has_answer = read_whole(reader.get(), &answer, sizeof answer, deadline);
  const bool is_late = !has_answer && deadline.expired();
  const std::optional<int> status = end_child(child);
  if (has_answer) return {.value = answer};
  if (is_late) return {.problem = compose("a child process that asks had no answer within {}", deadline.budget_text())};
  return {.problem = status && WIFSIGNALED(*status) && WTERMSIG(*status) != SIGKILL
                         ? compose("a child process that asks was ended by signal {}", WTERMSIG(*status))
                         : std::string{"a child process that asks ended without an answer"}};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
