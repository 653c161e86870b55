// SPDX-License-Identifier: MIT
// Whole runs on a terminal that is closed in the middle.
#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "unit/train/launched_processes.hpp"
#include "unit/train/quick_trainer.hpp"
#include "unit/workers/support.hpp"

#include "railyard/collectives/shared_memory.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/workers/processes.hpp"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace ry = railyard;

namespace closed_terminal_test {

// Is the far end of a terminal: what a program prints there can be read here.
class Screen {
 public:
  Screen() : end_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (!end_.is_open() || ::grantpt(end_.get()) != 0 || ::unlockpt(end_.get()) != 0) {
      throw std::runtime_error{"no terminal"};
    }
    name_ = ::ptsname(end_.get());
  }
  [[nodiscard]] const std::string& name() const { return name_; }
  void close() { end_.reset(); }

  // Is the text there by the deadline, among all that has been printed?
  [[nodiscard]] bool shows(const std::string& text) {
    const ry::Deadline deadline = workers_test::soon();
    while (seen_.find(text) == std::string::npos) {
      pollfd one{.fd = end_.get(), .events = POLLIN, .revents = 0};
      const auto time = ry::detail::to_timespec(deadline.remaining());
      if (::ppoll(&one, 1, &time, nullptr) != 1) return false;
      std::array<char, 4096> bytes;
      const ssize_t got = ::read(end_.get(), bytes.data(), bytes.size());
      if (got <= 0) return false;
      seen_.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return true;
  }

 private:
  ry::detail::Descriptor end_;
  std::string name_{};
  std::string seen_{};
};

// Makes this process, which the terminal has not seen yet, one that a login there has started.
void log_in(const Screen& screen) {
  ::setsid();
  const int terminal =
      ::open(screen.name().c_str(), O_RDWR);  // the first one of the session: it hears when that hangs up
  for (int stream = 0; stream < 3; ++stream) ::dup2(terminal, stream);
  if (terminal > 2) ::close(terminal);
  ::setenv("TERM", "xterm", 1);
}

// What the run on the terminal returns, as an exit status; its worker is given the file that comes when it is closed.
template <class Train, class Judge>
int status_of_run(const Train& train, const Judge& judge, bool ignores_hangup) {
  const Scratch scratch;
  Screen screen;
  const std::filesystem::path closed = scratch.path() / "closed";
  workers_test::Forked program{[&](const workers_test::Forked::Tell& tell) {
    log_in(screen);
    screen.close();                                    // here, where it has come by the fork
    if (ignores_hangup) std::signal(SIGHUP, SIG_IGN);  // as nohup does
    tell(::getpid());
    ry::Trainer<ry::SharedMemory, ry::Processes> trainer{
        [&](ry::Worker& worker) { train(worker, closed); }, {.num_workers = 2}, {.storage_path = scratch.path()}};
    return judge(trainer.fit()) ? 0 : 1;
  }};
  REQUIRE(program.hear() == program.pid());
  REQUIRE(screen.shows("ready true"));
  screen.close();
  launched_runs::leave(closed);
  return program.status();
}

TEST_CASE("fit: where the terminal is closed in the middle of a run, it ends in order, as SIGHUP asks it to") {
  const auto train_until_stopped = [](ry::Worker& worker, const std::filesystem::path&) {
    worker.report({{"ready", true}});
    while (!worker.should_stop()) {
    }
    std::puts("stops");
    worker.report({{"stopped", true}});
  };
  const auto is_as_told = [](const ry::Result& result) {
    return result.exit_status() == 128 + SIGHUP && result.metrics().find("stopped") != nullptr &&
           result.error().find("interrupted by SIGHUP") != std::string::npos &&
           read_text(result.path() / "logs" / "rank-1.log") == "stops\n";
  };
  CHECK(status_of_run(train_until_stopped, is_as_told, false) == 0);
}

TEST_CASE("fit: where SIGHUP is ignored, a run goes on to its end without its terminal") {
  const auto train_on = [](ry::Worker& worker, const std::filesystem::path& closed) {
    worker.report({{"ready", true}});
    if (!launched_runs::comes(closed)) throw std::runtime_error{"the terminal was not closed"};
    for (int line = 0; line < 100; ++line) std::puts("goes on");
    worker.barrier();
    worker.report({{"done", true}});
  };
  const auto is_whole = [](const ry::Result& result) {
    return result.error().empty() && result.metrics().find("done") != nullptr &&
           read_lines(result.path() / "logs" / "rank-1.log").size() == 100;
  };
  CHECK(status_of_run(train_on, is_whole, true) == 0);
}

}  // namespace closed_terminal_test
