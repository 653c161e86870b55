// SPDX-License-Identifier: MIT
#include "railyard/callbacks/progress.hpp"

#include "support/catch.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace ry = railyard;
using Catch::ContainsSubstring;
using ry::detail::Console;

namespace {

// Is a pair of descriptors: what is written to one end can be read at the other.
class Ends {
 public:
  Ends(int reader, int writer) : reader_(reader), writer_(writer) {}
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() {
    close_reader();
    ::close(writer_);
  }
  void close_reader() {
    if (reader_ >= 0) ::close(reader_);
    reader_ = -1;
  }
  [[nodiscard]] int writer() const { return writer_; }
  // Everything that has been written since the last call.
  std::string read() const {
    std::string text;
    std::array<char, 4096> part{};
    for (;;) {
      pollfd entry{.fd = reader_, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 0) != 1 || (entry.revents & POLLIN) == 0) return text;
      const ssize_t count = ::read(reader_, part.data(), part.size());
      if (count <= 0) return text;
      text.append(part.data(), static_cast<std::size_t>(count));
    }
  }

 private:
  int reader_;
  int writer_;
};

class Pipe : public Ends {
 public:
  Pipe() : Pipe(made()) {}

 private:
  explicit Pipe(const std::array<int, 2>& ends) : Ends(ends[0], ends[1]) {}
  static std::array<int, 2> made() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error{"pipe failed"};
    return ends;
  }
};

class Terminal : public Ends {
 public:
  explicit Terminal(unsigned short columns) : Terminal(made(columns)) {}

 private:
  explicit Terminal(const std::array<int, 2>& ends) : Ends(ends[0], ends[1]) {}
  static std::array<int, 2> made(unsigned short columns) {
    ::setenv("TERM", "xterm", 1);
    const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) throw std::runtime_error{"no terminal"};
    const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    winsize size{.ws_row = 25, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    if (slave < 0 || ::ioctl(slave, TIOCSWINSZ, &size) != 0) throw std::runtime_error{"no terminal"};
    return {master, slave};
  }
};

ry::ProgressState state_at(double seconds) { return {.seconds = seconds, .alive = 2, .world_size = 2}; }

}  // namespace

TEST_CASE("ProgressLine: shows epoch, metrics, rate, time left and workers") {
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), pipe.writer()}};
  line.on_report(4, {{"loss", 0.123456}, {"epoch", 7}, {"name", "abc"}, {"good", true}});
  CHECK(line.text(state_at(3)) == "report 4 | 2/2 workers | 3 s | loss 0.1235 | epoch 7 | name abc | good true");
  ry::ProgressState state{
      .seconds = 0, .alive = 1, .world_size = 2, .samples = 0, .epoch = 7, .epoch_size = 1000, .epoch_done = 0};
  line.update(state);
  state.seconds = 2;
  state.samples = state.epoch_done = 400;
  line.update(state);
  CHECK(line.text(state) ==
        "epoch 7 40% | 200 samples/s | 3 s left in epoch | 1/2 workers | 2 s | loss 0.1235 | name abc | good true");
  state.seconds = 6000;
  state.samples = 400;
  state.alive = 0;
  line.update(state);
  CHECK_THAT(line.text(state), ContainsSubstring("| 1 h 40 min |"));
}

TEST_CASE("ProgressLine: shows the step where there is no epoch") {
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), pipe.writer()}};
  line.on_report(4, {{"loss", 0.5}});
  ry::ProgressState state = state_at(3);
  state.steps = 120;
  CHECK(line.text(state) == "step 120 | 2/2 workers | 3 s | loss 0.5");
  state.epoch = 7;
  CHECK(line.text(state) == "epoch 7 | 2/2 workers | 3 s | loss 0.5");
}

TEST_CASE("ProgressLine: the rate is that of the last seconds") {
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), pipe.writer()}};
  ry::ProgressState state = state_at(0);
  for (int i = 0; i <= 100; ++i) {  // ten seconds at 10 samples per second, ten at 1000
    state.seconds = i * 0.1;
    state.samples = static_cast<std::uint64_t>(i);
    line.update(state);
  }
  for (int i = 1; i <= 100; ++i) {
    state.seconds = 10 + i * 0.1;
    state.samples = 100 + static_cast<std::uint64_t>(i) * 100;
    line.update(state);
  }
  CHECK_THAT(line.text(state), ContainsSubstring("1000 samples/s"));
}

TEST_CASE("ProgressLine: numbers that are not finite are shown as such") {
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), pipe.writer()}};
  constexpr double inf = std::numeric_limits<double>::infinity();
  line.on_report(0, {{"a", std::numeric_limits<double>::quiet_NaN()}, {"b", inf}, {"c", -inf}});
  CHECK_THAT(line.text(state_at(0)), ContainsSubstring("a nan | b inf | c -inf"));
}

