// SPDX-License-Identifier: MIT
// Workers that are threads of this process: the quickest start and no isolation. Workers room.
#pragma once

#include "railyard/workers/detail/inbox.hpp"
#include "railyard/workers/detail/worker_link.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the group of Threads. Agents, made when the group ends early, run the abort handlers, each worker's on its own: a
/// handler may wait for a lock that the supervisor's caller or another worker holds.
class ThreadGroup final : public WorkerGroup {
 public:
  ThreadGroup(const GroupPlan& plan, const WorkerBody& body)
      : memory_(plan.num_workers, plan.briefing, plan.most_workers, SharedBy::threads), inbox_(memory_), body_(body) {
    start_threads();
  }

  ~ThreadGroup() override { end_all("the group has been destroyed by its owner"); }

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override {
    while (true) {
      if (auto event = inbox_.pop()) return event;
      if (num_over_ == threads_.size()) return inbox_.pop_signal();
      const bool is_last_look = deadline.expired();
      collect(is_last_look ? std::chrono::nanoseconds{0} : deadline.remaining());
      if (is_last_look) return inbox_.pop();
    }
  }

  void request_stop() override { memory_.request_stop(); }
  void request_leave() override { memory_.request_leave(); }
  void request_resize() override { memory_.request_resize(); }

  void abort(std::string_view reason) override {
    memory_.abort(reason);
    try {
      while (agents_.size() < links_.size()) {
        agents_.emplace_back([this, rank = agents_.size()] { be_agent(static_cast<int>(rank)); });
      }
    } catch (const std::system_error&) {  // no more threads: this one has to do, now and in every collect()
      run_handlers_without_agent();
    }
  }

  void kill() override {
    collect(std::chrono::nanoseconds{0});  // whoever has just ended is not deaf
    std::vector<int> deaf;
    for (std::size_t rank = 0; rank < threads_.size(); ++rank) {
      if (!is_over_[rank]) deaf.push_back(static_cast<int>(rank));
    }
    if (!deaf.empty()) end_program(joined_first(deaf, 16));
  }

  [[nodiscard]] bool can_kill() const noexcept override { return false; }

