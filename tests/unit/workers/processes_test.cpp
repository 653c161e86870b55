// SPDX-License-Identifier: MIT
#include "railyard/workers/processes.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <array>
#include <cstddef>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/stat.h>

using namespace workers_test;
using Kind = ry::WorkerExit::Kind;

namespace {

constexpr int alone = 1;

std::unique_ptr<ry::WorkerGroup> start(int num_workers, const ry::WorkerBody& body,
                                       std::chrono::nanoseconds silence_limit = 30s) {
  return ry::Processes{}.start({.num_workers = num_workers, .silence_limit = silence_limit}, body);
}

void wait_for_ever() {
  while (true) ::pause();
}

pid_t number_in(const std::vector<std::byte>& bytes) { return std::stoi(text_of(bytes)); }

void post_pid(ry::WorkerLink& link, pid_t pid) { link.post(bytes_of(fmt::to_string(pid))); }

// The pids that the group's workers post, `count` of them.
std::vector<pid_t> hear_pids(ry::WorkerGroup& group, std::size_t count) {
  std::vector<pid_t> pids;
  const auto deadline = soon();
  while (pids.size() < count) {
    const auto event = group.next(deadline);
    if (!event) break;
    if (const auto* message = std::get_if<ry::MessageEvent>(&*event)) pids.push_back(number_in(message->bytes));
  }
  return pids;
}

// Makes pidfd_open fail in this process and its children, as it does on a kernel before 5.3.
bool forbid_pidfds() {
  std::array<sock_filter, 4> program{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 &&
         ry::detail::open_pidfd(::getpid()) < 0;
}

// A memory cgroup (version 1 or 2) with a limit, below that of this process.
class MemoryGroup {
 public:
  static std::unique_ptr<MemoryGroup> make(std::size_t limit) {
    std::ifstream cgroups{"/proc/self/cgroup"};
    for (std::string line; std::getline(cgroups, line);) {
      const auto at = line.find(":memory:");
      const bool is_first = at != std::string::npos;
      if (!is_first && !line.starts_with("0::")) continue;
      std::string path = is_first ? "/sys/fs/cgroup/memory" + line.substr(at + 8) : "/sys/fs/cgroup" + line.substr(3);
      path += fmt::format("/railyard-test-{}", ::getpid());
      if (::mkdir(path.c_str(), 0755) != 0) continue;
      auto group = std::unique_ptr<MemoryGroup>{new MemoryGroup{path}};
      if (group->write(is_first ? "memory.limit_in_bytes" : "memory.max", fmt::to_string(limit))) return group;
    }
    return nullptr;
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;
  ~MemoryGroup() {
    for (int tries = 0; tries < 1000 && ::rmdir(path_.c_str()) != 0 && errno == EBUSY; ++tries) ::usleep(1000);
  }
  void enter() const { write("cgroup.procs", fmt::to_string(::getpid())); }

 private:
  explicit MemoryGroup(std::string path) : path_(std::move(path)) {}
  bool write(const std::string& file, const std::string& text) const {
    std::ofstream stream{path_ + "/" + file};
    stream << text << std::flush;
    return stream.good();
  }
  std::string path_;
};

// A child of the worker that stays, in the worker's process group or in a session of its own.
pid_t leave_child(bool in_own_session) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (in_own_session) ::setsid();
  wait_for_ever();
  ::_exit(0);
}

}  // namespace

TEST_CASE("Processes: lets the body use captures that cannot be copied and keeps its writes to itself") {
  auto owner = std::make_shared<std::unique_ptr<int>>(std::make_unique<int>(41));
  int counter = 0;
  auto group = start(2, [&](ry::WorkerLink& link) { link.post(bytes_of(fmt::to_string(**owner + ++counter))); });
  const Story story = follow_to_end(*group);
  CHECK(story.messages.at(0) == std::vector<std::string>{"42"});
  CHECK(story.messages.at(1) == std::vector<std::string>{"42"});
  CHECK(counter == 0);
}

TEST_CASE("Processes: reports exit() of the body with its status, 0 included, and runs no handler of the parent") {
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
    for (const int signal : {SIGSEGV, SIGFPE}) ::signal(signal, SIG_DFL);  // the sanitizers have handlers
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

TEST_CASE("Processes: says that memory was short when the kernel's OOM killer has ended a worker (B17)") {
  const auto group = MemoryGroup::make(std::size_t{128} << 20U);
  if (!group) {
    WARN("no memory cgroup can be made here: not tested");
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
  CHECK(Holdings{} == before);
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
  CHECK(Holdings{} == before);
}

TEST_CASE("Processes: leaves nothing behind when the supervisor is killed by kill -9 (B3, B4)") {
  const Subreaper subreaper;
  const std::size_t shared_memory = count_entries("/dev/shm");
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
  CHECK(count_entries("/dev/shm") == shared_memory);
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
  CHECK(Holdings{} == before);
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
  CHECK(Holdings{} == before);
}

TEST_CASE("Processes: does not take its own suspension for silence of the workers") {
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
  CHECK(Holdings{} == before);
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
  CHECK(Holdings{} == before);
}

TEST_CASE("Processes: keeps Ctrl-C away from the workers and reports it to the supervisor (B1, B2)") {
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

TEST_CASE("Processes: writes what the parent had not yet flushed once") {
  auto ends = ry::detail::make_pipe(0, "test");
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
    constexpr uid_t nobody = 59'999;
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
    constexpr uid_t nobody = 59'998;
    const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
    if (::setresuid(nobody, nobody, nobody) != 0) return 3;
    ::setrlimit(RLIMIT_NPROC, &limit);
    const Holdings before;
    try {
      start(2, [](ry::WorkerLink&) {});
    } catch (const ry::Error& error) {
      return Holdings{} == before && std::string{error.what()}.find("ulimit -u") != std::string::npos ? 0 : 2;
    }
    return 1;
  }};
  CHECK(refused.status() == 0);
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

TEST_CASE("Processes: gives the body the signal mask and dispositions of a fresh process") {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGTERM, &action, &before);
  auto group = start(alone, [](ry::WorkerLink& link) {
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    link.post(bytes_of(::sigismember(&mask, SIGTERM) + ::sigismember(&mask, SIGUSR1) == 0 ? "open" : "blocked"));
    ::kill(::getpid(), SIGTERM);
    wait_for_ever();
  });
  const Story story = follow_to_end(*group);
  ::sigaction(SIGTERM, &before, nullptr);
  CHECK(story.messages.at(0) == std::vector<std::string>{"open"});
  CHECK(story.exit_of(0).code == SIGTERM);
}

TEST_CASE("Processes: goes on when the thread that started the group has ended") {
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

TEST_CASE("Processes: works on a kernel without pidfds") {
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

TEST_CASE("Processes: knows how workers end although the program ignores SIGCHLD") {
  Forked supervisor{[](const Forked::Tell&) {
    ::signal(SIGCHLD, SIG_IGN);
    auto group = start(2, [](ry::WorkerLink& link) { ::_exit(7 + link.world().rank); });
    const Story story = follow_to_end(*group);
    group.reset();
    return story.exit_of(0).code == 7 && story.exit_of(1).code == 8 && children_of(::getpid()).empty() ? 0 : 1;
  }};
  CHECK(supervisor.status() == 0);
}
