// SPDX-License-Identifier: MIT
#include "railyard/workers/processes.hpp"

#include "process_support.hpp"
#include "support/catch.hpp"

using namespace workers_test;

TEST_CASE("Processes: lets the body use captures that cannot be copied and keeps its writes to itself") {
  auto owner = std::make_shared<std::unique_ptr<int>>(std::make_unique<int>(41));
  int counter = 0;
  auto group = start(2, [&](ry::WorkerLink& link) { link.post(bytes_of(fmt::to_string(**owner + ++counter))); });
  const Story story = follow_to_end(*group);
  CHECK(story.messages.at(0) == std::vector<std::string>{"42"});
  CHECK(story.messages.at(1) == std::vector<std::string>{"42"});
  CHECK(counter == 0);
}

TEST_CASE(
    "Processes: reports exit() of the body with its status, 0 included, and runs no handler of the parent (TRAPS 21)") {
  static const SharedNumber parent_handlers;
  static const pid_t parent = ::getpid();
  std::atexit([] {
    if (::getpid() != parent) ++*parent_handlers;
  });
  auto group = start(4, [](ry::WorkerLink& link) {
    std::printf("unfinished");
    std::atexit([] { std::printf(", then a handler of the body"); });
    if (link.world().rank == 0) std::exit(0);
    if (link.world().rank == 1) std::exit(3);
    if (link.world().rank == 2) ::_exit(4);
  });
  const Story story = follow_to_end(*group);
  const std::array codes{0, 3, 4};
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(story.exit_of(rank).kind == Kind::exited);
    CHECK(story.exit_of(rank).code == codes.at(static_cast<std::size_t>(rank)));
  }
  CHECK(story.exit_of(3).kind == Kind::returned);
  CHECK(story.out.at(1) == std::vector<std::string>{"unfinished, then a handler of the body"});
  CHECK((*parent_handlers).load() == 0);
}

TEST_CASE("Processes: names the signal that ended a worker and its likely reason (B17)") {
  auto group = start(5, [](ry::WorkerLink& link) {
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    for (const int signal : {SIGSEGV, SIGFPE, SIGABRT}) ::signal(signal, SIG_DFL);  // the sanitizers have handlers
    switch (link.world().rank) {
      case 0:
        ::raise(SIGSEGV);
        break;
      case 1:
        std::abort();
      case 2:
        ::raise(SIGFPE);
        break;
      case 3:
        ::kill(::getpid(), SIGKILL);
        break;
      default:
        std::thread{[] { throw std::runtime_error{"in a thread of the user's"}; }}.join();
    }
  });
  const Story story = follow_to_end(*group);
  const std::array signals{SIGSEGV, SIGABRT, SIGFPE, SIGKILL, SIGABRT};
  const std::array reasons{"SIGSEGV): it used memory", "SIGABRT): abort()", "division by zero", "from outside",
                           "SIGABRT): abort()"};
  for (int rank = 0; rank < 5; ++rank) {
    CHECK(story.exit_of(rank).kind == Kind::signalled);
    CHECK(story.exit_of(rank).code == signals.at(static_cast<std::size_t>(rank)));
    CHECK_THAT(story.exit_of(rank).message, ContainsSubstring(reasons.at(static_cast<std::size_t>(rank))));
    CHECK_FALSE(story.exit_of(rank).is_consequence);
  }
  CHECK_THAT(story.err.at(4).front(), ContainsSubstring("terminate called"));
}

TEST_CASE("Processes: delivers everything that was posted and printed before a kill -9") {
  auto group = start(alone, [](ry::WorkerLink& link) {
    for (int at = 0; at < 1000; ++at) {
      link.post(bytes_of(fmt::to_string(at)));
      std::printf("line %d\n", at);
    }
    ::kill(::getpid(), SIGKILL);
  });
  const Story story = follow_to_end(*group);
  CHECK(story.messages.at(0).size() == 1000);
  CHECK(story.out.at(0).size() == 1000);
  CHECK(story.out.at(0).back() == "line 999");
  CHECK(story.late.empty());
  CHECK(story.exit_of(0).code == SIGKILL);
}

