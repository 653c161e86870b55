// SPDX-License-Identifier: MIT
// A group of two processes, one worker each: the test's own leads, a forked one follows by a connection of few bytes.
#pragma once

#include "railyard/workers/detail/agent.hpp"
#include "railyard/workers/detail/agent_lines.hpp"
#include "railyard/workers/detail/launched_group.hpp"

#include "unit/workers/support.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace workers_test {

// What a request that storage holds up, in this process or another, and the test tell each other.
struct Stuck {
  std::atomic<bool> has_begun{false};
  std::atomic<bool> is_released{false};

  void hold_up() {
    has_begun = true;
    while (!is_released) std::this_thread::sleep_for(1ms);
  }
};
class SharedStuck {
 public:
  SharedStuck() : at_(::mmap(nullptr, sizeof(Stuck), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (at_ == MAP_FAILED) throw std::runtime_error{"mmap failed"};
    ::new (at_) Stuck;
  }
  SharedStuck(const SharedStuck&) = delete;
  SharedStuck& operator=(const SharedStuck&) = delete;
  ~SharedStuck() { ::munmap(at_, sizeof(Stuck)); }
  [[nodiscard]] Stuck* operator->() const { return static_cast<Stuck*>(at_); }

 private:
  void* at_;
};

class FollowedGroup {
 public:
  static constexpr std::size_t max_frame_bytes = 64'000;
  static constexpr std::size_t chunk_bytes = 10'000;
  /// Is what the worker of a process runs.
  using Body = std::function<void(ry::WorkerLink& link, int process)>;

  explicit FollowedGroup(const Body& body, const ry::RequestHandler& on_request = {},
                         std::chrono::nanoseconds end_patience = 5s, std::chrono::nanoseconds answer_limit = {}) {
    auto [here, there] = connect();
    follower_ = ::fork();
    if (follower_ < 0) throw std::runtime_error{"fork failed"};
    if (follower_ == 0) {
      here.forget_in_child();
      be_follower(there, body, on_request, end_patience);
    }
    there.forget_in_child();
    std::vector<ry::detail::SecureConnection> connections;
    connections.push_back(std::move(here));
    lines_.emplace(std::move(connections), 20s, chunk_bytes, answer_limit);
    const ry::WorkerBody own = [body](ry::WorkerLink& link) { body(link, 0); };
    group_.emplace(ry::GroupPlan{.num_workers = 2}, own, members_, *lines_, 0, [](std::uint32_t) {});
  }
  FollowedGroup(const FollowedGroup&) = delete;
  FollowedGroup& operator=(const FollowedGroup&) = delete;
  ~FollowedGroup() {
    group_.reset();
    lines_.reset();
    kill();
  }

  [[nodiscard]] ry::detail::LaunchedGroup& group() { return *group_; }
  void tell_end() { lines_->post(1, ry::detail::Order::tell); }
  // The process that leads ends. Returns whether the one that follows has ended in time.
  [[nodiscard]] bool lose_leader() {
    group_.reset();
    lines_.reset();
    const auto deadline = soon();
    while (!deadline.expired()) {
      if (::waitpid(follower_, nullptr, WNOHANG) != 0) {
        follower_ = -1;
        return true;
      }
      ::usleep(1000);
    }
    return false;
  }
  // Returns when nothing is left of the process that follows.
  void kill() {
    if (follower_ < 0) return;
    ::kill(follower_, SIGKILL);
    ::waitpid(follower_, nullptr, 0);
    follower_ = -1;
  }

 private:
  static std::pair<ry::detail::SecureConnection, ry::detail::SecureConnection> connect() {
    using namespace ry::detail;
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
      throw std::runtime_error{"socketpair failed"};
    const Hmac one{text_bytes("one")};
    const Hmac other{text_bytes("other")};
    const ConnectionLimits limits{.max_frame_bytes = max_frame_bytes};
    return {SecureConnection{Socket{Descriptor{ends[0]}}, {.outgoing = one, .incoming = other}, "the follower", limits},
            SecureConnection{Socket{Descriptor{ends[1]}}, {.outgoing = other, .incoming = one}, "the leader", limits}};
  }

  [[noreturn]] static void be_follower(ry::detail::SecureConnection& leader, const Body& body,
                                       const ry::RequestHandler& on_request, std::chrono::nanoseconds end_patience) {
    try {
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
      const ry::WorkerBody own = [body](ry::WorkerLink& link) { body(link, 1); };
      static_cast<void>(ry::detail::Agent{leader, own, 20s, on_request, end_patience}.run());
    } catch (const ry::Error&) {  // the leader has ended
    }
    ::_exit(0);
  }

  pid_t follower_ = -1;
  ry::detail::LaunchedMembers members_{.workers = {1, 1}, .hosts = {"one", "other"}};
  std::optional<ry::detail::AgentLines> lines_{};
  std::optional<ry::detail::LaunchedGroup> group_{};
};

}  // namespace workers_test
