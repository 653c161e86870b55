// SPDX-License-Identifier: MIT
#include "railyard/train/detail/result_file.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/system.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

// Whether a process has a handler for the signal; waits for it.
bool comes_to_catch(pid_t process, int signal) {
  const auto deadline = ry::Deadline::after(std::chrono::minutes{1});
  while (!deadline.expired()) {
    std::ifstream status{"/proc/" + std::to_string(process) + "/status"};
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("SigCgt:", 0) != 0) continue;
      const auto caught = std::stoull(line.substr(7), nullptr, 16);
      if ((caught >> static_cast<unsigned>(signal - 1) & 1U) != 0) return true;
    }
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

TEST_CASE("HeldSignals: one that comes while a result is written ends the program when the file is there, whole") {
  const Scratch scratch;
  const pid_t program = ::fork();
  if (program == 0) {
    std::signal(SIGTERM, SIG_DFL);
    // What is written goes through a pipe, so that writing it takes until it is read.
    const auto half_written = scratch.path() / ("result.json." + std::to_string(::getpid()));
    if (::mkfifo(half_written.c_str(), 0600) != 0) ::_exit(2);
    ry::detail::RunDirectory directory{scratch.path(), 1};
    {
      const ry::detail::HeldSignals held;
      static_cast<void>(ry::detail::write_result(directory, {}, [&directory] { directory.settle(); }));
    }
    ::_exit(1);
  }
  REQUIRE(program > 0);
  const bool is_writing = comes_to_catch(program, SIGTERM);
  ::kill(program, SIGTERM);
  const auto half_written = scratch.path() / ("result.json." + std::to_string(program));
  const ry::detail::Descriptor reader{::open(half_written.c_str(), O_RDONLY | O_NONBLOCK)};
  int status = 0;
  REQUIRE(::waitpid(program, &status, 0) == program);
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(reader.get(), text.data(), text.size()), 0)));
  CHECK(is_writing);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
  CHECK_THAT(text, ContainsSubstring("\"succeeded\": true"));
  CHECK(std::filesystem::exists(scratch.path() / "result.json"));
}

TEST_CASE("HeldSignals: one that the program handles itself reaches it once") {
  static volatile std::sig_atomic_t num_heard = 0;
  num_heard = 0;
  const auto former = std::signal(SIGTERM, [](int) { num_heard = num_heard + 1; });
  {
    const ry::detail::HeldSignals held;
    ::raise(SIGTERM);
  }
  std::signal(SIGTERM, former);
  CHECK(num_heard == 1);
}
