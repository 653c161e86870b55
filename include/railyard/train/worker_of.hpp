// SPDX-License-Identifier: MIT
// The worker with its typed backend: where the training function meets a model of Backend. Train room.
#pragma once

#include "railyard/train/detail/joining.hpp"
#include "railyard/train/worker.hpp"

#include "railyard/core/backend.hpp"

#include <chrono>
#include <span>

namespace railyard::inline v0_1 {

/// Is the Worker that a training function with `auto& worker` gets: the backend's own operations are at hand.
template <Backend B>
class WorkerOf final : public Worker {
 public:
  /// Begins to join the group and does not wait for it. link, context and options must outlive the worker.
  WorkerOf(WorkerLink& link, const RunContext& context, const typename B::Options& options,
           std::chrono::nanoseconds start_timeout)
      : Worker(link, context), joining_(link, options, start_timeout) {}
  ~WorkerOf() { this->drop_extensions(); }  // they may use the backend while they end

  [[nodiscard]] Device device() const noexcept override {
    return {B::device_kind, B::device_kind == DeviceKind::cpu ? 0 : this->local_rank()};
  }

  /// Waits until this worker has joined the group. Throws: CollectiveError if it cannot.
  [[nodiscard]] B& backend() { return joining_.backend(); }

 private:
  // Shows on the page what this worker waits for, and since when: that is how a supervisor tells who is late.
  template <class Operation>
  void carry_out(Operation operation) {
    const WaitingMark mark{this->page()};
    B& joined = backend();  // has a deadline of its own
    const Call call{.deadline = Deadline::after(this->context().collective_timeout)};
    auto work = operation(joined, call);
    work.wait(call.deadline);
  }

  class WaitingMark {
   public:
    explicit WaitingMark(WorkerPage& page) noexcept : page_(page) {
      page_.collectives.fetch_add(1, std::memory_order_relaxed);
      const std::chrono::nanoseconds now = Deadline::Clock::now().time_since_epoch();
      page_.waiting_since_ns.store(now.count(), std::memory_order_relaxed);
    }
    WaitingMark(const WaitingMark&) = delete;
    WaitingMark& operator=(const WaitingMark&) = delete;
    ~WaitingMark() { page_.waiting_since_ns.store(0, std::memory_order_relaxed); }

   private:
    WorkerPage& page_;
  };

  void do_barrier() override {
    carry_out([&](B& backend, const Call& call) { return backend.barrier(call); });
  }
  void do_all_reduce(Buffer data, ReduceOp op) override {
    carry_out([&](B& backend, const Call& call) { return backend.all_reduce(data, op, call); });
  }
  void do_broadcast(Buffer data, int root) override {
    carry_out([&](B& backend, const Call& call) { return backend.broadcast(data, root, call); });
  }
  void do_all_gather(ConstBuffer in, Buffer out) override {
    carry_out([&](B& backend, const Call& call) { return backend.all_gather(in, out, call); });
  }
  void do_all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts) override {
    carry_out([&](B& backend, const Call& call) { return backend.all_gather_uneven(in, out, counts, call); });
  }
  void do_reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) override {
    carry_out([&](B& backend, const Call& call) { return backend.reduce_scatter(in, out, op, call); });
  }
  void do_gather(ConstBuffer in, Buffer out, int root) override {
    carry_out([&](B& backend, const Call& call) { return backend.gather(in, out, root, call); });
  }
  void do_scatter(ConstBuffer in, Buffer out, int root) override {
    carry_out([&](B& backend, const Call& call) { return backend.scatter(in, out, root, call); });
  }
  void do_all_to_all(ConstBuffer in, Buffer out) override {
    carry_out([&](B& backend, const Call& call) { return backend.all_to_all(in, out, call); });
  }
  void do_send(ConstBuffer data, int to) override {
    carry_out([&](B& backend, const Call& call) { return backend.send(data, to, call); });
  }
  void do_receive(Buffer data, int from) override {
    carry_out([&](B& backend, const Call& call) { return backend.receive(data, from, call); });
  }

  detail::Joining<B> joining_;
};

}  // namespace railyard::inline v0_1
