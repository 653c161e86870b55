// SPDX-License-Identifier: MIT
// Faults made for real: processes killed and stopped, and limits of the system.
#include "railyard/workers/processes.hpp"

#include "process_support.hpp"
#include "support/catch.hpp"

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <thread>

#include <link.h>
#include <sched.h>
#include <sys/mount.h>

using namespace workers_test;

TEST_CASE("Processes: says that memory was short when the kernel's OOM killer has ended a worker (B17, TRAPS 26)") {
  const auto group = MemoryGroup::make(std::size_t{128} << 20U);
  if (!group) {
    WARN("not tested: no memory cgroup can be made here");
    return;
  }
  Forked supervisor{[&](const Forked::Tell&) {
    group->enter();
    auto workers = start(2, [](ry::WorkerLink& link) {
      if (link.world().rank == 0) return;
      const std::size_t size = std::size_t{512} << 20U;
      auto* memory =
          static_cast<char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      for (std::size_t at = 0; at < size; at += 4096) memory[at] = 1;
    });
    const Story story = follow_to_end(*workers);
    const auto& exit = story.exit_of(1);
    if (exit.message.find("out of memory") == std::string::npos) fmt::print(stderr, "{}\n", exit.message);
    return exit.code == SIGKILL && exit.message.find("out of memory") != std::string::npos ? 0 : 1;
  }};
  CHECK(supervisor.status() == 0);
}

TEST_CASE("Processes: reports an exit although a process in a session of its own holds the pipes (B4)") {
  const Holdings before;
  auto group = start(alone, [](ry::WorkerLink& link) {
    post_pid(link, leave_child(true));
    post_pid(link, leave_child(false));
    std::printf("done");
  });
  const Story story = follow_to_end(*group);
  CHECK(story.exit_of(0).kind == Kind::returned);
  CHECK(story.out.at(0) == std::vector<std::string>{"done"});
  group.reset();
  for (const auto& pid : story.messages.at(0)) CHECK(ends(std::stoi(pid), ry::Deadline::after(0s)));
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: what a worker has started ends with it, while the others go on (B4)") {
  auto group = start(2, [](ry::WorkerLink& link) {
    if (link.world().rank == 0) return post_pid(link, leave_child(false));
    while (!link.page().stop_requested.load()) ::usleep(1000);
  });
  Story story;
  follow(*group, story, [&] { return story.exits.contains(0); });
  CHECK(ends(std::stoi(story.messages.at(0).at(0))));
  CHECK_FALSE(story.exits.contains(1));
  group->request_stop();
  follow(*group, story, [] { return false; });
  CHECK(story.exit_of(1).kind == Kind::returned);
}

TEST_CASE("Processes: ends whole trees of processes that a worker has made, however many") {
  const Holdings before;
  auto group = start(2, [](ry::WorkerLink& link) {
    for (int at = 0; at < 30; ++at) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        if (at % 3 == 0) ::setsid();
        leave_child(at % 2 == 0);
        leave_child(at % 2 != 0);
        wait_for_ever();
      }
      post_pid(link, pid);
    }
    wait_for_ever();
  });
  const auto pids = hear_pids(*group, 60);
  REQUIRE(pids.size() == 60);
  const auto zygotes = children_of(::getpid());
  group.reset();
  for (const pid_t pid : pids) CHECK(ends(pid, ry::Deadline::after(0s)));
  CHECK(zygotes.size() == 1);
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: leaves nothing behind when the supervisor is killed by kill -9 (B3, B4, TRAPS 20, 39)") {
  const Subreaper subreaper;
  const auto names = shared_memory_names();
  Forked supervisor{[](const Forked::Tell& tell) {
    auto group = start(2, [](ry::WorkerLink& link) {
      post_pid(link, ::getpid());
      post_pid(link, leave_child(false));
      post_pid(link, leave_child(true));
      wait_for_ever();
    });
    for (const pid_t pid : hear_pids(*group, 6)) tell(pid);
    wait_for_ever();
    return 0;
  }};
  std::vector<pid_t> pids;
  for (int at = 0; at < 6; ++at) pids.push_back(supervisor.hear());
  REQUIRE(pids.back() > 0);
  ::kill(supervisor.pid(), SIGKILL);
  CHECK(supervisor.status() == -SIGKILL);
  for (const pid_t pid : pids) CHECK(ends(pid));
  CHECK(subreaper.all_end());
  CHECK(shared_memory_names() == names);
}

