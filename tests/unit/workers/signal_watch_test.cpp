// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/signal_watch.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <atomic>

using namespace workers_test;
using ry::detail::SignalWatch;

namespace {

struct sigaction action_of(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action;
}

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(signal, &action, nullptr);
}

// The disposition is the process's: each test has one of its own.
int in_process(const std::function<int()>& function) {
  return Forked{[&](const Forked::Tell&) { return function(); }}.status();
}

std::atomic<int> times_called = 0;  // handlers run on several threads
void count_call(int /*signal*/) { ++times_called; }
void (*replaced)(int, siginfo_t*, void*) = nullptr;
void count_and_chain(int signal, siginfo_t* info, void* context) {
  ++times_called;
  replaced(signal, info, context);
}

}  // namespace

TEST_CASE("SignalWatch: hears SIGINT, SIGTERM and SIGHUP and puts back the default") {
  CHECK(in_process([] {
          {
            const SignalWatch watch;
            for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
              ::raise(signal);
              if (watch.take() != signal) return 1;
            }
            if (watch.take()) return 2;
          }
          for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
            if (action_of(signal).sa_handler != SIG_DFL) return 3;
          }
          ::raise(SIGTERM);
          return 4;
        }) == -SIGTERM);
}

TEST_CASE("SignalWatch: calls the user's handler as well and puts it back with its mask and flags") {
  CHECK(in_process([] {
          struct sigaction users {};
          users.sa_handler = &count_call;
          users.sa_flags = SA_NODEFER;
          ::sigaddset(&users.sa_mask, SIGUSR2);
          ::sigaction(SIGINT, &users, nullptr);
          {
            const SignalWatch watch;
            ::raise(SIGINT);
            if (times_called != 1 || watch.take() != SIGINT) return 1;
          }
          const auto after = action_of(SIGINT);
          const bool is_same = after.sa_handler == &count_call && (after.sa_flags & SA_NODEFER) != 0 &&
                               ::sigismember(&after.sa_mask, SIGUSR2) == 1;
          return is_same ? 0 : 2;
        }) == 0);
}

TEST_CASE("SignalWatch: leaves alone what is ignored") {
  CHECK(in_process([] {
          set_handler(SIGHUP, SIG_IGN);  // as nohup does
          {
            const SignalWatch watch;
            ::raise(SIGHUP);
            if (watch.take()) return 1;
          }
          return action_of(SIGHUP).sa_handler == SIG_IGN ? 0 : 2;
        }) == 0);
}

TEST_CASE("SignalWatch: does not undo a handler that somebody has set in the meantime") {
  CHECK(in_process([] {
          {
            const SignalWatch watch;
            set_handler(SIGINT, &count_call);
          }
          if (action_of(SIGINT).sa_handler != &count_call) return 1;
          const SignalWatch again;  // works with that one
          ::raise(SIGINT);
          return times_called == 1 ? 0 : 2;
        }) == 0);
}

TEST_CASE("SignalWatch: goes on under a handler that calls it, and ends the process when nobody listens") {
  CHECK(in_process([] {
          {
            const SignalWatch watch;
            struct sigaction over {};
            replaced = action_of(SIGTERM).sa_sigaction;
            over.sa_sigaction = &count_and_chain;
            over.sa_flags = SA_SIGINFO;
            ::sigaction(SIGTERM, &over, nullptr);
            ::raise(SIGTERM);
            if (times_called != 1 || watch.take() != SIGTERM) return 1;
          }
          {
            const SignalWatch again;
            ::raise(SIGTERM);
            if (times_called != 2 || again.take() != SIGTERM || again.take()) return 2;
          }
          ::raise(SIGTERM);  // what was there at first was the default
          return 3;
        }) == -SIGTERM);
}

TEST_CASE("SignalWatch: tells every watch, and puts back at the last one's end, in whatever order they end") {
  CHECK(in_process([] {
          set_handler(SIGINT, &count_call);
          auto first = std::make_unique<SignalWatch>();
          auto second = std::make_unique<SignalWatch>();
          ::raise(SIGINT);
          if (first->take() != SIGINT || second->take() != SIGINT || times_called != 1) return 1;
          first.reset();
          ::raise(SIGINT);
          if (second->take() != SIGINT || times_called != 2) return 2;
          second.reset();
          return action_of(SIGINT).sa_handler == &count_call ? 0 : 3;
        }) == 0);
}

TEST_CASE("SignalWatch: comes and goes in several threads while signals rain") {
  CHECK(in_process([] {
          set_handler(SIGINT, &count_call);
          std::atomic<bool> is_over{false};
          std::thread rain{[&] {
            while (!is_over.load()) ::kill(::getpid(), SIGINT);
          }};
          std::vector<std::thread> threads;
          for (int at = 0; at < 3; ++at) {
            threads.emplace_back([] {
              for (int time = 0; time < 300; ++time) {
                const SignalWatch watch;
                (void)watch.take();
              }
            });
          }
          for (auto& thread : threads) thread.join();
          is_over.store(true);
          rain.join();
          return action_of(SIGINT).sa_handler == &count_call ? 0 : 1;
        }) == 0);
}
