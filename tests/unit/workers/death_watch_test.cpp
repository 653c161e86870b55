// SPDX-License-Identifier: MIT
// Workers that die, and take the others along before they are gone.
#include "railyard/workers/detail/death_watch.hpp"

#include "railyard/workers/processes.hpp"

#include "process_support.hpp"

#include "support/catch.hpp"

#include <csignal>
#include <memory>

#include <sys/syscall.h>
#include <unistd.h>

using namespace workers_test;

namespace {

// Ends the first thread of a worker's process, as the first thing that happens when the process dies. The process goes
// on, so that nobody can learn of its end otherwise.
void end_first_thread() {
  struct sigaction action {};
  action.sa_handler = [](int) { ::syscall(SYS_exit, 0); };
  ::sigaction(SIGUSR2, &action, nullptr);
  ::syscall(SYS_tgkill, ::getpid(), ::getpid(), SIGUSR2);
}

}  // namespace

TEST_CASE("Processes: a worker that has begun to die takes the others along, if they die together") {
  if (!ry::detail::DeathWatch::is_possible()) return;
  auto group = start(3, [](ry::WorkerLink& link) {
    if (link.world().rank == 1) end_first_thread();
    wait_for_ever();
  });
  group->die_together(true);
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt > 0) group->restart(3, "");  // which is remembered
    const Story story = follow_to_end(*group);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(story.exit_of(rank).kind == Kind::signalled);
      CHECK(story.exit_of(rank).code == SIGKILL);
      CHECK(story.exit_of(rank).is_consequence == (rank != 1));
    }
  }
}

TEST_CASE("Processes: of workers that die together, the one that was killed first is told as such") {
  auto group = start(2, [](ry::WorkerLink& link) {
    if (link.world().rank == 1) ::raise(SIGKILL);
    while (!link.page().stop_requested.load()) ::usleep(1000);
  });
  group->die_together(true);
  Story story;
  follow(*group, story, [&] { return story.exits.contains(1); });
  group->request_stop();  // where nothing is told before the end, nobody is taken along
  follow(*group, story, [] { return false; });
  CHECK(story.exit_of(1).code == SIGKILL);
  CHECK_FALSE(story.exit_of(1).is_consequence);
  CHECK(story.exit_of(0).is_consequence == (story.exit_of(0).kind == Kind::signalled));
}

TEST_CASE("Processes: a worker that ends in order takes nobody along, and one that dies only where it is to") {
  for (const bool dies : {false, true}) {
    auto group = start(2, [dies](ry::WorkerLink& link) {
      if (link.world().rank == 1 && dies) ::raise(SIGKILL);
      while (link.world().rank == 0 && !link.page().stop_requested.load()) ::usleep(1000);
    });
    group->die_together(true);
    if (dies) group->die_together(false);
    Story story;
    follow(*group, story, [&] { return story.exits.contains(1); });
    group->request_stop();
    follow(*group, story, [] { return false; });
    CHECK(story.exit_of(0).kind == Kind::returned);
  }
}