TEST_CASE("Processes: leaves nothing behind when the supervisor exits without ending the group (B3)") {
  const Subreaper subreaper;
  Forked supervisor{[](const Forked::Tell& tell) {
    auto group = start(2, [](ry::WorkerLink& link) {
      post_pid(link, ::getpid());
      wait_for_ever();
    });
    for (const pid_t pid : hear_pids(*group, 2)) tell(pid);
    ::_exit(5);
    return 0;
  }};
  const std::array pids{supervisor.hear(), supervisor.hear()};
  CHECK(supervisor.status() == 5);
  for (const pid_t pid : pids) {
    REQUIRE(pid > 0);
    CHECK(ends(pid));
  }
  CHECK(subreaper.all_end());
}

TEST_CASE("Processes: reports the loss of the process that starts workers, and every exit (B3)") {
  const Subreaper subreaper;
  const Holdings before;
  auto group = start(3, [](ry::WorkerLink& link) {
    post_pid(link, ::getpid());
    post_pid(link, leave_child(false));
    if (link.world().rank == 2) return;
    wait_for_ever();
  });
  Story story;
  const auto num_heard = [&] { return story.messages[0].size() + story.messages[1].size() + story.messages[2].size(); };
  follow(*group, story, [&] { return num_heard() == 6 && story.exits.count(2) == 1; });
  const auto zygote = children_of(::getpid());
  REQUIRE(zygote.size() == 1);
  ::kill(zygote.front(), SIGKILL);
  follow(*group, story, [] { return false; });
  REQUIRE(story.broken.size() == 1);
  CHECK_THAT(story.broken.front(), ContainsSubstring(fmt::to_string(zygote.front())));
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(story.exit_of(rank).kind == Kind::signalled);
    CHECK(story.exit_of(rank).is_consequence);
  }
  CHECK(story.exit_of(2).kind == Kind::returned);
  group.reset();
  for (const auto& [rank, pids] : story.messages) {
    for (const auto& pid : pids) CHECK(ends(std::stoi(pid)));
  }
  CHECK(subreaper.all_end());
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: says of a silent worker that sleeps what may keep it, and not that the machine is overloaded") {
  const Holdings before;
  auto group = start(
      1,
      [](ry::WorkerLink&) {
        struct Stubborn {
          ~Stubborn() { wait_for_ever(); }
        };
        thread_local const Stubborn destroyed_when_the_function_has_returned;
        static_cast<void>(destroyed_when_the_function_has_returned);
      },
      300ms);
  Story story;
  follow(*group, story, [&] { return !story.silent.empty(); });
  REQUIRE(story.silent.count(0) == 1);
  CHECK_THAT(story.silent.at(0).front(), ContainsSubstring("sleeps (state S)") && ContainsSubstring("thread_local") &&
                                             !ContainsSubstring("overloaded"));
  group->kill();
  follow(*group, story, [] { return false; });
  CHECK(story.exits.size() == 1);
  group.reset();
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: reports a stopped worker once, and ends it by force") {
  const Holdings before;
  auto group = start(
      2,
      [](ry::WorkerLink& link) {
        post_pid(link, ::getpid());
        if (link.world().rank == 0) (void)link.store().get("never", soon());
        ::raise(SIGSTOP);
      },
      300ms);
  Story story;
  follow(*group, story, [&] { return !story.silent.empty(); });
  REQUIRE(story.silent.count(1) == 1);
  CHECK_THAT(story.silent.at(1).front(), ContainsSubstring("rank 1/2") && ContainsSubstring("SIGSTOP") &&
                                             ContainsSubstring(story.messages.at(1).front()));
  CHECK_FALSE(group->next(ry::Deadline::after(700ms)));  // not a second time, and nothing of rank 0
  group->kill();
  follow(*group, story, [] { return false; });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(story.exit_of(rank).kind == Kind::signalled);
    CHECK_THAT(story.exit_of(rank).message, ContainsSubstring("by its supervisor"));
    CHECK(story.exit_of(rank).is_consequence);
  }
  group.reset();
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: does not take its own suspension for silence of the workers (TRAPS 25)") {
  const Subreaper subreaper;
  Forked supervisor{[](const Forked::Tell& tell) {
    auto group = start(
        2,
        [](ry::WorkerLink& link) {
          post_pid(link, ::getpid());
          while (!link.page().stop_requested.load()) ::usleep(1000);
        },
        200ms);
    for (const pid_t pid : hear_pids(*group, 2)) tell(pid);
    tell(children_of(::getpid()).front());
    Story story;
    while (auto event = group->next(ry::Deadline::after(1s))) story.add(std::move(*event));
    group->request_stop();
    follow(*group, story, [] { return false; });
    return story.silent.empty() && story.exits.size() == 2 ? 0 : 1;
  }};
  const std::array pids{supervisor.hear(), supervisor.hear(), supervisor.hear(), supervisor.pid()};
  for (const pid_t pid : pids) ::kill(pid, SIGSTOP);
  pollfd nothing{};
  ::poll(&nothing, 0, 600);  // the suspension itself has to last; nothing is waited for
  for (auto pid = pids.rbegin(); pid != pids.rend(); ++pid) ::kill(*pid, SIGCONT);
  CHECK(supervisor.status() == 0);
}

