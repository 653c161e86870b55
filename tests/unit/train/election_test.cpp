// SPDX-License-Identifier: MIT
#include "railyard/train/detail/election.hpp"

#include "support/catch.hpp"
#include "support/sanitizers.hpp"
#include "unit/train/scratch.hpp"
#include "unit/workers/support.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/train/detail/inheritance.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using namespace std::chrono_literals;
using ry::detail::LeaseId;

namespace {

constexpr ry::detail::LeaseTimes hasty{.beat = 50ms, .patience = 200ms, .lock = 20ms};
// In which a silence is found out several times over.
constexpr auto long_enough = 3s;

// Stands for the other processes: remembers where it was to follow, and takes whoever listens there.
struct Others {
  static constexpr std::string_view name = "Others";
  static constexpr ry::Reach reach = ry::Reach::network;
  static constexpr bool copies_function = false;

  std::unique_ptr<ry::WorkerGroup> start(const ry::GroupPlan& /*plan*/, const ry::WorkerBody& /*body*/) { return {}; }
  void join(const ry::JoinPlan& /*plan*/) {}
  bool leads() const { return false; }
  int num_processes() const { return 3; }
  int num_workers() const { return 3; }
  int room() { return 2; }
  void tell(std::string_view /*text*/) {}
  void note(std::string_view /*text*/) {}
  std::string hear() { return {}; }
  std::string follow(const ry::WorkerBody& /*body*/) { return {}; }
  ry::LostLead lost_lead() const { return {.may_go_on = true}; }
  ry::LeaderPlace offer(std::uint64_t generation) {
    if (!listens) throw ry::ConfigError{"no port is free"};
    if (on_offer) on_offer();
    return {.process = 1, .host = "10.0.0.1", .port = 4711, .generation = generation};
  }
  bool take_place(const ry::Deadline& deadline, bool is_last) {
    if (is_last) waited_out = true;
    if (!is_last) std::this_thread::sleep_for(deadline.remaining());
    return is_last;
  }
  bool try_to_follow(const ry::LeaderPlace& place, const ry::Deadline& /*deadline*/) {
    asked.push_back(place);
    if (on_ask) on_ask();
    return takes;
  }

  std::function<void()> on_offer{};
  std::function<void()> on_ask{};
  std::vector<ry::LeaderPlace> asked{};
  bool takes = true;
  bool listens = true;
  bool waited_out = false;
};

// What a process on another host has written.
void write_lease(const Scratch& scratch, const LeaseId& lease, bool has_ended = false, bool is_left = false) {
  std::ofstream{scratch.path() / "lease.json"}
      << fmt::format(R"({{"generation": {}, "id": "{}", "host": "node7", "since": "noon", "pid": 12, "boot": "b", )"
                     R"("has_ended": {}, "left": {}}})",
                     lease.generation, lease.id, has_ended, is_left);
}
void write_lease(const Scratch& scratch, std::uint64_t generation, bool has_ended = false, bool is_left = false) {
  write_lease(scratch, {generation, fmt::format("a{}", generation)}, has_ended, is_left);
}
const ry::detail::BegunRun lost_leader{.lease = {.generation = 7, .id = "a7"}, .is_seen = true};
const ry::detail::BegunRun unseen_leader{.lease = lost_leader.lease};

// Touches the lease as its holder on another host does, by a clock of its own.
auto touch(const Scratch& scratch) {
  return [file = scratch.path() / "lease.json", day = 0]() mutable {
    std::filesystem::last_write_time(file, std::filesystem::file_time_type{} + std::chrono::hours{24 * ++day});
  };
}

struct Hall {
  explicit Hall(const Scratch& scratch, std::chrono::nanoseconds start_timeout = 30s,
                const ry::detail::LeaseTimes& times = hasty)
      : config{.progress = ry::Progress::quiet, .start_timeout = start_timeout, .silence_limit = 50ms},
        election{others, scratch.path(), config, {}, times} {}
  ry::RunConfig config;
  Others others{};
  ry::detail::Election<Others> election;
};

}  // namespace

