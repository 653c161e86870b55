// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/stack_teller.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"

#include <atomic>
#include <thread>

namespace ry = railyard;

#if !defined(__SANITIZE_THREAD__)  // which holds signals back until a thread calls something that it knows
TEST_CASE("StackTeller: tells the calls of a thread that computes") {
  ry::detail::StackTeller teller;
  std::atomic<bool> is_watched{false};
  std::atomic<bool> is_over{false};
  std::thread thread{[&] {
    teller.watch_this_thread();
    is_watched = true;
    while (!is_over) {
    }
    teller.forget_thread();
  }};
  while (!is_watched) std::this_thread::yield();
  for (int round = 0; round < 3; ++round) {
    const std::string text = teller.tell(ry::Deadline::after(std::chrono::seconds{30}));
    CHECK_THAT(text, ContainsSubstring("#0 ") && ContainsSubstring("workers_tests"));
  }
  is_over = true;
  thread.join();
  CHECK(teller.tell(ry::Deadline::after(std::chrono::seconds{30})).empty());
}

#endif

TEST_CASE("StackTeller: leaves a signal alone that the program uses") {
  const int signal = SIGRTMAX - 2;
  struct sigaction own {};
  struct sigaction former {};
  own.sa_handler = [](int) {};
  ::sigaction(signal, &own, &former);
  ry::detail::StackTeller teller;
  teller.watch_this_thread();
  CHECK(teller.tell(ry::Deadline::after(std::chrono::seconds{30})).empty());
  ::sigaction(signal, &former, nullptr);
}

TEMPLATE_TEST_CASE("WorkerGroup: tells what each rank is in, also when it waits for another", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    link.store().set(link.world().rank == 0 ? "zero" : "one", "is here");
    static_cast<void>(link.store().get("none", ry::Deadline::after(std::chrono::minutes{1})));
  });
  std::vector<std::string> stacks;
  const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
  do {  // until both have begun
    stacks = group->stacks(ry::Deadline::after(std::chrono::seconds{1}));
  } while ((stacks[0].empty() || stacks[1].empty()) && !deadline.expired());
  CHECK_THAT(stacks[0], ContainsSubstring("#0 ") && ContainsSubstring("#1 "));
  CHECK_THAT(stacks[1], ContainsSubstring("#0 ") && ContainsSubstring("#1 "));
  group->abort("a test");
}

TEST_CASE("Threads: the handler that has told of stacks goes with the last group") {
  const auto handler = [] {
    struct sigaction current {};
    ::sigaction(ry::detail::StackSignal::number(), nullptr, &current);
    return current.sa_handler;
  };
  const auto start_and_ask = [] {
    auto group = ry::Threads{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
      static_cast<void>(link.store().get("none", ry::Deadline::after(std::chrono::minutes{1})));
    });
    const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
    while (group->stacks(ry::Deadline::after(std::chrono::seconds{1}))[0].empty() && !deadline.expired()) {
    }
    return group;
  };
  REQUIRE(handler() == SIG_DFL);
  auto first = start_and_ask();
  auto second = start_and_ask();
  first.reset();
  CHECK(handler() != SIG_DFL);
  second.reset();
  CHECK(handler() == SIG_DFL);
}
