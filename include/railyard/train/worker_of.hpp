// SPDX-License-Identifier: MIT
// The worker with its typed backend: where the training function meets a model of Backend. Train room.
#pragma once

#include "railyard/train/worker.hpp"

#include "railyard/core/backend.hpp"

#include <concepts>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace railyard::inline v0_1 {

/// Is the Worker that a training function with `auto& worker` gets: the backend's own operations are at hand.
template <Backend B>
class WorkerOf final : public Worker {
 public:
  /// link and context must outlive the worker; world is the link's, with the device that the worker was given. The end
  /// of the group ends the backend's waits from here on.
  WorkerOf(WorkerLink& link, const RunContext& context, const World& world, std::unique_ptr<B> backend)
      : Worker(link, context, world), backend_(std::move(backend)) {
    this->link().on_abort([this](std::string_view reason) {
      this->end_waits(reason);
      backend_->abort(reason);
    });
  }
  ~WorkerOf() {
    leave_if_forked();
    this->drop_extensions();  // they may use the backend while they end
    this->link().on_abort({});
  }

  [[nodiscard]] Device device() const noexcept override {
    if constexpr (requires(const B& backend) {
                    { backend.device() } -> std::same_as<Device>;
                  }) {
      return backend_->device();
    } else {
      return {B::device_kind, B::device_kind == DeviceKind::cpu ? 0 : this->device_index().value_or(0)};
    }
  }

  [[nodiscard]] HostMemory* host_memory() noexcept override {
    if constexpr (requires(B & backend) {
                    { backend.host_memory() } -> std::same_as<HostMemory*>;
                  }) {
      return backend_->host_memory();
    } else {
      return nullptr;
    }
  }

  [[nodiscard]] SideLine* side_line() override {
    if constexpr (requires(B & backend, const Deadline& deadline) {
                    { backend.side_line(deadline) } -> std::same_as<SideLine*>;
                  }) {
      return backend_->side_line(this->collective_deadline());
    } else {
      return nullptr;
    }
  }

  [[nodiscard]] DeviceLine* device_line() override {
    if constexpr (requires(B & backend, const Deadline& deadline) {
                    { backend.device_line(deadline) } -> std::same_as<DeviceLine*>;
                  }) {
      return backend_->device_line(this->collective_deadline());
    } else {
      return nullptr;
    }
  }

  [[nodiscard]] B& backend() noexcept {
    this->note_backend();
    return *backend_;
  }

 private:
  // Shows on the page what this worker waits for, and since when: that is how a supervisor tells who is late.
  template <class Operation>
  void carry_out(Operation operation) {
    const Call call{.deadline = this->collective_deadline(), .stream = this->stream()};
    WaitingMark mark{this->page()};
    try {
      auto work = operation(call);
      work.wait(call.deadline);
    } catch (const CollectiveError&) {  // the group is lost: the supervisor reads what this rank waited for last
      mark.keep();
      throw;
    }
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
    ~WaitingMark() {
      if (!is_kept_) page_.waiting_since_ns.store(0, std::memory_order_relaxed);
    }
    void keep() noexcept { is_kept_ = true; }

   private:
    WorkerPage& page_;
    bool is_kept_ = false;
  };

  void do_barrier() override {
    carry_out([&](const Call& call) { return backend_->barrier(call); });
  }
  void do_all_reduce(Buffer data, ReduceOp op) override {
    carry_out([&](const Call& call) { return backend_->all_reduce(data, op, call); });
  }
  void do_broadcast(Buffer data, int root) override {
    carry_out([&](const Call& call) { return backend_->broadcast(data, root, call); });
  }
  void do_all_gather(ConstBuffer in, Buffer out) override {
    carry_out([&](const Call& call) { return backend_->all_gather(in, out, call); });
  }
  void do_all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts) override {
    carry_out([&](const Call& call) { return backend_->all_gather_uneven(in, out, counts, call); });
  }
  void do_reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) override {
    carry_out([&](const Call& call) { return backend_->reduce_scatter(in, out, op, call); });
  }
  void do_gather(ConstBuffer in, Buffer out, int root) override {
    carry_out([&](const Call& call) { return backend_->gather(in, out, root, call); });
  }
  void do_scatter(ConstBuffer in, Buffer out, int root) override {
    carry_out([&](const Call& call) { return backend_->scatter(in, out, root, call); });
  }
  void do_all_to_all(ConstBuffer in, Buffer out) override {
    carry_out([&](const Call& call) { return backend_->all_to_all(in, out, call); });
  }
  void do_send(ConstBuffer data, int to) override {
    carry_out([&](const Call& call) { return backend_->send(data, to, call); });
  }
  void do_receive(Buffer data, int from) override {
    carry_out([&](const Call& call) { return backend_->receive(data, from, call); });
  }

  // A process that the training function has forked must not end what it shares with the worker: the connections, and
  // the report of how the worker ended.
  void leave_if_forked() const noexcept {
    if (::getpid() == process_) return;
    std::fflush(nullptr);
    ::_exit(std::uncaught_exceptions() > 0 ? 1 : 0);
  }

  std::unique_ptr<B> backend_;
  pid_t process_ = ::getpid();
};

}  // namespace railyard::inline v0_1