TEST_CASE(
    "ProgressLine: without a terminal, a plain line at the first report, then every ten seconds, and at the end") {
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), pipe.writer()}};
  line.update(state_at(1));
  CHECK(pipe.read() == "");
  line.on_report(0, {{"a", 0}});
  line.update(state_at(2));
  CHECK(pipe.read() == "report 0 | 2/2 workers | 2 s | a 0\n");
  line.on_report(1, {{"a", 1}});
  line.update(state_at(3));
  CHECK(pipe.read() == "");
  line.update(state_at(12));
  CHECK(pipe.read() == "report 1 | 2/2 workers | 12 s | a 1\n");
  line.update(state_at(30));
  CHECK(pipe.read() == "");  // no news
  line.on_report(2, {{"a", 2}});
  line.finish(state_at(31));
  CHECK(pipe.read() == "report 2 | 2/2 workers | 31 s | a 2\n");
}

TEST_CASE("ProgressLine: without a terminal, a plain line every ten seconds before the first report, too") {
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), pipe.writer()}};
  line.update(state_at(9.9));
  CHECK(pipe.read() == "");
  line.update(state_at(10));
  CHECK(pipe.read() == "2/2 workers | 10 s\n");
  line.update(state_at(15));
  CHECK(pipe.read() == "");
  line.update(state_at(20));
  CHECK(pipe.read() == "2/2 workers | 20 s\n");
  line.on_report(0, {{"a", 0}});
  line.update(state_at(21));
  CHECK(pipe.read() == "report 0 | 2/2 workers | 21 s | a 0\n");  // the first one does not wait
}

TEST_CASE("ProgressLine: without a terminal, steps go on to be told of where reports are far apart") {
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), pipe.writer()}};
  line.on_report(0, {{"a", 0}});
  line.update(state_at(1));
  CHECK(pipe.read() == "report 0 | 2/2 workers | 1 s | a 0\n");
  ry::ProgressState state = state_at(5);
  state.steps = 7;
  line.update(state);
  CHECK(pipe.read() == "");
  state.seconds = 11;
  line.update(state);
  CHECK(pipe.read() == "step 7 | 2/2 workers | 11 s | a 0\n");
  state.seconds = 22;
  line.update(state);
  CHECK(pipe.read() == "");  // it stands still
  state.steps = 8;
  line.finish(state);
  CHECK(pipe.read() == "step 8 | 2/2 workers | 22 s | a 0\n");
}

TEST_CASE("ProgressLine: quiet shows nothing but lets the workers' output through") {
  const Pipe pipe;
  const Pipe errors;
  ry::ProgressLine line{Console{pipe.writer(), errors.writer()}, true};
  line.on_report(0, {{"a", 0}});
  line.update(state_at(1));
  line.print(false, "to output");
  line.print(true, "to errors");
  line.finish(state_at(2));
  CHECK(pipe.read() == "to output\n");
  CHECK(errors.read() == "to errors\n");
}

TEST_CASE("ProgressLine: on a terminal one line is redrawn ten times a second at most and fits the width") {
  const Terminal terminal{50};
  ry::ProgressLine line{Console{terminal.writer(), terminal.writer()}};
  line.on_report(0, {{"name", "a long text \xC3\xA9\xC3\xA9\n that does not fit in"}});
  line.update(state_at(1));
  CHECK(terminal.read() == "\rreport 0 | 2/2 workers | 1 s | name a long tex...\x1b[K");
  line.update(state_at(1.05));
  CHECK(terminal.read() == "");
  line.update(state_at(1.11));
  CHECK(terminal.read() != "");
}