TEST_CASE("Processes: ends workers that ignore every signal when the group is destroyed") {
  const Holdings before;
  auto group = start(2, [](ry::WorkerLink& link) {
    for (int signal = 1; signal < 32; ++signal) ::signal(signal, SIG_IGN);
    post_pid(link, ::getpid());
    wait_for_ever();
  });
  const auto pids = hear_pids(*group, 2);
  group.reset();
  for (const pid_t pid : pids) CHECK(ends(pid, ry::Deadline::after(0s)));
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: ends within a bound although the process that starts workers is stopped") {
  const Subreaper subreaper;
  const Holdings before;
  auto group = start(2, [](ry::WorkerLink& link) {
    post_pid(link, ::getpid());
    wait_for_ever();
  });
  const auto pids = hear_pids(*group, 2);
  ::kill(children_of(::getpid()).front(), SIGSTOP);
  group.reset();
  for (const pid_t pid : pids) CHECK(ends(pid));
  CHECK(subreaper.all_end());
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: workers that return while the process that starts workers is stopped have returned") {
  const Holdings before;
  auto group = start(
      2,
      [](ry::WorkerLink& link) {
        post_pid(link, leave_child(false));
        while (link.world().size == 2 && !link.page().stop_requested.load()) ::usleep(1000);
      },
      500ms);
  const auto pids = hear_pids(*group, 2);
  REQUIRE(pids.size() == 2);
  const pid_t zygote = children_of(::getpid()).front();
  ::kill(zygote, SIGSTOP);
  group->request_stop();
  const Story story = follow_to_end(*group);
  CHECK(story.silent.empty());
  CHECK(story.broken.empty());
  REQUIRE(story.exits.size() == 2);
  for (int rank = 0; rank < 2; ++rank) CHECK(story.exit_of(rank).kind == Kind::returned);
  CHECK(group->forks_to_restart());
  group->restart(1, {});  // which a stopped process could not do
  CHECK(follow_to_end(*group).exit_of(0).kind == Kind::returned);
  CHECK_FALSE(group->forks_to_restart());
  group.reset();
  for (const pid_t pid : pids) CHECK(ends(pid));
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: names the process that starts workers where it is stopped and a worker has died meanwhile") {
  const Holdings before;
  auto group = start(
      2,
      [](ry::WorkerLink& link) {
        post_pid(link, ::getpid());
        wait_for_ever();
      },
      500ms);
  Story story;
  follow(*group, story, [&] { return story.messages.size() == 2; });
  const pid_t zygote = children_of(::getpid()).front();
  ::kill(zygote, SIGSTOP);
  ::kill(std::stoi(story.messages.at(1).front()), SIGKILL);
  follow(*group, story, [&] { return !story.broken.empty() && story.exits.contains(1); });
  CHECK_FALSE(story.silent.contains(1));
  REQUIRE(story.broken.size() == 1);
  CHECK_THAT(story.broken.front(), ContainsSubstring("rank 1/2") && ContainsSubstring("kill -CONT") &&
                                       ContainsSubstring(fmt::to_string(zygote)));
  CHECK(story.exit_of(1).is_consequence);
  group->kill();
  follow(*group, story, [] { return false; });
  CHECK(story.broken.size() == 1);
  CHECK(story.exit_of(0).is_consequence);
  group.reset();
  CHECK(come_back_to(before));
}

