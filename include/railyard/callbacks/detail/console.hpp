// SPDX-License-Identifier: MIT
// Writes to standard output and standard error in a way that no closed pipe or terminal can turn into the end of the
// run. Callbacks room.
#pragma once

#include "railyard/core/detail/signals.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <poll.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

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

  /// Writes all of text, or returns false. Waits up to 1 s for a reader that takes nothing, and from then on not at all
  /// until it takes something again: the supervisor has signals and workers to look after.
  bool write(int stream, std::string_view text) {
    if (stream < 0) return false;
    State& state = states_[stream == error_ ? 1 : 0];
    const WriteSignalGuard<SIGPIPE> guard;
    if (stream == STDOUT_FILENO && ::__fpending(stdout) > 0) {  // what the program has printed before comes before
      if (!is_ready(stream, state)) return false;
      std::fflush(stdout);
    }
    std::string whole;
    if (state.is_torn) text = whole.append("\n").append(text);
    const std::size_t size = text.size();
    auto give_up = Clock::now() + patience;
    while (!text.empty()) {
      if (!is_ready(stream, state)) break;
      // A pipe that poll() calls writable has room for a page; more would block.
      const ssize_t written = ::write(stream, text.data(), std::min<std::size_t>(text.size(), 4096));
      if (written > 0) {
        text.remove_prefix(static_cast<std::size_t>(written));
        give_up = Clock::now() + patience;
      } else if (written == 0 || (errno != EINTR && errno != EAGAIN) || Clock::now() >= give_up) {
        break;
      }
    }
    if (text.size() < size) state.is_torn = !text.empty();
    return text.empty();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds patience{1};
  struct State {
    bool is_stalled = false;  // the last wait was in vain
    bool is_torn = false;     // the last line is there in part
  };

  // Returns whether a write would not block; that also holds where it would fail.
  static bool is_ready(int stream, State& state) noexcept {
    const auto give_up = Clock::now() + (state.is_stalled ? Clock::duration{0} : patience);
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up - Clock::now()).count();
      pollfd entry{.fd = stream, .events = POLLOUT, .revents = 0};
      const int count = ::poll(&entry, 1, static_cast<int>(left > 0 ? left : 0));
      if (count < 0 && errno == EINTR && left > 0) continue;
      state.is_stalled = count < 1;
      return count == 1;
    }
  }

  int output_;
  int error_;
  std::array<State, 2> states_{};  // of output and of error
};

}  // namespace detail
}  // namespace railyard::inline v0_1
