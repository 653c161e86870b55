// SPDX-License-Identifier: MIT
// The worker's end of the shared memory, for threads and processes alike. Workers room.
#pragma once

#include "railyard/workers/detail/group_memory.hpp"
#include "railyard/workers/detail/host_lines.hpp"
#include "railyard/workers/detail/stack_teller.hpp"

#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps what a worker wants to be run when its group ends, and runs it once.
class AbortHandler {
 public:
  using Handler = std::function<void(std::string_view)>;

  /// Replaces the handler. Does not return while the former one runs, unless that one is the caller.
  void set(Handler handler) {
    std::unique_lock lock{mutex_};
    idle_.wait(lock, [&] { return runner_ == std::thread::id{} || runner_ == std::this_thread::get_id(); });
    handler_ = std::move(handler);
  }

  /// Runs the handler if there is one, and forgets it.
  void run(std::string_view reason) noexcept {
    Handler handler;
    {
      const std::lock_guard lock{mutex_};
      std::swap(handler, handler_);
      if (!handler) return;
      runner_ = std::this_thread::get_id();
    }
    try {
      handler(reason);
      handler = nullptr;
    } catch (...) {  // nobody could be told: the worker learns of the end by its next wait
    }
    {
      const std::lock_guard lock{mutex_};
      runner_ = {};
    }
    idle_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  Handler handler_;
  std::thread::id runner_;
};

/// Is the group's store as one worker sees it: its waits end with the group.
class WorkerStore final : public Store {
 public:
  WorkerStore(GroupMemory& memory, int rank, Descriptor kept_file) noexcept
      : memory_(&memory), table_(memory.store()), rank_(rank), kept_file_(std::move(kept_file)) {}

  void set(std::string_view key, std::string_view value) override { table_.set(key, value); }

  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override {
    while (true) {
      const std::uint32_t changes = table_.changes();
      if (auto value = table_.find(key)) return value;
      if (memory_->is_aborted()) {
        throw CollectiveError{compose("store.get(\"{}\")", key),
                              rank_,
                              {},
                              compose("store.get(\"{}\") on rank {}/{}: the group has been ended: {}", key, rank_,
                                      memory_->num_workers(), memory_->reason())};
      }
      const auto look = times_.look(deadline);
      if (look.is_over) return std::nullopt;
      table_.wait(changes, look.until_next);
    }
  }

  [[nodiscard]] Descriptor take_memory() override {
    return is_file_taken_.exchange(true) ? Descriptor{} : std::move(kept_file_);
  }

  [[nodiscard]] bool joins_threads() const noexcept override { return memory_->users() == SharedBy::threads; }