TEST_CASE("Processes: raises the soft limit of descriptors if it must, and says so if the hard one is too low (C11)") {
  Forked raising{[](const Forked::Tell&) {
    const rlimit limit{.rlim_cur = 20, .rlim_max = 4096};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    auto group = start(24, [](ry::WorkerLink&) {});
    return follow_to_end(*group).exits.size() == 24 ? 0 : 1;
  }};
  CHECK(raising.status() == 0);
  Forked refused{[](const Forked::Tell&) {
    const rlimit limit{.rlim_cur = 40, .rlim_max = 40};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    try {
      start(24, [](ry::WorkerLink&) {});
    } catch (const ry::ConfigError& error) {
      const std::string text = error.what();
      return text.find("24 workers") != std::string::npos && text.find("ulimit -Hn") != std::string::npos ? 0 : 2;
    }
    return 1;
  }};
  CHECK(refused.status() == 0);
}

TEST_CASE("Processes: names the limit when no more processes can be made, and takes back those it has made") {
  if (::getuid() != 0) return;  // only root can become a user without processes, which the limit needs
  Forked refused{[](const Forked::Tell&) {
    const uid_t nobody = unknown_user();
    const rlimit limit{.rlim_cur = 6, .rlim_max = 6};  // this process, the zygote, and workers of two threads each
    if (::setresuid(nobody, nobody, nobody) != 0) return 3;
    ::setrlimit(RLIMIT_NPROC, &limit);
    std::string text;
    try {  // a worker that gets no thread ends, and makes room for another: who meets the limit is a matter of luck
      auto group = start(8, [](ry::WorkerLink& link) { (void)link.store().get("never", soon()); });
      Story story;
      follow(*group, story, [&] { return !story.exits.empty(); });
      for (const auto& [rank, exits] : story.exits) text += exits.front().message;
    } catch (const ry::Error& error) {
      text = error.what();
    }
    const bool is_right =
        text.find("forking rank ") != std::string::npos || text.find("the thread that runs") != std::string::npos;
    return is_right && text.find("ulimit -u") != std::string::npos && children_of(::getpid()).empty() ? 0 : 2;
  }};
  CHECK(refused.status() == 0);
}

TEST_CASE("Processes: fails cleanly when the process that starts workers cannot be forked") {
  if (::getuid() != 0) return;  // see above
  Forked refused{[](const Forked::Tell&) {
    const uid_t nobody = unknown_user();
    const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
    if (::setresuid(nobody, nobody, nobody) != 0) return 3;
    ::setrlimit(RLIMIT_NPROC, &limit);
    const Holdings before;
    try {
      start(2, [](ry::WorkerLink&) {});
    } catch (const ry::Error& error) {
      return come_back_to(before) && std::string{error.what()}.find("ulimit -u") != std::string::npos ? 0 : 2;
    }
    return 1;
  }};
  CHECK(refused.status() == 0);
}

TEST_CASE("Processes: works on a kernel without pidfds (TRAPS 24)") {
  const Subreaper subreaper;
  Forked supervisor{[](const Forked::Tell&) {
    if (!forbid_pidfds()) return 4;
    auto group = start(3, [](ry::WorkerLink& link) {
      post_pid(link, ::getpid());
      if (link.world().rank == 0) return;
      if (link.world().rank == 1) ::kill(::getpid(), SIGKILL);
      wait_for_ever();
    });
    Story story;
    follow(*group, story, [&] { return story.exits.size() == 2 && story.messages.size() == 3; });
    if (story.exit_of(0).kind != Kind::returned || story.exit_of(1).code != SIGKILL) return 1;
    ::kill(children_of(::getpid()).front(), SIGKILL);
    follow(*group, story, [] { return false; });
    return story.broken.size() == 1 && story.exits.size() == 3 ? 0 : 2;
  }};
  CHECK(supervisor.status() == 0);
  CHECK(subreaper.all_end());
}

