// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/arrivals.hpp"

#include "railyard/workers/launched.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <array>
#include <fstream>
#include <future>

using namespace workers_test;
using Catch::ContainsSubstring;
using network_test::secure_pair;
using network_test::SecureConnection;
using ry::detail::AgentConnection;
using ry::detail::Arrivals;

namespace {

// Is one that comes, and its own end.
struct Coming {
  std::optional<SecureConnection> theirs{};
  std::optional<AgentConnection> agent{};

  explicit Coming(std::uint32_t arrival = 0, const std::string& misfit = {}) {
    auto [leader, follower] = secure_pair();
    theirs.emplace(std::move(leader));
    agent.emplace(AgentConnection{.hello = {.payload = ry::detail::Newcomer{.arrival = arrival}.encode()},
                                  .connection = std::move(follower),
                                  .misfit = misfit});
  }
  void give_sign() { theirs->send(1, {}, soon()); }
  // What it is told, without the word by which it knows whether a setting is to blame.
  std::string refusal() {
    const auto frame = theirs->receive(soon());
    if (!frame || frame->type != static_cast<std::uint8_t>(ry::detail::Order::refuse)) return "nothing";
    ry::detail::WireReader reader{frame->payload};
    return reader.take<std::uint8_t>() == 0 ? reader.take_text() : "a setting";
  }
};

// Forks processes that come to a leader which this process is to be, and says when each has come.
class ForkedFollowers {
 public:
  explicit ForkedFollowers(int num_processes) : num_processes_(num_processes) {
    std::ofstream{scratch_.path() / "secret"} << "0123456789abcdef0123456789abcdef\n";
    std::filesystem::permissions(scratch_.path() / "secret", std::filesystem::perms{0600});
    const ry::detail::Socket free = ry::detail::listen_at("127.0.0.1", 0);
    address_ = fmt::format("127.0.0.1:{}", ry::detail::SocketAddress::of_self(free.fd()).port());
  }
  ForkedFollowers(const ForkedFollowers&) = delete;
  ForkedFollowers& operator=(const ForkedFollowers&) = delete;
  ~ForkedFollowers() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  [[nodiscard]] ry::JoinPlan plan(int process) const {
    return {.launch = {.process = process,
                       .num_processes = num_processes_,
                       .leader = address_,
                       .job = "test",
                       .secret_file = scratch_.path() / "secret"},
            .timeout = 30s};
  }
  // Returns once it has come.
  pid_t begin(int process) {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) follow(process, pipe[1]);
    ::close(pipe[1]);
    char letter = 0;
    const ssize_t got = ::read(pipe[0], &letter, 1);
    ::close(pipe[0]);
    pids_.push_back(pid);
    REQUIRE(got == 1);
    return pid;
  }
  // Returns 0 if it was told to begin.
  int end_of(pid_t pid) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    pids_.erase(std::remove(pids_.begin(), pids_.end(), pid), pids_.end());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill(pid_t pid) {
    ::kill(pid, SIGKILL);
    CHECK(end_of(pid) == -1);
  }

 private:
  [[noreturn]] void follow(int process, int come_fd) const noexcept {
    try {
      ry::Launched follower;
      follower.join(plan(process));
      static_cast<void>(::write(come_fd, "x", 1) == 1);
      ::_exit(follower.hear() == "begin" ? 0 : 1);
    } catch (const ry::ConfigError&) {
      ::_exit(3);
    } catch (const std::exception&) {
      ::_exit(2);
    }
  }

  TemporaryFolder scratch_{};
  int num_processes_;
  std::string address_{};
  std::vector<pid_t> pids_{};
};

}  // namespace

TEST_CASE("Arrivals: one that goes leaves its place to whoever comes in its stead, before or after that is known") {
  std::vector<std::string> lines;
  Arrivals arrivals{3, [&](const std::string& line) { lines.push_back(line); }};
  Coming first, other, second, third;
  arrivals.add(1, std::move(*first.agent));
  arrivals.add(2, std::move(*other.agent));
  CHECK(arrivals.is_complete());
  first.give_sign();  // and then it ends
  first.theirs.reset();
  CHECK_FALSE(arrivals.settle());
  CHECK(arrivals.missing_text() == "process 1 (which has come and gone again)");
  CHECK(lines == std::vector<std::string>{"process 3 has gone again, before all have come"});
  arrivals.add(1, std::move(*second.agent));
  CHECK(arrivals.is_complete());

  arrivals.add(1, std::move(*third.agent));
  CHECK_FALSE(arrivals.settle());
  CHECK_FALSE(arrivals.is_complete());  // while it is not known which one is meant
  second.theirs.reset();
  CHECK_FALSE(arrivals.settle());
  CHECK(arrivals.is_complete());
  third.theirs->send(7, {}, soon());
  auto connection = arrivals.take(1);
  const auto frame = connection.receive(soon());
  REQUIRE(frame);
  CHECK(frame->type == 7);
}