TEST_CASE("Processes: hands on whole lines of both streams, the unfinished last one and long ones in pieces") {
  auto group = start(2, [](ry::WorkerLink& link) {
    const std::string mark(3000, link.world().rank == 0 ? 'a' : 'b');
    for (int at = 0; at < 300; ++at) {
      std::printf("%s", mark.c_str());
      std::fflush(stdout);
      std::printf("%s\n", mark.c_str());
      fmt::print(stderr, "{}\n", mark);
    }
    std::cout << "\n"
              << std::string(100'000, 'l') << "\n"
              << "end";
    std::cerr << "last words";
  });
  const Story story = follow_to_end(*group);
  for (int rank = 0; rank < 2; ++rank) {
    const char mark = rank == 0 ? 'a' : 'b';
    const auto& out = story.out.at(rank);
    const auto& err = story.err.at(rank);
    REQUIRE(out.size() == 304);
    CHECK(std::count(out.begin(), out.end(), std::string(6000, mark)) == 300);
    CHECK(out[300].empty());
    CHECK(out[301].size() == 65'536);
    CHECK(out[302].size() == 100'000 - 65'536);
    CHECK(out[303] == "end");
    REQUIRE(err.size() == 301);
    CHECK(err.back() == "last words");
  }
  CHECK(story.late.empty());
}

TEST_CASE("Processes: gives workers an empty standard input and hands a line on before the body goes on") {
  auto group = start(alone, [](ry::WorkerLink& link) {
    std::printf("at once\n");
    const int letter = std::getchar();
    (void)link.store().get("never", ry::Deadline::never());
    std::printf("%d\n", letter);
  });
  Story story;
  follow(*group, story, [&] { return !story.out[0].empty(); });
  CHECK(story.out[0] == std::vector<std::string>{"at once"});
  CHECK(story.exits.empty());
}

TEST_CASE("Processes: keeps Ctrl-C away from the workers and reports it to the supervisor (B1, B2, TRAPS 24)") {
  const Subreaper subreaper;
  Forked supervisor{[](const Forked::Tell& tell) {
    ::setpgid(0, 0);
    auto group = start(2, [](ry::WorkerLink& link) {
      link.post(bytes_of("here"));
      while (!link.page().stop_requested.load()) ::usleep(1000);
    });
    Story story;
    follow(*group, story, [&] { return story.messages.size() == 2; });
    tell(1);
    follow(*group, story, [&] { return !story.signals.empty(); });
    group->request_stop();
    follow(*group, story, [] { return false; });
    const bool is_right = story.signals == std::vector{SIGINT} && story.exit_of(0).kind == Kind::returned &&
                          story.exit_of(1).kind == Kind::returned;
    return is_right ? 0 : 1;
  }};
  REQUIRE(supervisor.hear() == 1);
  ::kill(-supervisor.pid(), SIGINT);  // as a terminal does
  CHECK(supervisor.status() == 0);
  CHECK(subreaper.all_end());
}

TEST_CASE("Processes: works in a program that has closed its standard streams") {
  Forked supervisor{[](const Forked::Tell&) {
    for (const int fd : {0, 1, 2}) ::close(fd);
    auto group = start(2, [](ry::WorkerLink& link) {
      std::printf("out %d\n", link.world().rank);
      std::fprintf(stderr, "err %d\n", link.world().rank);
      link.post(bytes_of("m"));
    });
    const Story story = follow_to_end(*group);
    const bool is_right = story.out.at(1) == std::vector<std::string>{"out 1"} &&
                          story.err.at(0) == std::vector<std::string>{"err 0"} && story.messages.size() == 2 &&
                          story.exit_of(1).kind == Kind::returned;
    return is_right ? 0 : 1;
  }};
  CHECK(supervisor.status() == 0);
}

TEST_CASE("Processes: starts in a program with threads, one of which is reading standard input (C1)") {
  Forked supervisor{[](const Forked::Tell&) {
    auto ends = ry::detail::make_pipe(0, "test");
    ::dup2(ends.first.get(), 0);
    std::atomic<bool> is_reading{false};
    std::thread reader{[&] {
      is_reading.store(true);
      (void)std::getchar();
    }};
    while (!is_reading.load() || ::ftrylockfile(stdin) == 0) {
      if (is_reading.load()) ::funlockfile(stdin);
      std::this_thread::yield();
    }
    auto group =
        start(2, [](ry::WorkerLink& link) { std::thread{[&] { link.post(bytes_of("from a thread")); }}.join(); });
    const Story story = follow_to_end(*group);
    group.reset();  // its processes hold the pipe as well
    ends.second.reset();
    reader.join();
    return story.messages.at(0).size() + story.messages.at(1).size() == 2 ? 0 : 1;
  }};
  CHECK(supervisor.status() == 0);
}

TEST_CASE("Processes: writes what the parent had not yet flushed once (TRAPS 21)") {
  auto ends = ry::detail::make_pipe(0, "test");
  ry::detail::flush_streams(false);  // what the test program itself has not written yet is not meant
  Forked supervisor{[&](const Forked::Tell&) {
    ::dup2(ends.second.get(), 1);
    std::setvbuf(stdout, nullptr, _IOFBF, 4096);
    std::printf("once\n");
    auto group = start(2, [](ry::WorkerLink&) { std::printf("worker\n"); });
    follow_to_end(*group);
    std::fflush(stdout);
    return 0;
  }};
  CHECK(supervisor.status() == 0);
  ends.second.reset();
  std::array<char, 256> text{};
  const auto size = ::read(ends.first.get(), text.data(), text.size());
  CHECK(std::string{text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))} == "once\n");
}

