// SPDX-License-Identifier: MIT
// Writes to standard output and standard error in a way that no closed pipe or terminal can turn into the end of the
// run. Callbacks room.
#pragma once

#include "railyard/core/version.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Holds SIGPIPE off this thread, and swallows the one that a write in between has raised.
class PipeSignalGuard {
 public:
  PipeSignalGuard() noexcept {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &former_);
  }
  PipeSignalGuard(const PipeSignalGuard&) = delete;
  PipeSignalGuard& operator=(const PipeSignalGuard&) = delete;
  ~PipeSignalGuard() {
    const timespec at_once{};
    while (!was_pending_ && ::sigtimedwait(&pipe_, nullptr, &at_once) == -1 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &former_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t former_{};
  bool was_pending_ = false;
};

/// Opens those of the descriptors 0 to 2 that are closed on /dev/null, and leaves them so: otherwise files and sockets
/// of the run would get their numbers, and what is meant for standard output would be written into them.
inline void open_standard_streams() noexcept {
  int file = ::open("/dev/null", O_RDWR);
  while (file >= 0 && file <= STDERR_FILENO) file = ::open("/dev/null", O_RDWR);
  if (file >= 0) ::close(file);
}

/// Is the pair of streams that a run writes to. What cannot be written is dropped: the logs have it too.
class Console {
 public:
  explicit Console(int output = STDOUT_FILENO, int error = STDERR_FILENO) noexcept : output_(output), error_(error) {}

  [[nodiscard]] int output() const noexcept { return output_; }
  [[nodiscard]] int error() const noexcept { return error_; }
  [[nodiscard]] static bool is_terminal(int stream) noexcept { return ::isatty(stream) == 1; }

  /// The columns of the terminal behind stream, 80 if it does not say.
  [[nodiscard]] static std::size_t width(int stream) noexcept {
    winsize size{};
    return ::ioctl(stream, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80U;
  }

  /// Writes all of text, or returns false. Waits for a slow reader; for a descriptor set to non-blocking, up to 1 s.
  bool write(int stream, std::string_view text) const {
    const PipeSignalGuard guard;
    if (stream == STDOUT_FILENO) std::fflush(stdout);  // what the program itself has printed before comes before
    while (!text.empty()) {
      const ssize_t written = ::write(stream, text.data(), text.size());
      if (written > 0) {
        text.remove_prefix(static_cast<std::size_t>(written));
      } else if (written == 0 || (errno != EINTR && !(errno == EAGAIN && becomes_writable(stream)))) {
        return false;
      }
    }
    return true;
  }

 private:
  static bool becomes_writable(int stream) noexcept {
    pollfd entry{.fd = stream, .events = POLLOUT, .revents = 0};
    return ::poll(&entry, 1, 1000) == 1 && (entry.revents & POLLOUT) != 0;
  }

  int output_;
  int error_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
