// SPDX-License-Identifier: MIT
// Launched where this process is the first of those that a plain launcher has started.
#pragma once

#include "railyard/workers/launched.hpp"

#include "support/catch.hpp"
#include "support/setting.hpp"
#include "support/temporary_folder.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

namespace railyard_test {

namespace ry = railyard;

/// Makes workers as Launched does in processes that are told by variables of the environment which of them they are:
/// two in each where there are four workers, as many processes as workers otherwise. This process leads, the others are
/// forked, and end with this object.
class LaunchedHere {
 public:
  static constexpr std::string_view name = "Launched, here";
  static constexpr ry::Reach reach = ry::Launched::reach;
  static constexpr bool copies_function = ry::Launched::copies_function;

  LaunchedHere() = default;
  LaunchedHere(const LaunchedHere&) = delete;
  LaunchedHere& operator=(const LaunchedHere&) = delete;
  ~LaunchedHere() {
    leader_.tell("end");
    for (const pid_t follower : followers_) {
      if (!has_joined_) ::kill(follower, SIGKILL);  // it waits for a leader that never came
      int status = -1;
      CHECK(::waitpid(follower, &status, 0) == follower);
      if (has_joined_) CHECK(status == 0);
    }
  }

  [[nodiscard]] std::unique_ptr<ry::WorkerGroup> start(const ry::GroupPlan& plan, const ry::WorkerBody& body) {
    const int per_process = plan.num_workers == 4 ? 2 : 1;
    const int num_processes = plan.num_workers / per_process;
    const Setting world_size{"WORLD_SIZE", std::to_string(num_processes)};
    const Setting local_size{"LOCAL_WORLD_SIZE", std::to_string(num_processes)};
    const Setting address{"MASTER_ADDR", "127.0.0.1"};
    const Setting port{"MASTER_PORT", "29412"};  // names the job: the leader's address is left in the folder
    const Setting folder{"XDG_RUNTIME_DIR", folder_.path().string()};
    const Setting rank{"RANK", "0"};
    const Setting local_rank{"LOCAL_RANK", "0"};
    const ry::JoinPlan join_plan{
        .num_workers = per_process, .timeout = std::chrono::seconds{60}, .silence_limit = std::chrono::seconds{60}};
    for (int process = 1; process < num_processes; ++process) {
      followers_.push_back(fork_follower(process, join_plan, body));
    }
    leader_.join(join_plan);
    has_joined_ = true;
    leader_.tell("begin");
    return leader_.start(plan, body);
  }

 private:
  [[nodiscard]] static pid_t fork_follower(int process, const ry::JoinPlan& plan, const ry::WorkerBody& body) {
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error{"fork failed"};
    if (pid > 0) return pid;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);  // Catch2's would end the program
    for (const char* variable : {"RANK", "LOCAL_RANK"}) ::setenv(variable, std::to_string(process).c_str(), 1);
    try {
      ry::Launched follower;
      follower.join(plan);
      ::_exit(follower.hear() == "begin" && follower.follow(body) == "end" ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", process, error.what());
      ::_exit(2);
    }
  }

  TemporaryFolder folder_{};
  ry::Launched leader_{};
  std::vector<pid_t> followers_{};
  bool has_joined_ = false;
};
static_assert(ry::Scaling<LaunchedHere>);

}  // namespace railyard_test
