// SPDX-License-Identifier: MIT
#include "railyard/workers/threads.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <future>
#include <mutex>
#include <thread>

using namespace workers_test;

TEST_CASE("Threads: runs the workers in this process, each in a thread of its own") {
  std::mutex mutex;
  std::vector<std::thread::id> ids{std::this_thread::get_id()};
  auto group = ry::Threads{}.start({.num_workers = 4}, [&](ry::WorkerLink&) {
    const std::lock_guard lock{mutex};
    ids.push_back(std::this_thread::get_id());
  });
  follow_to_end(*group);
  std::sort(ids.begin(), ids.end());
  CHECK(std::unique(ids.begin(), ids.end()) == ids.end());
  CHECK(ids.size() == 5);
}

TEST_CASE("Threads: ends the program with status 70 and names the deaf ranks when they must end by force (TRAPS 23)") {
  auto ends = ry::detail::make_pipe(0, "test");
  Forked program{[&](const Forked::Tell&) {
    ::dup2(ends.second.get(), 2);
    std::atomic<bool> never{false};
    auto group = ry::Threads{}.start({.num_workers = 4}, [&](ry::WorkerLink& link) {
      if (link.world().rank % 2 == 0) return;
      while (!never.load()) std::this_thread::yield();
    });
    Story story;
    follow(*group, story, [&] { return story.exits.size() == 2; });
    group->kill();
    return 0;
  }};
  CHECK(program.status() == 70);
  ends.second.reset();
  std::array<char, 1024> text{};
  const auto size = ::read(ends.first.get(), text.data(), text.size());
  CHECK_THAT(std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))),
             ContainsSubstring("rank 1, 3 did not") && ContainsSubstring("status 70"));
}

TEST_CASE("Threads: says of very many deaf ranks what is wrong, and names the first") {
  auto ends = ry::detail::make_pipe(0, "test");
  Forked program{[&](const Forked::Tell&) {
    ::dup2(ends.second.get(), 2);
    std::atomic<bool> never{false};
    auto group = ry::Threads{}.start({.num_workers = 200}, [&](ry::WorkerLink&) { never.wait(false); });
    group->kill();
    return 0;
  }};
  CHECK(program.status() == 70);
  ends.second.reset();
  std::array<char, 4096> bytes{};
  const auto size = ::read(ends.first.get(), bytes.data(), bytes.size());
  const std::string text(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  CHECK_THAT(text, ContainsSubstring("status 70") && ContainsSubstring("rank 0, 1, 2, ") &&
                       ContainsSubstring("15 and 184 more did not") && Catch::EndsWith("use Processes.\n"));
}

TEST_CASE("Threads: raises the soft limit of descriptors if it must, and says so if the hard one is too low (C11)") {
  Forked raising{[](const Forked::Tell&) {
    const rlimit limit{.rlim_cur = 20, .rlim_max = 4096};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    auto group = ry::Threads{}.start({.num_workers = 24}, [](ry::WorkerLink&) {});
    return follow_to_end(*group).exits.size() == 24 ? 0 : 1;
  }};
  CHECK(raising.status() == 0);
  Forked refused{[](const Forked::Tell&) {
    const rlimit limit{.rlim_cur = 40, .rlim_max = 40};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    try {
      (void)ry::Threads{}.start({.num_workers = 2, .most_workers = 24}, [](ry::WorkerLink&) {});
    } catch (const ry::ConfigError& error) {
      const std::string text = error.what();
      return text.find("24 workers") != std::string::npos && text.find("ulimit -Hn") != std::string::npos ? 0 : 2;
    }
    return 1;
  }};
  CHECK(refused.status() == 0);
}

TEST_CASE("Threads: kill does nothing when every worker has ended") {
  auto group = ry::Threads{}.start({.num_workers = 2}, [](ry::WorkerLink&) {});
  Story story = follow_to_end(*group);
  group->kill();
  CHECK(story.exits.size() == 2);
}

TEST_CASE("Threads: names the rank when no more threads can be made, and ends those it has made") {
  if (::getuid() != 0) return;  // only root can become a user without processes, which the limit needs
  Forked refused{[](const Forked::Tell&) {
    const uid_t nobody = unknown_user();
    const rlimit limit{.rlim_cur = 3, .rlim_max = 3};
    if (::setresuid(nobody, nobody, nobody) != 0) return 3;
    ::setrlimit(RLIMIT_NPROC, &limit);
    const std::size_t before = count_entries("/proc/self/task");  // a sanitizer has a thread of its own
    try {
      (void)ry::Threads{}.start({.num_workers = 4},
                                [](ry::WorkerLink& link) { (void)link.store().get("never", soon()); });
    } catch (const ry::Error& error) {
      const std::string text = error.what();
      const bool is_right =
          text.find("the thread of rank ") != std::string::npos && text.find("ulimit -u") != std::string::npos;
      return is_right && count_entries("/proc/self/task") == before ? 0 : 2;
    }
    return 1;
  }};
  CHECK(refused.status() == 0);
}

TEST_CASE("Threads: hears a signal while workers are in system calls, which go on (B1)") {
  Forked program{[](const Forked::Tell&) {
    auto ends = ry::detail::make_pipe(0, "test");
    std::atomic<int> interrupted{0};
    auto group = ry::Threads{}.start({.num_workers = 2}, [&](ry::WorkerLink& link) {
      link.post(bytes_of("here"));
      char byte = 0;
      if (::read(ends.first.get(), &byte, 1) != 1) ++interrupted;
    });
    Story story;
    follow(*group, story, [&] { return story.messages.size() == 2; });
    ::kill(::getpid(), SIGTERM);
    follow(*group, story, [&] { return !story.signals.empty(); });
    if (::write(ends.second.get(), "ab", 2) != 2) return 1;
    follow(*group, story, [] { return false; });
    return story.signals == std::vector{SIGTERM} && interrupted == 0 ? 0 : 2;
  }};
  CHECK(program.status() == 0);
}

TEST_CASE("Threads: runs the abort handlers of the ranks beside each other") {
  std::promise<void> second_ran;
  auto group = ry::Threads{}.start({.num_workers = 2}, [&](ry::WorkerLink& link) {
    std::promise<bool> ran;
    link.on_abort([&](std::string_view) {
      if (link.world().rank == 1) second_ran.set_value();
      const bool in_time = link.world().rank == 1 || second_ran.get_future().wait_for(30s) == std::future_status::ready;
      ran.set_value(in_time);
    });
    link.post(bytes_of("ready"));
    link.post(bytes_of(ran.get_future().get() ? "ran" : "waited in vain"));
    link.on_abort({});
  });
  Story story;
  follow(*group, story, [&] { return story.messages.size() == 2; });
  group->abort("over");
  follow(*group, story, [] { return false; });
  for (int rank = 0; rank < 2; ++rank) CHECK(story.messages.at(rank) == std::vector<std::string>{"ready", "ran"});
}