TEST_CASE("Election: who finds the leader silent leads, and says where it listens") {
  const Scratch scratch;
  write_lease(scratch, 7);
  Hall hall{scratch};
  ry::detail::Elected elected = hall.election.hold(lost_leader, "lost");
  REQUIRE(elected.lease);
  CHECK(elected.lease->generation() == 8);
  CHECK(elected.lease->is_held());
  hall.election.lead(*elected.lease);
  CHECK(hall.others.waited_out);
  const auto posting = ry::detail::LeaderPosting::read(scratch.path());
  REQUIRE(posting);
  CHECK(posting->lease == elected.lease->id());
  CHECK(posting->place.host == "10.0.0.1");
  CHECK(posting->place.port == 4711);
  CHECK(posting->place.generation == 8);
}

TEST_CASE("Election: a leader that gives signs of life is not replaced, and whoever has lost it leaves") {
  const Scratch scratch;
  write_lease(scratch, 7);
  const ry::detail::Heartbeat elsewhere{touch(scratch), 20ms};
  Hall hall{scratch, long_enough};
  CHECK_THROWS_WITH(
      hall.election.hold(lost_leader, "the line is cut"),
      ContainsSubstring("the line is cut; process 12 on node7") && ContainsSubstring("still gives signs of life"));
  CHECK_THAT(read_text(scratch.path() / "lease.json"), ContainsSubstring("\"a7\""));
}

TEST_CASE("Election: a silence is waited for however short the start may be") {
  const Scratch scratch;
  write_lease(scratch, 7);
  Hall hall{scratch, 10ms, {.beat = 50ms, .patience = 600ms}};
  CHECK(hall.election.hold(lost_leader, "lost").lease);
}

TEST_CASE("LeaseHolderWatch: a holder has given signs of life once a look has found one") {
  const Scratch scratch;
  write_lease(scratch, 7);
  const ry::detail::LeaseFile file{scratch.path() / "lease.json"};
  const auto now = file.read();
  REQUIRE(now);
  ry::detail::LeaseHolderWatch watch{*now, {.beat = 1ns, .patience = 1s}};
  CHECK_FALSE(watch.is_over(file, *now));
  CHECK_FALSE(watch.is_over(file, *now));
  CHECK_FALSE(watch.gives_signs());
  touch(scratch)();
  CHECK_FALSE(watch.is_over(file, *now));
  CHECK_FALSE(watch.is_over(file, *now));
  CHECK(watch.gives_signs());
}

TEST_CASE("Election: a leader that has left the run to others is replaced at once, one that has ended it is not") {
  const Scratch scratch;
  const bool is_left = GENERATE(true, false);
  write_lease(scratch, 7, true, is_left);
  Hall hall{scratch};
  if (is_left) {
    CHECK(hall.election.hold(lost_leader, "lost").lease);
  } else {
    CHECK_THROWS_WITH(hall.election.hold(lost_leader, "lost"),
                      ContainsSubstring("process 12 on node7 has ended the run"));
  }
}

TEST_CASE("Election: whoever has taken the run over is followed where it says that it listens, and nobody else") {
  const Scratch scratch;
  write_lease(scratch, 8);
  const bool is_of_holder = GENERATE(true, false);
  const ry::detail::LeaderPosting posting{.lease = {8, is_of_holder ? "a8" : "of another"},
                                          .place = {.process = 2, .host = "h", .port = 2}};
  REQUIRE(posting.write(scratch.path()).empty());
  Hall hall{scratch};
  const ry::detail::Elected elected = hall.election.hold(lost_leader, "lost");
  if (!is_of_holder) {
    CHECK(elected.lease);  // for who has it is silent
    CHECK(hall.others.asked.empty());
    return;
  }
  CHECK_FALSE(elected.lease);
  CHECK(elected.leader == LeaseId{8, "a8"});
  REQUIRE(hall.others.asked.size() == 1);
  CHECK(hall.others.asked.front().port == 2);
}

TEST_CASE("Election: one that has taken the run over and died before anybody could follow is replaced as well") {
  const Scratch scratch;
  write_lease(scratch, 8);
  REQUIRE(ry::detail::LeaderPosting{.lease = {8, "a8"}, .place = {.host = "h", .port = 2}}.write(scratch.path()) == "");
  Hall hall{scratch};
  hall.others.takes = false;
  const auto elected = hall.election.hold(lost_leader, "lost");
  REQUIRE(elected.lease);
  CHECK(elected.lease->generation() == 9);
}