TEST_CASE("Processes: workers find free the locks of the C library that another thread took all the time") {
  const auto draw = [] { [[maybe_unused]] const int number = std::rand(); };
  const auto set = [] { ::setenv("RAILYARD_TEST_OF_LOCKS", "1", 1); };
  const auto tell_time = [] {
    const std::time_t time = 0;
    std::tm parts{};
    ::localtime_r(&time, &parts);
  };
  const std::array<std::function<void()>, 3> calls{draw, set, tell_time};
  for (std::size_t at = 0; at < calls.size(); ++at) {
    CAPTURE(at);
    Forked supervisor{[&, call = calls[at]](const Forked::Tell&) {
      const auto goes_on = [call] {
        while (true) call();
      };
      for (int count = 0; count < 2; ++count) std::thread{goes_on}.detach();
      for (int starts = 0; starts < 10; ++starts) {
        auto group = start(2, [&](ry::WorkerLink&) { call(); });
        const Story story = follow_to_end(*group);
        for (int rank = 0; rank < 2; ++rank) {
          if (!story.exits.contains(rank) || story.exit_of(rank).kind != Kind::returned) return 1;
        }
      }
      return 0;
    }};
    CHECK(supervisor.status() == 0);
  }
}

#if !defined(__SANITIZE_THREAD__)  // which takes the lock of the list of libraries after a fork itself, for ever here
TEST_CASE("Processes: forks anew until no thread is inside the C library, and says so where one stays there") {
  // Its list of libraries is locked for as long as the function that looks at them goes on.
  static std::atomic<bool> is_inside;
  static pid_t first;
  static bool waits_for_ever;
  const auto look_at_libraries = [](dl_phdr_info*, std::size_t, void*) {
    is_inside = true;
    while (waits_for_ever) ::pause();
    std::vector<pid_t> zygotes;
    const auto has_next = [&] { return !zygotes.empty() && first != 0 && zygotes.front() != first; };
    while (!has_next()) {
      zygotes = children_of(::getpid());
      if (first == 0 && !zygotes.empty()) first = zygotes.front();
    }
    return 1;
  };
  const bool stays = GENERATE(false, true);
  Forked supervisor{[&](const Forked::Tell&) {
    waits_for_ever = stays;
    std::thread{[&] { ::dl_iterate_phdr(look_at_libraries, nullptr); }}.detach();
    while (!is_inside) ::usleep(1000);
    try {
      auto group = start(2, [](ry::WorkerLink&) { ry::detail::take_library_locks(); });
      const Story story = follow_to_end(*group);
      return story.exits.size() == 2 && story.exit_of(0).kind == Kind::returned && !stays ? 0 : 1;
    } catch (const ry::Error& error) {
      const std::string text = error.what();
      const bool names_all = text.find("held a lock of the C library") != std::string::npos &&
                             text.find("call fit() before they begin") != std::string::npos;
      return stays && names_all && children_of(::getpid()).empty() ? 0 : 2;
    }
  }};
  CHECK(supervisor.status() == 0);
}
#endif

TEST_CASE("Processes: as process 1 of a container hears signals, and leaves no orphan (TRAPS 24)") {
  constexpr int forbidden = 77;
  Forked outside{[](const Forked::Tell&) {
    if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return forbidden;
    Forked first{[](const Forked::Tell&) {
      if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return forbidden;
      if (::mount("proc", "/proc", "proc", 0, nullptr) != 0) return forbidden;
      auto group = start(2, [](ry::WorkerLink& link) {
        if (link.world().rank == 0) {
          leave_child(false);
          leave_child(true);
          ::kill(1, SIGTERM);
        }
        while (!link.page().stop_requested.load()) ::usleep(1000);
      });
      Story story;
      follow(*group, story, [&] { return !story.signals.empty(); });
      group->request_stop();
      follow(*group, story, [] { return false; });
      group.reset();
      const auto deadline = soon();
      while (!children_of(::getpid()).empty() && !deadline.expired()) ::usleep(1000);
      const bool is_right = ::getpid() == 1 && story.signals == std::vector{SIGTERM} && story.exits.size() == 2;
      return is_right && children_of(::getpid()).empty() ? 0 : 1;
    }};
    return first.status();
  }};
  const int status = outside.status();
  if (status == forbidden) {
    WARN("not tested: no container can be made here");
    return;
  }
  CHECK(status == 0);
}
