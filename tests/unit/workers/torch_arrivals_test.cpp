// SPDX-License-Identifier: MIT
// How processes that several agents of torchrun start agree on the attempt: this process leads, forked ones follow, and
// a small store stands for the agents'.
#include "railyard/workers/detail/torch_arrivals.hpp"

#include "railyard/workers/launched.hpp"

#include "network_support.hpp"
#include "small_store.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <fstream>
#include <future>

using namespace workers_test;
using Catch::ContainsSubstring;
using network_test::SecureConnection;
using network_test::SmallStore;
using ry::detail::TorchArrivals;

namespace {

// Is a job of three processes whose agents share a store and a folder.
class TorchJob {
 public:
  TorchJob() {
    std::filesystem::permissions(scratch_.path(), std::filesystem::perms::owner_all);
    for (const auto& [name, value] : variables(0, 0)) ::setenv(name.c_str(), value.c_str(), 1);
  }
  TorchJob(const TorchJob&) = delete;
  TorchJob& operator=(const TorchJob&) = delete;
  ~TorchJob() {
    for (const auto& [name, value] : variables(0, 0)) ::unsetenv(name.c_str());
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  [[nodiscard]] SmallStore& store() noexcept { return store_; }
  [[nodiscard]] ry::JoinPlan plan() const {
    return {.launch = {.job = "test", .rendezvous = scratch_.path()}, .timeout = 30s};
  }
  [[nodiscard]] TorchArrivals arrive(int process) const { return {"127.0.0.1", store_.port(), process, {}, soon()}; }
  // A process that is told that it is of so many restarts.
  pid_t begin(int process, int restart) {
    const pid_t pid = ::fork();
    if (pid == 0) follow(process, restart);
    pids_.push_back(pid);
    return pid;
  }
  int end_of(pid_t pid) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    pids_.erase(std::remove(pids_.begin(), pids_.end(), pid), pids_.end());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  [[nodiscard]] ry::detail::Posting posting() const { return bulletin().read(soon(), nullptr); }
  void post(const ry::detail::Posting& posting) {
    posted_.emplace(scratch_.path(), ry::detail::file_name_of("test", 0), ry::detail::WaitTeller{"the test", {}});
    posted_->post(posting);
  }
  // Comes as a process of an earlier attempt does that has read where the leader is.
  [[nodiscard]] SecureConnection come(int process, std::uint32_t arrival) const {
    const auto leader = posting();
    const ry::detail::Hello hello{.job = "test",
                                  .generation = leader.generation,
                                  .process = process,
                                  .payload = ry::detail::Newcomer{.arrival = arrival}.encode()};
    return SecureConnection::connect(leader.host, leader.port, ry::detail::Hmac{ry::detail::text_bytes(leader.secret)},
                                     hello, soon());
  }

 private:
  [[nodiscard]] std::map<std::string, std::string> variables(int process, int restart) const {
    return {{"TORCHELASTIC_RUN_ID", "test"},
            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
            {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
            {"RANK", std::to_string(process)},
            {"WORLD_SIZE", "3"},
            {"LOCAL_RANK", "0"},
            {"LOCAL_WORLD_SIZE", "1"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(store_.port())}};
  }
  [[nodiscard]] ry::detail::FileBulletin bulletin() const {
    return {scratch_.path(), ry::detail::file_name_of("test", 0), {"the test", {}}};
  }
  [[noreturn]] void follow(int process, int restart) const noexcept {
    try {
      for (const auto& [name, value] : variables(process, restart)) ::setenv(name.c_str(), value.c_str(), 1);
      ry::Launched follower;
      follower.join(plan());
      ::_exit(follower.hear() == "begin" ? 0 : 1);
    } catch (const std::exception& error) {
      ::_exit(std::string_view{error.what()}.find("of an earlier attempt") != std::string_view::npos ? 4 : 2);
    }
  }

  SmallStore store_{};
  TemporaryFolder scratch_{};
  std::optional<ry::detail::FileBulletin> posted_{};
  std::vector<pid_t> pids_{};
};

std::string refusal_on(SecureConnection& connection) {
  while (const auto frame = connection.receive(soon())) {
    if (frame->type == static_cast<std::uint8_t>(ry::detail::Order::refuse)) return std::string{frame->text()};
  }
  return "nothing";
}

}  // namespace

TEST_CASE("TorchArrivals: counts each process, and says which one is of an earlier attempt") {
  SmallStore store;
  const auto arrive = [&](int process) { return TorchArrivals{"127.0.0.1", store.port(), process, {}, soon()}; };
  TorchArrivals first = arrive(1);
  TorchArrivals leader = arrive(0);
  CHECK(first.own() == 1);
  CHECK(leader.own() == 1);
  CHECK_NOTHROW(first.throw_if_outdated());
  TorchArrivals second = arrive(1);
  CHECK(second.own() == 2);
  CHECK(leader.last_of(1) == 2);
  CHECK(leader.last_of(2) == 0);
  CHECK_THROWS_WITH(first.throw_if_outdated(), ContainsSubstring("another process 1 since"));
  CHECK_NOTHROW(second.throw_if_outdated());
  TorchArrivals nobody;
  CHECK(nobody.own() == 0);
  CHECK(nobody.last_of(1) == 0);
  CHECK_NOTHROW(nobody.throw_if_outdated());
}

TEST_CASE("TorchArrivals: does not believe a count that makes no sense, and does without a store that is lost") {
  auto store = std::make_unique<SmallStore>();
  store->put("/railyard/arrivals/1", "-7");
  store->put("/railyard/arrivals/2", "9000000000");
  const auto arrive = [&](int process) { return TorchArrivals{"127.0.0.1", store->port(), process, {}, soon()}; };
  CHECK_THROWS_WITH(arrive(1), ContainsSubstring(R"(holds -6 under "arrivals/1")"));
  CHECK_THROWS_WITH(arrive(2), ContainsSubstring("9000000001"));
  std::vector<std::string> lines;
  TorchArrivals one{"127.0.0.1", store->port(), 3, [&](const std::string& line) { lines.push_back(line); }, soon()};
  store.reset();
  CHECK_NOTHROW(one.throw_if_outdated());
  CHECK(one.last_of(0) == 0);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines.front(), ContainsSubstring("is not known any more"));
}

TEST_CASE("Launched: under torchrun, processes meet that are told of different attempts") {
  TorchJob job;
  ry::Launched leader;
  const pid_t one = job.begin(1, 1);
  const pid_t other = job.begin(2, 7);
  leader.join(job.plan());
  leader.tell("begin");
  CHECK(job.end_of(one) == 0);
  CHECK(job.end_of(other) == 0);
}

TEST_CASE("Launched: under torchrun, who is left of an earlier attempt is turned away, whenever he comes") {
  TorchJob job;
  TorchArrivals straggling = job.arrive(1);
  ry::Launched leader;
  auto joined = std::async(std::launch::async, [&] { leader.join(job.plan()); });
  SecureConnection straggler = job.come(1, straggling.own());
  const pid_t genuine = job.begin(1, 0);
  CHECK_THAT(refusal_on(straggler), ContainsSubstring("of an earlier attempt of the job"));
  SecureConnection again = job.come(1, straggling.own());
  CHECK_THAT(refusal_on(again), ContainsSubstring("of an earlier attempt of the job"));
  const pid_t other = job.begin(2, 0);
  REQUIRE_NOTHROW(joined.get());
  leader.tell("begin");
  CHECK(job.end_of(genuine) == 0);
  CHECK(job.end_of(other) == 0);
}

TEST_CASE("Launched: under torchrun, one that leads an earlier attempt ends when the next one has begun") {
  TorchJob job;
  ry::Launched leader;
  auto joined = std::async(std::launch::async, [&] { leader.join(job.plan()); });
  REQUIRE(job.posting().generation == 1);
  const TorchArrivals next = job.arrive(0);
  CHECK(next.own() == 2);
  CHECK_THROWS_WITH(joined.get(), ContainsSubstring("of an earlier attempt of the job"));
}

TEST_CASE("Launched: under torchrun, who looks for the leader of an attempt that is over ends as well") {
  TorchJob job;
  ry::detail::Socket nobody = ry::detail::reserve_port();
  job.post({.host = "127.0.0.1",
            .port = ry::detail::SocketAddress::of_self(nobody.fd()).port(),
            .generation = 1,
            .secret = ry::detail::random_secret()});
  const pid_t follower = job.begin(1, 0);
  const auto has_come = [&] { return job.store().values()["/railyard/arrivals/1"] == "1"; };
  for (const auto deadline = soon(); !has_come() && !deadline.expired();) std::this_thread::sleep_for(1ms);
  const TorchArrivals next = job.arrive(1);
  CHECK(next.own() == 2);
  CHECK(job.end_of(follower) == 4);
}

TEST_CASE("Launched: where torchrun's store cannot be spoken to, processes of a folder believe what they are told") {
  TorchJob job;
  for (int process = 0; process < 3; ++process) job.store().put(fmt::format("/railyard/arrivals/{}", process), "-9");
  ry::Launched leader;
  std::vector<std::string> lines;
  ry::JoinPlan plan = job.plan();
  plan.say = [&](const std::string& line) { lines.push_back(line); };
  const pid_t one = job.begin(1, 0);
  const pid_t other = job.begin(2, 0);
  leader.join(plan);
  leader.tell("begin");
  CHECK(job.end_of(one) == 0);
  CHECK(job.end_of(other) == 0);
  REQUIRE_FALSE(lines.empty());
  CHECK_THAT(lines.front(), ContainsSubstring("takes attempt 0 of the job, as it is told"));
}