TEST_CASE("Arrivals: of two that want one place and are alive, both are named") {
  Arrivals arrivals{2};
  Coming first, second;
  arrivals.add(1, std::move(*first.agent));
  arrivals.add(1, std::move(*second.agent));
  CHECK_FALSE(arrivals.settle());
  std::optional<Arrivals::Conflict> conflict;
  int num_signs = 0;
  for (; !conflict && num_signs < 10; ++num_signs) {
    first.give_sign();
    conflict = arrivals.settle();
  }
  REQUIRE(conflict);
  CHECK(num_signs > 1);  // the first one may have been under way when it ended
  CHECK_THAT(conflict->text(), ContainsSubstring("number 1 of 2,") && ContainsSubstring("process 3 and process 3"));
  CHECK(arrivals.take_all().size() == 2);
}

TEST_CASE(
    "Arrivals: one that is neither heard nor gone is not waited for without an end, and who drops out does not count") {
  Arrivals arrivals{2, {}, 1ms};
  Coming first, second, third;
  arrivals.add(1, std::move(*first.agent));
  arrivals.add(1, std::move(*second.agent));
  second.theirs.reset();
  CHECK_FALSE(arrivals.settle());
  CHECK(arrivals.is_complete());
  arrivals.add(1, std::move(*third.agent));
  std::optional<Arrivals::Conflict> conflict;
  for (const auto deadline = soon(); !conflict && !deadline.expired();) conflict = arrivals.settle();
  REQUIRE(conflict);
  arrivals.drop_contenders(conflict->place);
  CHECK(arrivals.is_complete());
}

TEST_CASE(
    "Arrivals: one of an earlier attempt is sent away, whether the later one is there, or only known to have come") {
  Arrivals arrivals{2};
  Coming straggler{1}, genuine{2}, late{1};
  arrivals.add(1, std::move(*straggler.agent), 1);
  CHECK(arrivals.is_complete());
  arrivals.add(1, std::move(*genuine.agent), 2);
  CHECK(arrivals.is_complete());
  CHECK_THAT(straggler.refusal(), ContainsSubstring("of an earlier attempt of the job"));
  arrivals.add(1, std::move(*late.agent), 2);
  CHECK(arrivals.is_complete());
  CHECK_THAT(late.refusal(), ContainsSubstring("of an earlier attempt of the job"));
  Arrivals none{2};
  Coming alone{1};
  none.add(1, std::move(*alone.agent), 2);
  CHECK_FALSE(none.is_complete());
}

TEST_CASE("Arrivals: one that does not fit is remembered after it has left") {
  Arrivals arrivals{2};
  Coming misfit{0, "it has no TLS"};
  arrivals.add(1, std::move(*misfit.agent));
  misfit.theirs.reset();
  CHECK_FALSE(arrivals.settle());
  CHECK(arrivals.is_complete());
  CHECK_THROWS_WITH(arrivals.check_fit(), "it has no TLS");
}

TEST_CASE("Launched: a process that is made again while others are still waited for takes its place") {
  ForkedFollowers followers{3};
  ry::Launched leader;
  auto joined = std::async(std::launch::async, [&] { leader.join(followers.plan(0)); });
  const pid_t first = followers.begin(1);
  followers.kill(first);
  const pid_t again = followers.begin(1);
  const pid_t other = followers.begin(2);
  REQUIRE_NOTHROW(joined.get());
  CHECK(leader.num_workers() == 3);
  leader.tell("begin");
  CHECK(followers.end_of(again) == 0);
  CHECK(followers.end_of(other) == 0);
}

TEST_CASE("Launched: two live processes of one number end the start, and both are named") {
  ForkedFollowers followers{3};
  ry::Launched leader;
  auto joined = std::async(std::launch::async, [&] { leader.join(followers.plan(0)); });
  const pid_t first = followers.begin(1);
  const pid_t second = followers.begin(1);
  std::string why;
  try {
    joined.get();
  } catch (const ry::ConfigError& error) {
    why = error.what();
  }
  CHECK_THAT(why, ContainsSubstring("number 1 of 3,") && ContainsSubstring("both are there: process 1 (127.0.0.1:") &&
                      ContainsSubstring(" and process 1 (127.0.0.1:"));
  CHECK(followers.end_of(first) == 3);  // as the leader, by a setting
  CHECK(followers.end_of(second) == 3);
}
