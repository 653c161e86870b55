// SPDX-License-Identifier: MIT
// The supervisor's end of the shared memory: collects messages, exits and signals into a queue. Workers room.
#pragma once

#include "railyard/workers/detail/group_memory.hpp"
#include "railyard/workers/detail/signal_watch.hpp"
#include "railyard/workers/detail/worker_link.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"

#include <csignal>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Checks what every Scaling is asked for.
inline void check_plan(const GroupPlan& plan, const WorkerBody& body) {
  if (plan.num_workers < 1) {
    throw ConfigError{compose("num_workers is {}: a group needs at least 1 worker", plan.num_workers)};
  }
  if (!body) throw ConfigError{"start: the function that workers run is empty"};
}

/// Gathers what the workers post and what signals come, until the group's owner takes it.
class Inbox {
 public:
  explicit Inbox(GroupMemory& memory)
      : memory_(&memory),
        event_(adopt(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "start: a descriptor for wake-ups")),
        exits_(static_cast<std::size_t>(memory.capacity())) {}

  [[nodiscard]] int event_fd() const noexcept { return event_.get(); }
  [[nodiscard]] bool has_events() const noexcept { return !events_.empty(); }
  void push(GroupEvent event) { events_.push_back(std::move(event)); }

  [[nodiscard]] std::optional<GroupEvent> pop() {
    if (events_.empty()) return std::nullopt;
    GroupEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  /// Takes what the rank has posted so far. Bounded by what its ring holds, so that one rank cannot keep the
  /// supervisor busy for ever.
  void drain(int rank) {
    MessageRing ring = memory_->ring(rank);
    std::size_t taken = 0;
    while (taken < ring_bytes) {
      std::optional<Record> record = ring.read();
      if (!record) return;
      had_messages_ = true;
      taken += record->bytes.size() + sizeof(std::uint64_t);
      if (record->kind == RecordKind::exit) {
        exits_[static_cast<std::size_t>(rank)] = decode_exit(record->bytes);
      } else {
        push(MessageEvent{.rank = rank, .bytes = std::move(record->bytes)});
      }
    }
  }
  void drain_all() {
    for (int rank = 0; rank < memory_->num_workers(); ++rank) drain(rank);
  }

  /// In a process that has just been forked: lets go of what only the supervisor needs. Workers keep event_fd().
  void forget_in_child() noexcept { signals_.forget_in_child(); }

  /// Forgets what the workers have posted, for new ones begin. Signals stay.
  void reset() {
    std::erase_if(events_, [](const GroupEvent& event) { return !std::holds_alternative<SignalEvent>(event); });
    exits_.assign(static_cast<std::size_t>(memory_->capacity()), std::nullopt);
    had_messages_ = false;
  }

  /// Looks for signals without waiting, and returns one if one has come.
  [[nodiscard]] std::optional<GroupEvent> pop_signal() {
    std::vector<pollfd> nothing;
    wait(nothing, std::chrono::nanoseconds{0});
    return pop();
  }

  /// How the rank says that it ended; nothing if it has not said.
  [[nodiscard]] const std::optional<WorkerExit>& exit_of_rank(int rank) const {
    return exits_[static_cast<std::size_t>(rank)];
  }

  /// Sleeps until something has been posted, a signal has come, or one of `others` is ready; at most the given time.
  /// Signals become events.
  void wait(std::vector<pollfd>& others, std::chrono::nanoseconds at_most) {
    if (at_most.count() > 0 &&
        std::exchange(
            had_messages_,
            false)) {  // in a stream of messages, a short nap unarmed saves the workers a system call per message
      at_most = std::min<std::chrono::nanoseconds>(at_most, std::chrono::milliseconds{1});
    } else if (at_most.count() > 0) {
      memory_->group().bell.armed.store(1);
      if (has_records()) at_most = std::chrono::nanoseconds{0};
    }
    others.push_back({.fd = event_.get(), .events = POLLIN, .revents = 0});
    others.push_back({.fd = signals_.fd(), .events = POLLIN, .revents = 0});
    const timespec time = to_timespec(at_most);
    ::ppoll(others.data(), others.size(), &time, nullptr);
    memory_->group().bell.armed.store(0);
    const bool has_signal = others.back().revents != 0;
    others.pop_back();
    if (others.back().revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
    }
    others.pop_back();
    if (!has_signal) return;
    while (const std::optional<int> signal = signals_.take()) push(SignalEvent{.signal = *signal});
  }

 private:
  [[nodiscard]] bool has_records() const noexcept {
    for (int rank = 0; rank < memory_->num_workers(); ++rank) {
      if (memory_->ring(rank).has_records()) return true;
    }
    return false;
  }

  GroupMemory* memory_;
  Descriptor event_;
  SignalWatch signals_;
  std::deque<GroupEvent> events_;
  std::vector<std::optional<WorkerExit>> exits_;
  bool had_messages_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