  [[nodiscard]] const WorkerPage& page(int rank) const override { return memory_.rank(rank).page; }
  [[nodiscard]] std::vector<std::string> stacks(const Deadline& deadline) override {
    std::vector<std::string> stacks;
    for (auto& link : links_) stacks.push_back(link->stack(deadline));
    return stacks;
  }

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                    std::size_t size_bytes) override {
    return memory_.snapshot(rank, slot, begin + size_bytes).subspan(begin);
  }
  void hold_snapshot(int rank, int slot) noexcept override { memory_.hold_snapshot(rank, slot); }
  void release_snapshot(int rank, int slot) noexcept override { memory_.release_snapshot(rank, slot); }
  [[nodiscard]] std::span<const std::byte> left_snapshot(int rank, int slot, std::size_t size_bytes) override {
    return memory_.left_snapshot(rank, slot, size_bytes);
  }
  [[nodiscard]] bool shares_snapshots() const noexcept override { return true; }

  void restart(int num_workers, std::string_view briefing) override {
    join_all();
    links_.clear();
    threads_.clear();
    agents_.clear();
    num_over_ = 0;
    is_ending_.store(false);
    inbox_.reset();
    memory_.reset(num_workers, briefing);
    start_threads();
  }

  [[nodiscard]] bool forks_to_restart() const override { return false; }

 private:
  void start_threads() {
    const int num_workers = memory_.num_workers();
    const std::string host = host_name();
    is_over_.assign(static_cast<std::size_t>(num_workers), false);
    for (int rank = 0; rank < num_workers; ++rank) {
      links_.push_back(std::make_unique<SharedLink>(memory_, rank, inbox_.event_fd(), memory_.rank(rank).agent, host));
    }
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : caught_signals) ::sigaddset(&signals, signal);
    const BlockSignals block{signals};  // they are the supervisor's: a worker's system calls are not interrupted
    try {
      for (auto& link : links_) threads_.emplace_back([this, &link] { run(*link); });
    } catch (const std::system_error& error) {
      const std::size_t made = threads_.size();
      end_all("not every worker could be started");
      throw Error{compose("start: making the thread of rank {}/{}: {}", made, num_workers,
                          explain_errno(error.code().value()))};
    }
  }

  void run(SharedLink& link) noexcept {
    WorkerExit exit{};
    link.begin_body();
    try {
      body_(link);
    } catch (...) {
      exit = exit_of(std::current_exception());
    }
    link.end_body();
    link.on_abort({});  // what it refers to is most likely gone
    link.post_exit(exit);
  }

  void run_handlers_without_agent() noexcept {
    for (std::size_t rank = agents_.size(); rank < links_.size(); ++rank) links_[rank]->run_handler_if_aborted();
  }

  void be_agent(int rank) noexcept {
    const std::atomic<std::uint32_t>& word = memory_.rank(rank).agent;
    while (!is_ending_.load()) {
      const std::uint32_t seen = word.load();
      links_[static_cast<std::size_t>(rank)]->run_handler_if_aborted();
      if (!is_ending_.load()) futex_wait(word, seen, std::chrono::seconds{1});
    }
  }

  void collect(std::chrono::nanoseconds at_most) {
    inbox_.drain_all();
    if (memory_.is_aborted() && agents_.size() < links_.size()) {
      run_handlers_without_agent();
      at_most = std::min<std::chrono::nanoseconds>(at_most, std::chrono::milliseconds{100});
    }
    std::vector<pollfd> nothing;
    inbox_.wait(nothing, inbox_.has_events() ? std::chrono::nanoseconds{0} : at_most);
    for (int rank = 0; rank < memory_.num_workers(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (is_over_[at]) continue;
      inbox_.drain(rank);
      if (const auto& exit = inbox_.exit_of_rank(rank)) {
        is_over_[at] = true;
        ++num_over_;
        inbox_.push(ExitEvent{.rank = rank, .exit = *exit});
      }
    }
  }

  // Threads that look at nothing of ours cannot be ended. Rather than to wait for ever, the program ends.
  void end_all(std::string_view reason) noexcept {
    try {
      const Deadline deadline = Deadline::after(std::chrono::seconds{30});
      if (num_over_ != threads_.size()) {
        collect(std::chrono::nanoseconds{0});
        if (num_over_ != threads_.size()) {
          request_stop();
          abort(reason);
        }
      }
      while (num_over_ != threads_.size() && !deadline.expired()) {
        collect(deadline.remaining());
        while (inbox_.pop()) {
        }
      }
      kill();
    } catch (...) {
      end_program("unknown");
    }
    join_all();
  }

  void join_all() noexcept {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    is_ending_.store(true);
    for (std::size_t rank = 0; rank < agents_.size(); ++rank) nudge(memory_.rank(static_cast<int>(rank)).agent);
    for (auto& agent : agents_) {
      if (agent.joinable()) agent.join();
    }
  }

  [[noreturn]] static void end_program(const std::string& deaf) noexcept {
    char text[512];
    const int length = std::snprintf(text, sizeof text,
                                     "railyard: a thread cannot be ended by force, so this program ends with status "
                                     "70: the run had to end, but rank %s did not. Let the training function look at "
                                     "should_stop(), or use Processes.\n",
                                     deaf.c_str());
    [[maybe_unused]] const auto written = ::write(2, text, std::min(static_cast<std::size_t>(length), sizeof text - 1));
    ::syscall(SYS_exit_group, 70);  // what is wrapped around _exit() by a sanitizer would look at the deaf threads
    ::_exit(70);
  }

  GroupMemory memory_;
  Inbox inbox_;
  WorkerBody body_;
  std::vector<std::unique_ptr<SharedLink>> links_;
  std::vector<std::thread> threads_;
  std::vector<bool> is_over_;
  std::size_t num_over_ = 0;
  std::vector<std::thread> agents_;
  std::atomic<bool> is_ending_{false};
};

}  // namespace detail

/// Runs the workers as threads of this process. A worker that crashes or calls exit() ends the program, and one that
/// does not react when the group has to end makes the program end with status 70.
class Threads {
 public:
  static constexpr std::string_view name = "Threads";
  static constexpr Reach reach = Reach::process;
  static constexpr bool copies_function = true;

  /// Throws: ConfigError if the plan asks for less than one worker or the limits of this process do not allow it, Error
  /// if the system has no more threads.
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body) {
    detail::check_plan(plan, body);
    detail::prepare_descriptors(std::max(plan.num_workers, plan.most_workers), num_snapshot_slots);
    return std::make_unique<detail::ThreadGroup>(plan, body);
  }
};
static_assert(Scaling<Threads>);

}  // namespace railyard::inline v0_1
