// SPDX-License-Identifier: MIT
// What the tests of Processes share on top of support.hpp.
#pragma once

#include "railyard/workers/processes.hpp"

#include "support.hpp"
#include "support/memory_group.hpp"

#include <array>
#include <cstddef>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/stat.h>

namespace workers_test {

inline constexpr int alone = 1;

inline std::unique_ptr<ry::WorkerGroup> start(int num_workers, const ry::WorkerBody& body,
                                              std::chrono::nanoseconds silence_limit = 30s) {
  return ry::Processes{}.start({.num_workers = num_workers, .silence_limit = silence_limit}, body);
}

inline void wait_for_ever() {
  while (true) ::pause();
}

inline pid_t number_in(const std::vector<std::byte>& bytes) { return std::stoi(text_of(bytes)); }

inline void post_pid(ry::WorkerLink& link, pid_t pid) { link.post(bytes_of(fmt::to_string(pid))); }

// The pids that the group's workers post, `count` of them.
inline std::vector<pid_t> hear_pids(ry::WorkerGroup& group, std::size_t count) {
  std::vector<pid_t> pids;
  const auto deadline = soon();
  while (pids.size() < count) {
    const auto event = group.next(deadline);
    if (!event) break;
    if (const auto* message = std::get_if<ry::MessageEvent>(&*event)) pids.push_back(number_in(message->bytes));
  }
  return pids;
}

// Makes pidfd_open fail in this process and its children, as it does on a kernel before 5.3.
inline bool forbid_pidfds() {
  std::array<sock_filter, 4> program{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 &&
         ry::detail::open_pidfd(::getpid()) < 0;
}

using railyard_test::MemoryGroup;

// A child of the worker that stays, in the worker's process group or in a session of its own.
inline pid_t leave_child(bool in_own_session) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (in_own_session) ::setsid();
  wait_for_ever();
  ::_exit(0);
}

}  // namespace workers_test