TEST_CASE("ProgressLine: a number that does not fit is not cut into another one") {
  CHECK(ry::ProgressLine::fitted("loss 0.9767", 11) == "loss 0.9767");
  CHECK(ry::ProgressLine::fitted("loss 0.9767", 10) == "loss 0....");
  CHECK(ry::ProgressLine::fitted("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 4) == "\xC3\xA9...");
  CHECK(ry::ProgressLine::fitted("loss", 2) == "..");
  CHECK(ry::ProgressLine::fitted("loss", 0).empty());
}

TEST_CASE("ProgressLine: output of workers stands above the line on a terminal") {
  const Terminal terminal{80};
  ry::ProgressLine line{Console{terminal.writer(), terminal.writer()}};
  line.on_report(0, {{"a", 0}});
  line.update(state_at(1));
  const std::string drawn = "\rreport 0 | 2/2 workers | 1 s | a 0\x1b[K";
  CHECK(terminal.read() == drawn);
  line.print(false, "hello");
  CHECK(terminal.read() == "\r\x1b[Khello\r\n" + drawn);
  line.finish(state_at(1));
  CHECK(terminal.read() == drawn + "\r\n");
}

TEST_CASE("ProgressLine: output that goes elsewhere than to the terminal leaves the line alone") {
  const Terminal terminal{80};
  const Pipe pipe;
  ry::ProgressLine line{Console{pipe.writer(), terminal.writer()}};
  line.on_report(0, {{"a", 0}});
  line.update(state_at(1));
  static_cast<void>(terminal.read());
  line.print(false, "hello");
  CHECK(pipe.read() == "hello\n");
  CHECK(terminal.read() == "");
}

TEST_CASE("ProgressLine: leaves the terminal clean when it goes without finish()") {
  const Terminal terminal{80};
  {
    ry::ProgressLine line{Console{terminal.writer(), terminal.writer()}};
    line.update(state_at(1));
    static_cast<void>(terminal.read());
  }
  CHECK(terminal.read() == "\r\x1b[K");
}

TEST_CASE("Console: a closed pipe is no signal and no error") {
  Pipe pipe;
  pipe.close_reader();
  Console console{pipe.writer(), pipe.writer()};
  CHECK_FALSE(console.write(pipe.writer(), "lost"));  // SIGPIPE, at its default, would end this program
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(::sigismember(&pending, SIGPIPE) == 0);
  CHECK_FALSE(console.write(-1, "lost"));
}

TEST_CASE("Console: a SIGPIPE that was pending before stays so") {
  sigset_t pipe_only;
  sigset_t former;
  ::sigemptyset(&pipe_only);
  ::sigaddset(&pipe_only, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_only, &former);
  ::raise(SIGPIPE);
  Pipe pipe;
  pipe.close_reader();
  CHECK_FALSE(Console{}.write(pipe.writer(), "lost"));
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(::sigismember(&pending, SIGPIPE) == 1);
  const timespec at_once{};
  ::sigtimedwait(&pipe_only, nullptr, &at_once);
  ::pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

TEST_CASE("Console: a closed terminal takes nothing and harms nothing") {
  Terminal terminal{80};
  ry::ProgressLine line{Console{terminal.writer(), terminal.writer()}};
  line.update(state_at(1));
  terminal.close_reader();
  line.update(state_at(2));
  line.print(true, "lost");
  line.finish(state_at(3));
  CHECK_FALSE(Console{}.write(terminal.writer(), "lost"));
}

TEST_CASE("Console: a reader that is slow to take a full non-blocking pipe does not keep the run for long") {
  const Pipe pipe;
  ::fcntl(pipe.writer(), F_SETFL, O_NONBLOCK);
  CHECK_FALSE(Console{}.write(pipe.writer(), std::string(1U << 20U, 'x')));  // more than it holds
  CHECK(pipe.read().size() >= 4096);
  CHECK(Console{}.write(pipe.writer(), "again"));
}

TEST_CASE(
    "Console: a terminal that nobody reads, as after Ctrl-S, is waited for once, and its descriptor goes on to block") {
  const Terminal terminal{80};
  Console console{terminal.writer(), terminal.writer()};
  const std::string line(85, 'x');
  int written = 0;
  while (console.write(terminal.writer(), line)) ++written;  // a blocking write would stay here for ever
  CHECK(written > 0);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(console.write(terminal.writer(), line));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{100});  // not 1 s for each
  CHECK((::fcntl(terminal.writer(), F_GETFL) & O_NONBLOCK) == 0);
  CHECK(terminal.read().size() >= line.size() * static_cast<std::size_t>(written));
  CHECK(console.write(terminal.writer(), "again"));
}

TEST_CASE("Console: a blocking pipe that nobody reads is waited for once, and is used again when it is read") {
  const Pipe pipe;
  const Pipe output;
  ry::ProgressLine line{Console{output.writer(), pipe.writer()}, true};
  CHECK(line.warning().empty());
  line.print(true, std::string(1U << 20U, 'x'));  // more than it holds: a blocking write would stay here for ever
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) line.print(true, "dropped");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{100});  // not 1 s for each
  line.print(false, "goes on");
  CHECK(output.read() == "goes on\n");
  CHECK_THAT(line.warning(), ContainsSubstring("1001 line(s)") && ContainsSubstring("in the logs"));
  CHECK(pipe.read().size() >= 4096);
  line.print(true, "again");
  CHECK(pipe.read() == "\nagain\n");  // not at the end of the line that was torn
}
