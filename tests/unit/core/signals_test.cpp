// SPDX-License-Identifier: MIT
#include "railyard/core/detail/signals.hpp"

#include "support/catch.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace ry = railyard;

TEST_CASE("WriteSignalGuard: a write to a closed socket fails with EPIPE, and no signal stays behind") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  ::close(ends[1]);
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    const ry::detail::WriteSignalGuard<SIGPIPE> guard;
    CHECK(::write(ends[0], "x", 1) == -1);  // with the default disposition this would have been the end
    CHECK(errno == EPIPE);
  }
  ::close(ends[0]);
  sigset_t after;
  sigset_t pending;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  sigpending(&pending);
  CHECK(sigismember(&after, SIGPIPE) == sigismember(&before, SIGPIPE));
  CHECK(sigismember(&pending, SIGPIPE) == 0);
}

TEST_CASE("WriteSignalGuard: a SIGPIPE that was pending before is left to its owner") {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  REQUIRE(::raise(SIGPIPE) == 0);
  { const ry::detail::WriteSignalGuard<SIGPIPE> guard; }
  sigset_t pending;
  sigpending(&pending);
  CHECK(sigismember(&pending, SIGPIPE) == 1);
  const timespec at_once{};
  CHECK(sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
