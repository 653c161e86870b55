// SPDX-License-Identifier: MIT
// What the kernel offers, made safe to use: descriptors, futexes, times and messages of failed calls. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns one file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
  void reset() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

/// Says what a failed call of the system means, and what to do where that is known.
[[nodiscard]] inline std::string explain_errno(int error) {
  const std::string text = std::generic_category().message(error);
  if (error == EMFILE) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return compose("{} (this process may have {} descriptors: raise the limit with ulimit -n, or close some)", text,
                   limit.rlim_cur);
  }
  if (error == EAGAIN) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NPROC, &limit);
    const auto count = limit.rlim_cur == RLIM_INFINITY ? std::string{"unlimited"} : compose("{}", limit.rlim_cur);
    rlimit space{};
    ::getrlimit(RLIMIT_AS, &space);
    const auto memory = space.rlim_cur == RLIM_INFINITY
                            ? std::string{}
                            : compose(
                                  "; or the memory that this process may have has no room for a thread's stack: see "
                                  "ulimit -v, here {} KiB, and ulimit -s",
                                  space.rlim_cur / 1024);
    return compose("{} (the limit of processes is reached: see ulimit -u, here {}, and pids.max of the cgroup{})", text,
                   count, memory);
  }
  return text;
}

[[noreturn]] inline void throw_system(std::string_view what, int error) {
  throw Error{compose("{}: {}", what, explain_errno(error))};
}

/// Takes over a new descriptor and moves it above 2, where it would end up if the program has closed its standard
/// streams: later it would be overwritten or be taken for one.
[[nodiscard]] inline Descriptor adopt(int fd, std::string_view what) {
  if (fd < 0) throw_system(what, errno);
  if (fd > 2) return Descriptor{fd};
  const Descriptor low{fd};
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (moved < 0) throw_system(what, errno);
  return Descriptor{moved};
}

/// Makes a pipe, both ends closed on exec. Returns the end to read from, then the end to write to.
[[nodiscard]] inline std::pair<Descriptor, Descriptor> make_pipe(int flags, std::string_view what) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) throw_system(what, errno);
  Descriptor second{ends[1]};  // is not lost if the first cannot be moved
  Descriptor reader = adopt(ends[0], what);
  if (second.get() > 2) return {std::move(reader), std::move(second)};
  const int moved = ::fcntl(second.get(), F_DUPFD_CLOEXEC, 3);
  if (moved < 0) throw_system(what, errno);
  return {std::move(reader), Descriptor{moved}};
}

/// Reads what a file has from a byte on. Returns how many bytes that were: fewer than asked for only at its end, where
/// errno is 0, or where reading fails, as errno says then.
[[nodiscard]] inline std::size_t read_at(int file, std::uint64_t begin, void* to, std::size_t size) noexcept {
  constexpr std::size_t most_at_once = std::size_t{1} << 30U;  // the system moves less than 2 GiB
  std::size_t got = 0;
  while (got < size) {
    errno = 0;
    const ssize_t part = ::pread(file, static_cast<char*>(to) + got, std::min(size - got, most_at_once),
                                 static_cast<off_t>(begin + got));
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) break;
    got += static_cast<std::size_t>(part);
  }
  return got;
}

[[nodiscard]] inline std::int64_t monotonic_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Deadline::Clock::now().time_since_epoch()).count();
}

/// Returns the time since the host was booted: suspended time counts, unlike in that of Deadline.
[[nodiscard]] inline std::chrono::nanoseconds boot_time() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}

[[nodiscard]] inline timespec to_timespec(std::chrono::nanoseconds time) noexcept {
  const auto bounded = std::clamp(time, std::chrono::nanoseconds{0}, std::chrono::nanoseconds{std::chrono::hours{24}});
  return {static_cast<std::time_t>(bounded.count() / 1'000'000'000),
          static_cast<long>(bounded.count() % 1'000'000'000)};
}

/// Sleeps while word holds expected, for at most the given time; may return early. Works across processes.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::chrono::nanoseconds at_most) noexcept {
  static_assert(sizeof(word) == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);
  const timespec time = to_timespec(at_most);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

/// Wakes everybody who sleeps on word.
inline void futex_wake(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 0x7FFFFFFF, nullptr, nullptr, 0);
}

/// Changes the word and wakes everybody who sleeps on it.
inline void nudge(std::atomic<std::uint32_t>& word) noexcept {
  word.fetch_add(1);
  futex_wake(word);
}

[[nodiscard]] inline int open_pidfd(pid_t pid) noexcept {
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
#else
  errno = ENOSYS;
  return -1;
#endif
}

inline void signal_pidfd([[maybe_unused]] int pidfd, [[maybe_unused]] int signal) noexcept {
#ifdef SYS_pidfd_send_signal
  ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
#endif
}

/// Fills the bytes with what nobody can guess.
inline void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR) throw_system("random bytes from the kernel", errno);
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

/// Returns what a small file of the system's says; empty if it cannot be read. Cost: a microsecond or two.
[[nodiscard]] inline std::string system_text(const char* path) {
  const Descriptor file{::open(path, O_RDONLY | O_CLOEXEC)};
  std::string text;
  char part[1024];
  ssize_t got = 1;
  while (file.is_open() && got > 0) {
    got = ::read(file.get(), part, sizeof part);
    if (got > 0) text.append(part, static_cast<std::size_t>(got));
  }
  return text;
}

/// Returns what names the running kernel, until the next start of the machine: the same in all its containers. Empty if
/// the system does not tell.
[[nodiscard]] inline std::string boot_id() {
  std::string id = system_text("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

/// Returns what tells processes whose numbers mean the same for each other, "pid:[4026531836]"; empty if it cannot be
/// told.
[[nodiscard]] inline std::string pid_namespace() {
  char name[64];
  const ssize_t size = ::readlink("/proc/self/ns/pid", name, sizeof name);
  return {name, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

/// Returns the bytes of memory that the host has.
[[nodiscard]] inline std::size_t physical_memory() noexcept {
  return static_cast<std::size_t>(std::max(::sysconf(_SC_PHYS_PAGES), 1L)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

[[nodiscard]] inline std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

/// Ends the program as the signal would have, had nobody caught it.
[[noreturn]] inline void end_by_signal(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