 private:
  GroupMemory* memory_;
  SharedTable table_;
  int rank_;
  Descriptor kept_file_;
  CommonAwakeTime times_{};
  std::atomic<bool> is_file_taken_{false};
};

/// Writes how a worker ended as bytes, and back.
[[nodiscard]] inline std::vector<std::byte> encode_exit(const WorkerExit& exit) {
  const std::string_view message = std::string_view{exit.message}.substr(0, max_message_bytes / 4);
  const std::size_t blamed = std::min<std::size_t>(exit.blamed.size(), max_message_bytes / 16);
  const int flags = (exit.is_consequence ? 1 : 0) | (exit.is_config_error ? 2 : 0);
  std::vector<std::int32_t> head{static_cast<std::int32_t>(exit.kind), exit.code, flags,
                                 static_cast<std::int32_t>(blamed)};
  head.insert(head.end(), exit.blamed.begin(), exit.blamed.begin() + static_cast<std::ptrdiff_t>(blamed));
  const auto numbers = std::as_bytes(std::span{head});
  const auto text = std::as_bytes(std::span{message});
  std::vector<std::byte> bytes{numbers.begin(), numbers.end()};
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

[[nodiscard]] inline WorkerExit decode_exit(std::span<const std::byte> bytes) {
  const auto number_at = [&](std::size_t index) {
    std::int32_t number = 0;
    if ((index + 1) * sizeof number <= bytes.size()) {
      std::memcpy(&number, bytes.data() + index * sizeof number, sizeof number);
    }
    return number;
  };
  WorkerExit exit{.kind = static_cast<WorkerExit::Kind>(number_at(0)), .code = number_at(1)};
  exit.is_consequence = (number_at(2) & 1) != 0;
  exit.is_config_error = (number_at(2) & 2) != 0;
  const std::size_t words = bytes.size() / sizeof(std::int32_t);
  const auto blamed = std::min<std::size_t>(static_cast<std::uint32_t>(number_at(3)), words < 4 ? 0 : words - 4);
  for (std::size_t at = 0; at < blamed; ++at) exit.blamed.push_back(number_at(4 + at));
  const std::size_t text = std::min(bytes.size(), (4 + blamed) * sizeof(std::int32_t));
  exit.message.assign(reinterpret_cast<const char*>(bytes.data()) + text, bytes.size() - text);
  return exit;
}

/// Is the WorkerLink of both Threads and Processes. agent is the word on which the one who runs abort handlers sleeps;
/// kept_file what the store gives as memory.
class SharedLink final : public WorkerLink {
 public:
  SharedLink(GroupMemory& memory, int rank, int event_fd, std::atomic<std::uint32_t>& agent, const std::string& host,
             Descriptor kept_file = {})
      : memory_(&memory), store_(memory, rank, std::move(kept_file)), event_fd_(event_fd), agent_(&agent) {
    const int size = memory.num_workers();
    world_ = World{.rank = rank, .size = size, .local_rank = rank, .local_size = size, .host = host};
    if (size > 1) world_.connector = HostConnector::make();
  }

  [[nodiscard]] const World& world() const noexcept override { return world_; }
  [[nodiscard]] Store& store() noexcept override { return store_; }
  [[nodiscard]] WorkerPage& page() noexcept override { return memory_->rank(world_.rank).page; }

  [[nodiscard]] std::string_view briefing() const noexcept override { return memory_->briefing(); }

  [[nodiscard]] Snapshot take_snapshot(std::size_t size_bytes, SnapshotKind kind) override {
    memory_->want_snapshot(world_.rank, kind, size_bytes);
    int& turn = turns_[static_cast<std::size_t>(kind)];
    const int first = static_cast<int>(kind) * num_snapshots;
    // The supervisor may hold one of an earlier start, and for long.
    for (int i = 0; i < num_snapshots && memory_->owner(world_.rank, first + turn).load() != SnapshotOwners::nobody;
         ++i)
      turn = (turn + 1) % num_snapshots;
    const int slot = first + std::exchange(turn, (turn + 1) % num_snapshots);
    try {
      const std::string lack = lack_of_memory(kind, slot, size_bytes);
      if (!lack.empty()) refuse_snapshot(size_bytes, lack);
      return take(slot, size_bytes);
    } catch (const CollectiveError&) {
      throw;
    } catch (const Error&) {
      if (const int other = snapshot_without_more(first, size_bytes); other >= 0) return take(other, size_bytes);
      memory_->want_snapshot(world_.rank, kind, 1);  // it takes nothing now, and the next one may be smaller
      throw;
    }
  }

  [[nodiscard]] std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept override {
    return memory_->snapshot_memory(kind, size_bytes);
  }
  void drop_snapshot(int slot) noexcept override { memory_->release_snapshot(world_.rank, slot); }

  void await_snapshot(int slot) override {
    const auto& word = memory_->owner(world_.rank, slot);
    while (const std::uint32_t owner = word.load()) {
      if (memory_->is_aborted()) throw_ended("snapshot");
      futex_wait(word, owner, std::chrono::milliseconds{200});
    }
  }

  void read_snapshot(int rank, int slot, std::size_t begin, std::span<std::byte> to) override {
    memory_->read_snapshot(rank, slot, begin, to);
  }

  void post(std::span<const std::byte> message) override {
    if (message.size() > max_message_bytes) {
      throw ConfigError{
          compose("post on rank {}/{}: the message has {} bytes, the most is {}: report less, or write it to a file",
                  world_.rank, world_.size, message.size(), max_message_bytes)};
    }
    if (!write(RecordKind::message, message, true)) throw_ended("post");
  }

  void on_abort(std::function<void(std::string_view)> handler) override {
    const bool is_set = static_cast<bool>(handler);
    handler_.set(std::move(handler));
    if (is_set && memory_->is_aborted()) nudge(*agent_);
  }

  /// Runs the handler if the group is ending. Called by the agent whenever its word has moved.
  void run_handler_if_aborted() noexcept {
    if (memory_->is_aborted()) handler_.run(memory_->reason());
  }

  /// Called by the thread that runs the body when it begins, and when the body has ended.
  void begin_body() { teller_.watch_this_thread(); }
  void end_body() noexcept { teller_.forget_thread(); }

  /// Returns the calls that the body is in. Called by another thread.
  [[nodiscard]] std::string stack(const Deadline& deadline) { return teller_.tell(deadline); }

  /// Writes them where the supervisor looks, if it has asked. Called by the agent whenever its word has moved.
  void tell_stack_if_wanted() noexcept {
    RankBlock& block = memory_->rank(world_.rank);
    const std::uint32_t wanted = block.stacks_wanted.load();
    if (wanted == block.stacks_told.load()) return;
    try {
      const std::string text = stack(Deadline::after(std::chrono::milliseconds{300}));
      block.stack_size = static_cast<std::uint32_t>(std::min(text.size(), sizeof block.stack));
      std::copy_n(text.data(), block.stack_size, block.stack);
    } catch (...) {
      block.stack_size = 0;
    }
    block.stacks_told.store(wanted);
    futex_wake(block.stacks_told);
  }

  /// Says how the worker ended; its last record. Not given up when the group ends: this is what the end waits for.
  void post_exit(const WorkerExit& exit) noexcept {
    try {
      const std::vector<std::byte> bytes = encode_exit(exit);
      [[maybe_unused]] const bool written = write(RecordKind::exit, bytes, false);
    } catch (...) {
      const std::int32_t kind = static_cast<std::int32_t>(exit.kind);  // no memory for the message
      [[maybe_unused]] const bool written = write(RecordKind::exit, std::as_bytes(std::span{&kind, 1}), false);
    }
  }

 private:
  // Waits until the slot is nobody's.
  [[nodiscard]] Snapshot take(int slot, std::size_t size_bytes) {
    await_snapshot(slot);
    memory_->owner(world_.rank, slot).store(SnapshotOwners::worker);
    try {
      const std::span<std::byte> bytes = memory_->snapshot(world_.rank, slot, size_bytes);
      // What was there before is it no more, also if this worker dies, or gives it back, before it has filled it.
      std::fill_n(bytes.begin(), std::min(size_bytes, sizeof(std::uint64_t)), std::byte{});
      std::atomic_signal_fence(std::memory_order_seq_cst);
      return {.slot = slot, .bytes = bytes};
    } catch (...) {
      memory_->release_snapshot(world_.rank, slot);
      throw;
    }
  }

  // Ranks that have said nothing yet may want as much as this one, or nearly nothing, where it has what all have alike.
  // They save at the same time: this one is refused once they have said it, or have not for a while.
  [[nodiscard]] std::string lack_of_memory(SnapshotKind kind, int slot, std::size_t size_bytes) const {
    std::string least = memory_->lack_of_memory(world_.rank, slot, size_bytes, 0);
    if (!least.empty()) return least;
    for (const Deadline deadline = Deadline::after(memory_->patience);;) {
      const bool is_last = memory_->has_everyone_told(kind) || deadline.expired();
      std::string lack = memory_->lack_of_memory(world_.rank, slot, size_bytes, size_bytes);
      if (lack.empty() || is_last) return lack;
      if (memory_->is_aborted()) throw_ended("snapshot");
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }

  // Where memory is too short for one more of the kind whose first slot this is: one that is free and large enough; or
  // the largest, which is to have what all of them have. Those of checkpoints are waited for, for they come back when
  // they are written; a copy is held until there is a newer one. Returns -1 if not even one would fit.
  [[nodiscard]] int snapshot_without_more(int first, std::size_t size_bytes) {
    int largest = first;
    for (int slot = first; slot < first + num_snapshots; ++slot) {
      const std::size_t size = memory_->snapshot_size(world_.rank, slot);
      if (size >= size_bytes && memory_->owner(world_.rank, slot).load() == SnapshotOwners::nobody) return slot;
      if (size > memory_->snapshot_size(world_.rank, largest)) largest = slot;
    }
    if (first != static_cast<int>(SnapshotKind::checkpoint) * num_snapshots) return -1;
    if (!memory_->lack_of_memory(world_.rank, largest, size_bytes, size_bytes, true).empty()) return -1;
    for (int slot = first; slot < first + num_snapshots; ++slot) await_snapshot(slot);
    memory_->empty_others(world_.rank, largest);
    return largest;
  }

  [[noreturn]] void throw_ended(const char* operation) const {
    throw CollectiveError{operation,
                          world_.rank,
                          {},
                          compose("{} on rank {}/{}: the group has been ended: {}", operation, world_.rank, world_.size,
                                  memory_->reason())};
  }

  bool write(RecordKind kind, std::span<const std::byte> bytes, bool ends_with_group) {
    const std::lock_guard lock{mutex_};
    MessageRing ring = memory_->ring(world_.rank);
    GroupBlock& group = memory_->group();
    while (!ring.try_write(kind, bytes)) {
      if (group.closed.load() || (ends_with_group && memory_->is_aborted())) return false;
      Bell::ring(event_fd_);
      ring.wait_for_room(bytes.size(), std::chrono::milliseconds{100});
    }
    group.bell.ring_if_armed(event_fd_);
    return true;
  }

  GroupMemory* memory_;
  WorkerStore store_;
  int event_fd_;
  std::atomic<std::uint32_t>* agent_;
  World world_{};
  AbortHandler handler_;
  StackTeller teller_;
  std::mutex mutex_;
  std::array<int, 2> turns_{};  // by kind: snapshots are used in turn, so that they are read in order
};

}  // namespace detail
}  // namespace railyard::inline v0_1