TEST_CASE("Election: where the run's directory is not to be seen nobody leads") {
  const Scratch scratch;
  if (GENERATE(true, false)) write_lease(scratch, 6);  // of a run of that name on this host alone
  Hall hall{scratch, long_enough};
  CHECK_THROWS_WITH(hall.election.hold(lost_leader, "lost"), ContainsSubstring("lease.json is not to be seen here"));
}

TEST_CASE("Election: nobody goes on with another run that has left its files where this one's are not to be seen") {
  const Scratch scratch;
  const auto generation = GENERATE(7, 12);
  const LeaseId of_last_week{static_cast<std::uint64_t>(generation), "of last week"};
  write_lease(scratch, of_last_week, true, true);
  REQUIRE_FALSE(ry::detail::sees_lease(scratch.path(), unseen_leader.lease, 50ms));
  Hall hall{scratch, long_enough};
  CHECK_THROWS_WITH(hall.election.hold(unseen_leader, "lost"), ContainsSubstring("or is of another run"));
  CHECK(ry::detail::LeaseFile{scratch.path() / "lease.json"}.read()->lease == of_last_week);
}

TEST_CASE("Election: whoever sees the lease of the one that led may believe those that come after") {
  const Scratch scratch;
  write_lease(scratch, 7);
  CHECK(ry::detail::sees_lease(scratch.path(), lost_leader.lease, 0ns));
  Hall hall{scratch};
  CHECK(hall.election.hold(unseen_leader, "lost").lease);  // it is seen in time
}

TEST_CASE("Election: whoever has the lease and cannot listen leaves the run to others") {
  const Scratch scratch;
  write_lease(scratch, 7, true, true);
  Hall hall{scratch};
  hall.others.listens = false;
  {
    ry::detail::Elected elected = hall.election.hold(lost_leader, "lost");
    REQUIRE(elected.lease);
    CHECK_THROWS_AS(hall.election.lead(*elected.lease), ry::HostLostError);
  }
  CHECK(ry::detail::LeaseFile{scratch.path() / "lease.json"}.read()->is_left);
}

TEST_CASE("Election: whoever is held up before it says where it listens does not write over where the next one does") {
  const Scratch scratch;
  write_lease(scratch, 7, true, true);
  Hall hall{scratch};
  const ry::detail::LeaderPosting next{.lease = {9, "a9"}, .place = {.process = 2, .host = "h", .port = 2}};
  hall.others.on_offer = [&] {
    write_lease(scratch, next.lease);
    REQUIRE(next.write(scratch.path()).empty());
  };
  ry::detail::Elected elected = hall.election.hold(lost_leader, "lost");
  REQUIRE(elected.lease);
  CHECK_THROWS_WITH(hall.election.lead(*elected.lease),
                    ContainsSubstring("process 12 on node7 has taken over the run"));
  const auto posting = ry::detail::LeaderPosting::read(scratch.path());
  REQUIRE(posting);
  CHECK(posting->lease == next.lease);
}

TEST_CASE("Election: a signal that comes at its very end counts as well") {
  const Scratch scratch;
  Hall hall{scratch};
  ry::detail::ElasticSize size{{.num_workers = {1, 2}, .capacity = [] { return 2; }}};
  ::raise(SIGTERM);
  CHECK_THROWS_WITH(hall.election.find_room(size), ContainsSubstring("SIGTERM came"));
}

TEST_CASE("Election: a signal ends it, and not the program") {
  const Scratch scratch;
  write_lease(scratch, 8);
  Hall hall{scratch};
  hall.others.takes = false;
  ::raise(SIGTERM);
  CHECK_THROWS_WITH(hall.election.hold(lost_leader, "lost"), ContainsSubstring("SIGTERM came"));
}

