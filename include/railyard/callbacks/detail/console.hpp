// SPDX-License-Identifier: MIT
// Writes to standard output and standard error in a way that no closed pipe or terminal can turn into the end of the
// run. Callbacks room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
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
    const int way = way_to(stream, state);
    const WriteSignalGuard<SIGPIPE> guard;
    if (stream == STDOUT_FILENO && ::__fpending(stdout) > 0) {  // what the program has printed before comes before
      if (!is_ready(stream, state)) return false;
      std::fflush(stdout);
    }
    std::string whole;
    if (state.is_torn) text = whole.append("\n").append(text);
    const std::size_t size = text.size();
    auto give_up = Clock::now() + (state.is_stalled ? Clock::duration{0} : patience);
    while (!text.empty()) {
      if (!is_ready(stream, state)) break;
      // Where the way to the stream is the stream itself, a write that poll() promises may block beyond a page.
      const ssize_t written = ::write(way, text.data(), std::min<std::size_t>(text.size(), 4096));
      if (written > 0) {
        text.remove_prefix(static_cast<std::size_t>(written));
        give_up = Clock::now() + patience;
      } else if (written == 0 || (errno != EINTR && errno != EAGAIN)) {
        break;
      } else if (errno == EAGAIN) {  // poll() knows better only now and then: not at once again
        state.is_stalled = Clock::now() >= give_up;
        if (state.is_stalled) break;
        ::poll(nullptr, 0, 1);
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
    bool is_opened = false;   // it was tried to
    std::shared_ptr<const Descriptor> own{};
  };

  // Returns a descriptor of the stream that never blocks, if there can be one: a terminal that poll() calls writable
  // may have room for less than a line, as may a pipe that others write to, and the descriptors that others have as
  // well must go on to block.
  static int way_to(int stream, State& state) {
    if (!std::exchange(state.is_opened, true)) {
      struct stat status {};
      if (::fstat(stream, &status) == 0 && (S_ISFIFO(status.st_mode) || is_terminal(stream))) {
        const std::string name = compose("/proc/self/fd/{}", stream);
        Descriptor own{::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
        if (own.is_open()) state.own = std::make_shared<const Descriptor>(std::move(own));
      }
    }
    return state.own ? state.own->get() : stream;
  }

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
