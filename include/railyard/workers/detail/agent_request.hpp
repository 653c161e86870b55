// SPDX-License-Identifier: MIT
// A request that a process which follows is answering, on a thread that may be left behind. Workers room.
#pragma once

#include "railyard/workers/detail/group_memory.hpp"

#include "railyard/core/detail/signals.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns the thread. What that uses is its own as well, the snapshots' memory included: a file system may hold it up for
/// longer than anybody waits. Used by one thread.
class AgentRequest {
 public:
  /// snapshots: of this process's workers, of whom the first is first_rank among all; none if there are no workers.
  /// Throws: std::system_error if no thread can be had.
  AgentRequest(std::uint64_t number, std::vector<std::byte> request, RequestHandler handler,
               std::shared_ptr<GroupMemory> snapshots, int first_rank)
      : number_(number), work_(std::make_shared<Work>()) {
    const BlockSignals block{deferrable_signals()};  // they are for the thread that called fit()
    thread_ = std::thread{[work = work_, request = std::move(request), handler = std::move(handler),
                           snapshots = std::move(snapshots), first_rank] {
      const SnapshotReader read = [&](int rank, int slot, std::size_t begin, std::size_t size) {
        return work->read(snapshots.get(), rank - first_rank, slot, begin, size);
      };
      work->run([&] { return handler(request, read); });
    }};
  }
  AgentRequest(const AgentRequest&) = delete;
  AgentRequest& operator=(const AgentRequest&) = delete;
  ~AgentRequest() { give_up(std::chrono::nanoseconds{0}); }

  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] bool is_over() const {
    const std::lock_guard lock{work_->mutex};
    return work_->is_over;
  }
  /// How often the handler has read from a snapshot.
  [[nodiscard]] std::uint64_t num_reads() const noexcept { return work_->num_reads.load(); }
  /// Once it is over. Throws: Error with what the handler has thrown.
  [[nodiscard]] std::vector<std::byte> take_answer() {
    const std::lock_guard lock{work_->mutex};
    if (work_->complaint) throw Error{*work_->complaint};
    return std::move(work_->answer);
  }

  /// Lets the handler read nothing more, waits so long for its end at most, and leaves its thread behind then. Returns
  /// whether it has ended.
  bool give_up(std::chrono::nanoseconds patience) noexcept {
    if (!thread_.joinable()) return true;
    work_->is_given_up.store(true);
    std::unique_lock lock{work_->mutex};
    const bool is_over = work_->ended.wait_for(lock, patience, [this] { return work_->is_over; });
    lock.unlock();
    if (is_over) {
      thread_.join();
    } else {
      thread_.detach();
    }
    return is_over;
  }

 private:
  struct Work {
    std::mutex mutex{};
    std::condition_variable ended{};
    bool is_over = false;
    std::vector<std::byte> answer{};
    std::optional<std::string> complaint{};
    std::atomic<bool> is_given_up{false};
    std::atomic<std::uint64_t> num_reads{0};

    [[nodiscard]] std::span<const std::byte> read(GroupMemory* memory, int rank, int slot, std::size_t begin,
                                                  std::size_t size_bytes) {
      if (is_given_up.load()) throw Error{"this process is about to end, or is not waited for"};
      ++num_reads;
      // As many as there can be: a restart meanwhile counts those that there are anew.
      if (memory == nullptr || rank < 0 || rank >= memory->capacity()) throw Error{"no such worker is here"};
      return memory->filled_snapshot(rank, slot, begin + size_bytes).subspan(begin);
    }

    template <class Handle>
    void run(const Handle& handle) {
      std::vector<std::byte> given;
      std::optional<std::string> why;
      try {
        given = handle();
      } catch (const std::exception& error) {
        why = error.what();
      }
      const std::lock_guard lock{mutex};
      answer = std::move(given);
      complaint = std::move(why);
      is_over = true;
      ended.notify_all();
    }
  };

  std::uint64_t number_;
  std::shared_ptr<Work> work_;
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