// A suspended process does not look, nor does one that was suspended with it.
TEST_CASE("Election: goes on after all were suspended for longer than it may last (TRAPS 25)") {
  constexpr auto budget = railyard_test::is_sanitized ? 10s : 3s;  // a sanitizer takes its time to ask four times
  const Scratch scratch;
  write_lease(scratch, 7);
  const workers_test::SharedNumber num_asked;
  workers_test::Forked child{[&](const auto& tell) {
    const ry::detail::Heartbeat elsewhere{touch(scratch), 20ms};
    Hall hall{scratch, budget, {.beat = 50ms, .patience = budget / 2, .lock = 20ms}};
    hall.others.takes = false;
    hall.others.on_ask = [&] { hall.others.takes = (*num_asked).fetch_add(1) == 3; };
    tell(::getpid());
    return hall.election.hold(lost_leader, "lost").leader == LeaseId{8, "a8"} ? 0 : 1;
  }};
  REQUIRE(child.hear() == child.pid());
  ::kill(child.pid(), SIGSTOP);
  for (const auto is_over = ry::Deadline::after(budget + 500ms); !is_over.expired();) std::this_thread::sleep_for(10ms);
  write_lease(scratch, 8);
  REQUIRE(ry::detail::LeaderPosting{.lease = {8, "a8"}, .place = {.host = "h", .port = 2}}.write(scratch.path()) == "");
  ::kill(child.pid(), SIGCONT);
  CHECK(child.status() == 0);
  CHECK((*num_asked).load() == 4);
}

TEST_CASE("RunLease: of many that take a run over at once, one has it") {
  const Scratch scratch;
  const ry::detail::LeaseFile file{scratch.path() / "lease.json"};
  const ry::detail::LeaseTimes slow{.beat = 200ms, .patience = 200ms};
  const bool is_silent = GENERATE(true, false);  // or it has died on this host
  if (is_silent) {
    write_lease(scratch, 7);
  } else {
    const pid_t holder = ::fork();
    if (holder == 0) {
      const ry::detail::RunLease killed{scratch.path()};
      ::kill(::getpid(), SIGKILL);
    }
    ::waitpid(holder, nullptr, 0);
  }
  const auto former = file.read();
  REQUIRE(former);
  std::array<std::optional<ry::detail::RunLease>, 6> leases;
  std::vector<std::thread> threads;
  for (auto& lease : leases) {
    threads.emplace_back([&] {
      try {
        lease.emplace(scratch.path(), *former, is_silent, former->lease.generation, slow);
      } catch (const ry::Error&) {  // another was faster
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int num_held = 0;
  for (const auto& lease : leases) num_held += lease && lease->is_held() ? 1 : 0;
  CHECK(num_held == 1);
  CHECK(file.read()->lease.generation == former->lease.generation + 1);
}

TEST_CASE("RunLease: one that leaves its run to others says so when it ends") {
  const Scratch scratch;
  const ry::detail::LeaseFile file{scratch.path() / "lease.json"};
  {
    ry::detail::RunLease lease{scratch.path(), hasty};
    lease.leave_to_others();
    CHECK_FALSE(file.read()->is_left);
  }
  CHECK(file.read()->has_ended);
  CHECK(file.read()->is_left);
}

TEST_CASE("RunLedger: is told whole, and whoever leads next goes on from it") {
  ry::detail::RunLedger ledger{.attempt = 2, .begin_step = 10, .world_size = 3, .failures = {.failures = 1}};
  ledger.attempts = {{.error = "one", .failed_rank = 1, .end_step = 5, .lost_steps = 2, .world_size = 4}, {}};
  const auto inherited = ry::detail::inherit({.note = ledger.encode(), .num_steps = 17}, "lost", {});
  CHECK(inherited.ledger.attempt == 2);
  CHECK(inherited.ledger.failures.failures == 1);
  const auto attempts = inherited.attempts(12);
  REQUIRE(attempts.size() == 3);
  CHECK(attempts[0].error == "one");
  CHECK(attempts[0].failed_rank == 1);
  CHECK(attempts[0].world_size == 4);
  CHECK(attempts[2].error == "lost");
  CHECK(attempts[2].begin_step == 10);
  CHECK(attempts[2].end_step == 17);
  CHECK(attempts[2].lost_steps == 5);
  CHECK(ry::detail::inherit({}, "lost", {}).attempts(0).size() == 1);
}
