// SPDX-License-Identifier: MIT
// The laws of a group whose workers several processes make: this process leads, forked ones follow.
#include "railyard/workers/launched.hpp"

#include "support.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

using namespace workers_test;
using Catch::ContainsSubstring;

namespace {

// Forks followers that make workers as this process orders, and end when it tells them to.
class LaunchedGroups {
 public:
  LaunchedGroups(int num_processes, int workers_per_process, const ry::WorkerBody& body, std::vector<bool> has_tls = {})
      : num_processes_(num_processes), workers_(workers_per_process), body_(body), has_tls_(std::move(has_tls)) {
    has_tls_.resize(static_cast<std::size_t>(num_processes));
    const auto secret = scratch_.path() / "secret";
    std::ofstream{secret} << "0123456789abcdef0123456789abcdef\n";
    std::filesystem::permissions(secret, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    const ry::detail::Socket free = ry::detail::listen_at("127.0.0.1", 0);
    address_ = fmt::format("127.0.0.1:{}", ry::detail::SocketAddress::of_self(free.fd()).port());
    for (int process = 1; process < num_processes; ++process) followers_.push_back(fork_follower(process));
  }
  LaunchedGroups(const LaunchedGroups&) = delete;
  LaunchedGroups& operator=(const LaunchedGroups&) = delete;
  ~LaunchedGroups() {
    for (const pid_t pid : followers_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  [[nodiscard]] ry::JoinPlan plan(int process) const {
    return {.launch = {.process = process,
                       .num_processes = num_processes_,
                       .leader = address_,
                       .job = "test",
                       .secret_file = scratch_.path() / "secret",
                       .tls = has_tls_.at(static_cast<std::size_t>(process))},
            .num_workers = workers_,
            .timeout = 30s,
            .silence_limit = 20s};
  }
  [[nodiscard]] std::unique_ptr<ry::WorkerGroup> start(ry::Launched& leader, std::string briefing = {}) const {
    leader.join(plan(0));
    leader.tell("begin");
    return leader.start({.num_workers = leader.num_workers(), .briefing = std::move(briefing)}, body_);
  }
  // What the follower ends with once it is told the end: 0 if it has heard both texts.
  [[nodiscard]] int end_of(int process) {
    int status = -1;
    ::waitpid(followers_.at(static_cast<std::size_t>(process - 1)), &status, 0);
    followers_.at(static_cast<std::size_t>(process - 1)) = ::getpid() + 1'000'000'000;  // nobody
    return status;
  }
  [[nodiscard]] const ry::WorkerBody& body() const noexcept { return body_; }
  [[nodiscard]] pid_t pid(int process) const { return followers_.at(static_cast<std::size_t>(process - 1)); }

 private:
  [[nodiscard]] pid_t fork_follower(int process) const {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    try {
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
      ry::Launched follower;
      follower.join(plan(process));
      const bool has_begun = !follower.leads() && follower.hear() == "begin";
      ::_exit(has_begun && follower.follow(body_) == "end" ? 0 : 1);
    } catch (const std::exception& error) {
      fmt::print(stderr, "follower {}: {}\n", process, error.what());
      ::_exit(2);
    }
  }

  TemporaryFolder scratch_{};
  int num_processes_;
  int workers_;
  ry::WorkerBody body_;
  std::vector<bool> has_tls_;  // by process
  std::string address_{};
  std::vector<pid_t> followers_{};
};

// Stands for the process that was chosen to lead after process 0: lets the others in, and says nothing.
class ChosenLeader {
 public:
  ChosenLeader() {
    const auto owner = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
    std::ofstream{secret_file()} << secret << "\n";
    std::filesystem::permissions(secret_file(), owner);
    std::filesystem::permissions(scratch_.path(), std::filesystem::perms::owner_all);
  }

  [[nodiscard]] ry::detail::Listener& listener() noexcept { return listener_; }
  [[nodiscard]] ry::LeaderPlace place() const {
    return {.process = 2, .host = "127.0.0.1", .port = listener_.port(), .generation = 5};
  }
  // Of one that finds nobody else where the processes meet.
  [[nodiscard]] ry::JoinPlan plan(int process, bool is_in_folder) const {
    const ry::detail::Socket free = ry::detail::listen_at("127.0.0.1", 0);
    const int port = ry::detail::SocketAddress::of_self(free.fd()).port();
    return {.launch = {.process = process,
                       .num_processes = 3,
                       .leader = is_in_folder ? std::string{} : fmt::format("127.0.0.1:{}", port),
                       .job = "test",
                       .rendezvous = is_in_folder ? scratch_.path() : std::filesystem::path{},
                       .secret_file = secret_file()},
            .num_workers = 3,
            .is_elastic = true,
            .timeout = 10s};
  }

 private:
  static constexpr std::string_view secret = "0123456789abcdef0123456789abcdef";
  [[nodiscard]] std::filesystem::path secret_file() const { return scratch_.path() / "secret"; }

  TemporaryFolder scratch_{};
  ry::detail::Listener listener_{{.host = "127.0.0.1", .job = "test", .generation = 5},
                                 ry::detail::Hmac{ry::detail::text_bytes(secret)}};
};

}  // namespace

TEST_CASE("Launched: gives every worker its rank, and one exit each, whichever process makes it") {
  LaunchedGroups launch{
      3, 2, [](ry::WorkerLink& link) {
        const ry::World& world = link.world();
        link.store().set(fmt::format("rank {}", world.rank), world.host);
        for (int rank = 0; rank < world.size; ++rank) {
          if (!link.store().get(fmt::format("rank {}", rank), soon())) throw ry::Error{"a rank is missing"};
        }
        link.post(bytes_of(fmt::format("{}/{} {}/{} {}/{} {}", world.rank, world.size, world.local_rank,
                                       world.local_size, world.node, world.num_nodes, link.briefing())));
        fmt::print("line of {}\n", world.rank);
      }};
  ry::Launched leader;
  {
    auto group = launch.start(leader, "brief");
    const Story story = follow_to_end(*group);
    REQUIRE(story.exits.size() == 6);
    CHECK(story.late.empty());
    for (int rank = 0; rank < 6; ++rank) {
      CHECK(story.exit_of(rank).kind == Kind::returned);
      CHECK(story.messages.at(rank) == std::vector{fmt::format("{0}/6 {0}/6 0/1 brief", rank)});
      CHECK(story.out.at(rank) == std::vector{fmt::format("line of {}", rank)});
    }
  }
  leader.tell("end");
  for (const int process : {1, 2}) CHECK(launch.end_of(process) == 0);
}

TEST_CASE("Launched: pages, flags, stacks and reasons reach the workers of other processes") {
  LaunchedGroups launch{2, 1, [](ry::WorkerLink& link) {
                          link.page().steps.store(7 + static_cast<std::uint64_t>(link.world().rank));
                          std::atomic<bool> is_aborted{false};
                          link.on_abort([&](std::string_view reason) {
                            link.post(bytes_of(std::string{reason}));
                            is_aborted.store(true);
                          });
                          while (!link.page().leave_requested.load()) std::this_thread::sleep_for(1ms);
                          link.post(bytes_of("leaves"));
                          while (!is_aborted.load()) std::this_thread::sleep_for(1ms);
                          link.on_abort({});
                        }};
  ry::Launched leader;
  auto group = launch.start(leader);
  const auto deadline = soon();
  Story story;
  while (group->page(1).steps.load() != 8 && !deadline.expired()) {
    if (auto event = group->next(ry::Deadline::after(10ms))) story.add(std::move(*event));
  }
  CHECK(group->page(0).steps.load() == 7);
  CHECK(group->page(1).steps.load() == 8);
  const auto stacks = group->stacks(soon());
  REQUIRE(stacks.size() == 2);
  for (const std::string& stack : stacks) CHECK_FALSE(stack.empty());
  group->request_leave();
  follow(*group, story, [&] { return story.messages[0].size() == 1 && story.messages[1].size() == 1; });
  group->abort("that is why");
  follow(*group, story, [&] { return story.exits.size() == 2; });
  for (const int rank : {0, 1}) CHECK(story.messages[rank] == std::vector<std::string>{"leaves", "that is why"});
}

TEST_CASE("Launched: the snapshots of other processes are read, held and given back") {
  LaunchedGroups launch{2, 1, [](ry::WorkerLink& link) {
                          for (int i = 0; i < 5; ++i) {  // more than there are slots: waits until they are given back
                            const auto snapshot = link.take_snapshot(100'000, ry::SnapshotKind::checkpoint);
                            std::fill(snapshot.bytes.begin(), snapshot.bytes.end(),
                                      std::byte(10 * link.world().rank + i));
                            link.post(bytes_of(fmt::to_string(snapshot.slot)));
                          }
                        }};
  ry::Launched leader;
  auto group = launch.start(leader);
  std::vector<int> seen(2);
  int num_wrong = 0;
  Story story;
  follow(*group, story, [&] {
    for (auto& [rank, messages] : story.messages) {
      while (!messages.empty()) {
        const int slot = std::stoi(messages.front());
        messages.erase(messages.begin());
        group->hold_snapshot(rank, slot);
        for (const std::byte byte : group->snapshot(rank, slot, 0, 100'000)) {
          num_wrong += byte != std::byte(10 * rank + seen[static_cast<std::size_t>(rank)]) ? 1 : 0;
        }
        ++seen[static_cast<std::size_t>(rank)];
        group->release_snapshot(rank, slot);
      }
    }
    return story.exits.size() == 2;
  });
  CHECK(seen == std::vector{5, 5});
  CHECK(num_wrong == 0);
  for (const int rank : {0, 1}) CHECK(story.exit_of(rank).kind == Kind::returned);
}

TEST_CASE("Launched: starts workers again in all processes, with another briefing and an empty store") {
  LaunchedGroups launch{2, 2, [](ry::WorkerLink& link) {
                          link.store().set(fmt::format("rank {}", link.world().rank), link.briefing());
                          const auto other = link.store().get(fmt::format("rank {}", 3 - link.world().rank), soon());
                          link.post(bytes_of(other.value_or("nothing")));
                        }};
  ry::Launched leader;
  auto group = launch.start(leader, "first");
  for (const std::string briefing : {"first", "second", "third"}) {
    if (briefing != "first") group->restart(4, briefing);
    const Story story = follow_to_end(*group);
    REQUIRE(story.exits.size() == 4);
    for (int rank = 0; rank < 4; ++rank) CHECK(story.messages.at(rank) == std::vector{briefing});
  }
  CHECK_THROWS_WITH(group->restart(5, ""), ContainsSubstring("4 workers together, and 5 were asked for"));
}

TEST_CASE("Launched: starts again with fewer workers, and without a process that is lost") {
  LaunchedGroups launch{3, 2, [](ry::WorkerLink& link) {
                          const ry::World& world = link.world();
                          link.store().set(fmt::format("rank {}", world.rank), "here");
                          for (int rank = 0; rank < world.size; ++rank) {
                            if (!link.store().get(fmt::format("rank {}", rank), soon())) throw ry::Error{"missing"};
                          }
                          link.post(bytes_of(fmt::format("{} of {}", world.local_rank, world.local_size)));
                          if (link.briefing() == "first") {
                            for (;;) std::this_thread::sleep_for(1ms);
                          }
                        }};
  ry::Launched leader;
  auto group = launch.start(leader, "first");
  CHECK(leader.room() == 6);
  Story story;
  follow(*group, story, [&] { return story.messages.size() == 6; });
  ::kill(launch.pid(1), SIGKILL);
  group->kill();
  follow(*group, story, [&] { return story.exits.size() == 6; });
  CHECK_THAT(group->lost_hosts(), ContainsSubstring("process 1 "));
  CHECK(leader.room() == 4);
  for (const int num_workers : {4, 3, 1}) {
    group->restart(num_workers, "next");
    const Story next = follow_to_end(*group);
    REQUIRE(next.exits.size() == static_cast<std::size_t>(num_workers));
    CHECK(group->lost_hosts() == "");
    for (int rank = 0; rank < num_workers; ++rank) {
      CHECK(next.messages.at(rank) == std::vector{fmt::format("{} of {}", rank, num_workers)});
    }
  }
  CHECK_THROWS_AS(group->restart(5, ""), ry::HostLostError);
}

TEST_CASE(
    "Launched: where a process is lost in the first start, another one with those that are left makes its workers") {
  LaunchedGroups launch{3, 2, [](ry::WorkerLink& link) {
                          link.post(bytes_of(std::string{link.briefing()}));
                          while (link.briefing() == "first") std::this_thread::sleep_for(1ms);
                        }};
  ry::Launched leader;
  leader.join(launch.plan(0));
  leader.tell("begin");
  ::kill(launch.pid(1), SIGKILL);
  const auto start = [&](int num_workers, std::string briefing) {
    return leader.start({.num_workers = num_workers, .briefing = std::move(briefing)}, launch.body());
  };
  CHECK_THROWS_AS(start(6, "first"), ry::HostLostError);
  REQUIRE(leader.room() == 4);
  auto group = start(4, "second");
  const Story story = follow_to_end(*group);
  REQUIRE(story.exits.size() == 4);
  for (int rank = 0; rank < 4; ++rank) CHECK(story.messages.at(rank) == std::vector<std::string>{"second"});
  CHECK(story.broken.empty());
}

TEST_CASE("Launched: processes that have no part any more end their workers, and what these say is not heard") {
  LaunchedGroups launch{3, 1, [](ry::WorkerLink& link) {
                          do {
                            link.post(bytes_of(std::string{link.briefing()}));
                            std::this_thread::sleep_for(1ms);
                          } while (link.briefing() == "first");
                        }};
  ry::Launched leader;
  auto group = launch.start(leader, "first");
  Story story;
  follow(*group, story, [&] { return story.messages.size() == 3; });
  for (const int num_workers : {1, 3}) {
    group->restart(num_workers, "next");
    const Story next = follow_to_end(*group);
    REQUIRE(next.exits.size() == static_cast<std::size_t>(num_workers));
    for (int rank = 0; rank < num_workers; ++rank) CHECK(next.messages.at(rank) == std::vector<std::string>{"next"});
    CHECK(next.broken.empty());
  }
}

TEST_CASE("Launched: fewer than half of the processes do not go on") {
  LaunchedGroups launch{4, 1, [](ry::WorkerLink& link) {
                          while (!link.page().leave_requested.load()) std::this_thread::sleep_for(1ms);
                        }};
  ry::Launched leader;
  auto group = launch.start(leader);
  const auto lose = [&](std::initializer_list<int> processes, std::size_t num_workers) {
    for (const int process : processes) ::kill(launch.pid(process), SIGKILL);
    group->kill();
    Story story;
    follow(*group, story, [&] { return story.exits.size() == num_workers; });
  };
  lose({3}, 4);
  CHECK(leader.room() == 3);
  group->restart(3, "");
  lose({1, 2}, 3);
  CHECK_THROWS_WITH(leader.room(), ContainsSubstring("1 of 3 processes is left"));
}

TEST_CASE("Launched: deals workers out evenly") {
  using ry::detail::deal, ry::detail::share_of;
  CHECK(deal({4, 4, 4}, 12) == std::vector{4, 4, 4});
  CHECK(deal({4, 0, 4}, 7) == std::vector{4, 0, 3});
  CHECK(deal({2, 2, 2}, 3) == std::vector{1, 1, 1});
  CHECK(deal({1, 1, 1}, 1) == std::vector{1, 0, 0});
  for (int process = 0; process < 3; ++process) CHECK(share_of(7, process, 3) == (process == 0 ? 3 : 2));
}

TEST_CASE("Launched: the loss of a process is the loss of its workers, and only its engine brings it back") {
  LaunchedGroups launch{3, 2, [](ry::WorkerLink& link) {
                          link.post(bytes_of("here"));
                          while (true) ::pause();
                        }};
  ry::Launched leader;
  auto group = launch.start(leader);
  Story story;
  follow(*group, story, [&] { return story.messages.size() == 6; });
  ::kill(launch.pid(1), SIGKILL);
  follow(*group, story, [&] { return story.exits.size() == 2; });
  for (const int rank : {2, 3}) {
    CHECK(story.exit_of(rank).kind == Kind::lost);
    CHECK_THAT(story.exit_of(rank).message, ContainsSubstring("process 1 (127.0.0.1:"));
  }
  group->kill();
  follow(*group, story, [&] { return story.exits.size() == 6; });
  CHECK_THROWS_AS(group->restart(6, ""), ry::HostLostError);
}

TEST_CASE("Launched: a follower without a leader ends its workers and says so") {
  const TemporaryFolder scratch;
  LaunchedGroups launch{2, 1, [&](ry::WorkerLink& link) {
                          std::ofstream{scratch.path() / fmt::to_string(link.world().rank)} << ::getpid() << std::flush;
                          link.post(bytes_of("here"));
                          while (true) ::pause();
                        }};
  {
    ry::Launched leader;
    auto group = launch.start(leader);
    Story story;
    follow(*group, story, [&] { return story.messages.size() == 2; });
    group.reset();
  }
  CHECK(WEXITSTATUS(launch.end_of(1)) == 2);
  pid_t worker = 0;
  std::ifstream{scratch.path() / "1"} >> worker;
  REQUIRE(worker > 0);
  CHECK(::kill(worker, 0) != 0);
}

TEST_CASE("Launched: who comes back before another is chosen to lead follows that one once it is") {
  const int process = GENERATE(0, 1);
  const bool is_in_folder = GENERATE(true, false);  // that the processes meet
  ChosenLeader chosen;
  ry::JoinPlan plan = chosen.plan(process, is_in_folder);
  int num_asked = 0;
  plan.find_chosen = [&] {
    const ry::LeaderPlace of_no_use{.process = 2, .generation = 5};
    ++num_asked;
    return num_asked == 1 ? std::nullopt : std::optional{num_asked == 2 ? of_no_use : chosen.place()};
  };
  ry::Launched launched;
  launched.join(plan);
  CHECK_FALSE(launched.leads());
  CHECK(num_asked == 3);
  const auto agent = chosen.listener().take_agent(soon());
  REQUIRE(agent);
  CHECK(agent->hello.process == process);
}

TEST_CASE("Launched: one that was elected and says nothing is lost as well, but not whoever lets come back") {
  ChosenLeader chosen;
  ry::JoinPlan plan = chosen.plan(1, false);
  plan.timeout = plan.silence_limit = 300ms;
  plan.find_chosen = [&] { return std::optional{chosen.place()}; };
  ry::Launched launched;
  launched.join(plan);
  REQUIRE(launched.try_to_follow(chosen.place(), soon()));
  CHECK_THROWS_WITH(launched.hear(), ContainsSubstring("which leads the run, has said nothing for 300 ms"));
  CHECK_THROWS_AS(launched.hear(), ry::HostLostError);
}

TEST_CASE("Launched: with TLS workers find each other, give up snapshots, and start again") {
  constexpr std::size_t size = 3'000'000;
  LaunchedGroups launch{3,
                        2,
                        [](ry::WorkerLink& link) {
                          const ry::World& world = link.world();
                          link.store().set(fmt::format("rank {}", world.rank), link.briefing());
                          for (int rank = 0; rank < world.size; ++rank) {
                            const auto other = link.store().get(fmt::format("rank {}", rank), soon());
                            if (other != link.briefing()) throw ry::Error{"a rank is missing"};
                          }
                          const auto snapshot = link.take_snapshot(size, ry::SnapshotKind::checkpoint);
                          std::fill(snapshot.bytes.begin(), snapshot.bytes.end(), std::byte(world.rank + 1));
                          link.post(bytes_of(fmt::to_string(snapshot.slot)));
                        },
                        {true, true, true}};
  ry::Launched leader;
  {
    auto group = launch.start(leader, "first");
    for (const std::string briefing : {"first", "second"}) {
      if (briefing == "second") group->restart(6, briefing);
      Story story;
      std::vector<std::size_t> num_right(6);
      follow(*group, story, [&] {
        for (auto& [rank, messages] : story.messages) {
          while (!messages.empty()) {
            const int slot = std::stoi(messages.front());
            messages.erase(messages.begin());
            group->hold_snapshot(rank, slot);
            const auto bytes = group->snapshot(rank, slot, 0, size);
            num_right[static_cast<std::size_t>(rank)] =
                static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), std::byte(rank + 1)));
            group->release_snapshot(rank, slot);
          }
        }
        return story.exits.size() == 6;
      });
      for (int rank = 0; rank < 6; ++rank) CHECK(story.exit_of(rank).kind == Kind::returned);
      CHECK(num_right == std::vector<std::size_t>(6, size));
    }
  }
  leader.tell("end");
  for (const int process : {1, 2}) CHECK(launch.end_of(process) == 0);
}

TEST_CASE("Launched: where processes differ in TLS, both ends say so at once") {
  for (const bool leader_has_tls : {false, true}) {
    LaunchedGroups launch{2, 1, [](ry::WorkerLink&) {}, {leader_has_tls, !leader_has_tls}};
    ry::Launched leader;
    CHECK_THROWS_WITH(leader.join(launch.plan(0)),
                      ContainsSubstring("process 1 (127.0.0.1:") && ContainsSubstring("ScalingConfig::launch.tls"));
    CHECK(WEXITSTATUS(launch.end_of(1)) == 2);  // and not at its deadline, when nobody is there any more
  }
}

TEST_CASE("Launched: a process that is alone in a job says so, and why; one that nobody has started says nothing") {
  std::vector<std::string> lines;
  const auto join_alone = [&](const ry::LaunchConfig& launch) {
    lines.clear();
    ry::Launched{}.join({.launch = launch, .say = [&](const std::string& line) { lines.push_back(line); }});
  };
  join_alone({});
  CHECK(lines.empty());
  join_alone({.process = 0, .num_processes = 1});
  CHECK(lines == std::vector<std::string>{"ScalingConfig::launch: process 0 of 1"});
  ::setenv("SLURM_JOB_ID", "17", 1);
  join_alone({});
  ::unsetenv("SLURM_JOB_ID");
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines.front(), ContainsSubstring("SLURM_JOB_ID is 17") && ContainsSubstring("start the program by srun"));
}

TEST_CASE("Launched: who finds nobody at the leader's address says so while it waits") {
  ChosenLeader chosen;
  ry::JoinPlan plan = chosen.plan(1, false);
  plan.is_elastic = false;
  plan.timeout = 7s;  // who waits says so every 5 s
  std::vector<std::string> lines;
  plan.say = [&](const std::string& line) { lines.push_back(line); };
  ry::Launched launched;
  CHECK_THROWS_WITH(launched.join(plan), ContainsSubstring("process 1 of 3") && ContainsSubstring("does not reach") &&
                                             ContainsSubstring("ScalingConfig::launch.leader"));
  REQUIRE_FALSE(lines.empty());
  CHECK_THAT(lines.front(), ContainsSubstring("process 1 of 3") && ContainsSubstring("waits for process 0") &&
                                ContainsSubstring(plan.launch.leader.substr(plan.launch.leader.find(':') + 1)) &&
                                ContainsSubstring("of 7 s"));
}

// A network of its own, in which the test is free to make interfaces.
TEST_CASE("Launched: where a network is named, process 0 listens at its address there alone") {
  ChosenLeader chosen;
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr int is_forbidden = 77;
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(is_forbidden);
    for (const char* command :
         {"ip link set lo up 2>/dev/null",
          "ip link add one type veth peer name other && ip link set other up && ip link set one up",
          "ip addr add 10.1.0.7/16 dev one && ip addr add 10.2.0.7/16 dev other"}) {
      if (std::system(command) != 0) ::_exit(is_forbidden);
    }
    ry::JoinPlan plan = chosen.plan(0, false);
    plan.is_elastic = false;
    plan.launch.leader = "10.1.0.7:29500";
    plan.launch.network = "one";
    std::thread leader{[&] {
      try {
        ry::Launched{}.join(plan);
      } catch (const std::exception&) {  // nobody comes
      }
    }};
    std::string why;
    const auto until = soon();
    while (!ry::detail::try_connect("10.1.0.7", 29'500, until, why).is_open()) {
      if (until.expired()) ::_exit(1);
      std::this_thread::sleep_for(1ms);
    }
    for (const char* host : {"127.0.0.1", "10.2.0.7"}) {
      if (ry::detail::try_connect(host, 29'500, until, why).is_open()) ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) return;  // this system lets nobody make networks
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("Launched: RAILYARD_TLS says whether there is TLS where the options do not") {
  const auto with = [](std::string value) {
    return [value = std::move(value)](const std::string& name) {
      return name == "RAILYARD_TLS" && !value.empty() ? std::optional{value} : std::nullopt;
    };
  };
  CHECK_FALSE(ry::detail::wants_tls({}, with("")));
  CHECK_FALSE(ry::detail::wants_tls({}, with("0")));
  CHECK(ry::detail::wants_tls({}, with("1")));
  CHECK(ry::detail::wants_tls({.tls = true}, with("0")));
  CHECK_FALSE(ry::detail::wants_tls({.tls = false}, with("1")));
  CHECK_THROWS_WITH(ry::detail::wants_tls({}, with("yes")), ContainsSubstring("RAILYARD_TLS is \"yes\""));
}

TEST_CASE("Launched: refuses a secret that others may read, or that is too short") {
  const TemporaryFolder scratch;
  const auto file = scratch.path() / "secret";
  const auto nothing = [](const std::string&) { return std::optional<std::string>{}; };
  std::ofstream{file} << "0123456789abcdef0123456789abcdef\n";
  std::filesystem::permissions(file, std::filesystem::perms{0640});
  CHECK_THROWS_WITH(ry::detail::find_secret({.secret_file = file}, nothing), ContainsSubstring("chmod 600"));
  std::filesystem::permissions(file, std::filesystem::perms{0600});
  CHECK(ry::detail::find_secret({.secret_file = file}, nothing) == "0123456789abcdef0123456789abcdef");
  std::ofstream{file} << "short\n";
  CHECK_THROWS_WITH(ry::detail::find_secret({.secret_file = file}, nothing), ContainsSubstring("needs at least 16"));
  CHECK_THROWS_WITH(ry::detail::find_secret({.secret_file = scratch.path() / "none"}, nothing),
                    ContainsSubstring("cannot be read"));
  CHECK(ry::detail::find_secret({}, nothing) == std::nullopt);
}