TEST_CASE("Processes: closes in the workers what is the supervisor's") {
  auto group = start(3, [](ry::WorkerLink& link) {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
      const auto target = std::filesystem::read_symlink(entry.path()).string();
      if (std::stoi(entry.path().filename()) > 2 && target.starts_with("socket:")) ++count;
      if (std::stoi(entry.path().filename()) > 2 && target.starts_with("pipe:")) ++count;
      if (target.find("signalfd") != std::string::npos || target.find("pidfd") != std::string::npos) ++count;
    }
    link.post(bytes_of(fmt::to_string(count)));
    while (!link.page().stop_requested.load()) ::usleep(1000);  // until the supervisor has counted as well
  });
  const std::size_t inherited = [] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(entry.path(), error).string();
      const bool is_other = target.starts_with("socket:") || target.starts_with("pipe:");
      if (std::stoi(entry.path().filename()) > 2 && is_other) ++count;
    }
    return count;
  }();
  group->request_stop();
  const Story story = follow_to_end(*group);
  // The supervisor has a socket, a pair for signals, and two pipes per worker more than the workers may have.
  for (int rank = 0; rank < 3; ++rank) CHECK(std::stoul(story.messages.at(rank).front()) == inherited - 9);
}

TEST_CASE("Processes: a signal to all processes of a job ends no worker, but what a worker executes (FAULTS B7)") {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ::_exit(9); };
  ::sigaction(SIGTERM, &action, &before);
  auto group = start(alone, [](ry::WorkerLink& link) {
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    link.post(bytes_of(::sigismember(&mask, SIGTERM) + ::sigismember(&mask, SIGUSR1) == 0 ? "open" : "blocked"));
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::kill(::getpid(), signal);
    for (const char* signal : {"INT", "TERM", "HUP", "USR1"}) {
      const int status = std::system((std::string{"kill -"} + signal + " $$").c_str());
      link.post(bytes_of(WIFSIGNALED(status) ? "dies" : "lives"));
    }
  });
  const Story story = follow_to_end(*group);
  ::sigaction(SIGTERM, &before, nullptr);
  CHECK(story.messages.at(0) == std::vector<std::string>{"open", "dies", "dies", "dies", "dies"});
  CHECK(story.exit_of(0).kind == Kind::returned);
}

TEST_CASE("Processes: goes on when the thread that started the group has ended (TRAPS 20)") {
  std::unique_ptr<ry::WorkerGroup> group;
  std::thread{[&] {
    group = start(2, [](ry::WorkerLink& link) {
      while (!link.page().stop_requested.load()) ::usleep(1000);
      link.post(bytes_of("asked to stop"));
    });
  }}.join();
  CHECK_FALSE(group->next(ry::Deadline::after(50ms)));
  group->request_stop();
  const Story story = follow_to_end(*group);
  CHECK(story.messages.size() == 2);
  CHECK(story.exit_of(1).kind == Kind::returned);
}

TEST_CASE("Processes: knows how workers end although the program ignores SIGCHLD (TRAPS 24)") {
  Forked supervisor{[](const Forked::Tell&) {
    ::signal(SIGCHLD, SIG_IGN);
    auto group = start(2, [](ry::WorkerLink& link) { ::_exit(7 + link.world().rank); });
    const Story story = follow_to_end(*group);
    group.reset();
    return story.exit_of(0).code == 7 && story.exit_of(1).code == 8 && children_of(::getpid()).empty() ? 0 : 1;
  }};
  CHECK(supervisor.status() == 0);
}

TEST_CASE("Processes: leaves the program's own children and its handler of SIGCHLD to it (TRAPS 24)") {
  Forked supervisor{[](const Forked::Tell&) {
    struct sigaction own {};
    own.sa_handler = [](int) {};
    ::sigaction(SIGCHLD, &own, nullptr);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(5);
    auto group = start(2, [](ry::WorkerLink&) {});
    follow_to_end(*group);
    group.reset();
    struct sigaction now {};
    ::sigaction(SIGCHLD, nullptr, &now);
    int status = 0;
    const bool is_left = ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5;
    return is_left && now.sa_handler == own.sa_handler ? 0 : 1;
  }};
  CHECK(supervisor.status() == 0);
}
