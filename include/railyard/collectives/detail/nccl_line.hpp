// SPDX-License-Identifier: MIT
// The second line of operations of a group of GPUs, which the host does not wait for. Collectives room.
#pragma once

#include "railyard/collectives/detail/nccl_group.hpp"
#include "railyard/collectives/detail/nccl_library.hpp"
#include "railyard/collectives/shared_memory.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/device_line.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <cstddef>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is another group of the same ranks beside their first one, with a stream of its own, and with memory that they share
/// for numbers of the host. The failure of any of them is that of all: what waits on a device for another rank would
/// wait for ever.
template <class Nccl>
class NcclLine final : public DeviceLine {
 public:
  /// owner, whose world and store these are, outlives it.
  NcclLine(const CudaLibrary& cuda, const World& world, Store& store, Nccl& owner, std::unique_ptr<Nccl> nccl,
           const Deadline& deadline)
      : cuda_(cuda), owner_(&owner), nccl_(std::move(nccl)), host_(connect_host(world, store, deadline)) {
    const DeviceGuard guard{cuda_, device()};
    cuda_.require(cuda_.event_create(&event_, cuda_event_disable_timing), "cudaEventCreateWithFlags");
    cuda_.require(cuda_.stream_create_with_priority(&stream_, cuda_stream_non_blocking, first_of_all),
                  "cudaStreamCreateWithPriority");
    nccl_->group_->on_failure([this](std::string_view reason) { end_all_but(nccl_.get(), reason); });
    owner.group_->on_failure([this](std::string_view reason) { end_all_but(owner_, reason); });
  }
  NcclLine(const NcclLine&) = delete;
  NcclLine& operator=(const NcclLine&) = delete;
  ~NcclLine() override {
    owner_->group_->on_failure({});
    nccl_->group_->on_failure({});
    cuda_.event_destroy(event_);
    cuda_.stream_destroy(stream_);
  }

  void all_reduce(Buffer data, ReduceOp op, const Call& call) override {
    put(call, [&](const Call& here) { return nccl_->all_reduce(data, op, here); });
  }
  void reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) override {
    put(call, [&](const Call& here) { return nccl_->reduce_scatter(in, out, op, here); });
  }
  void all_gather(ConstBuffer in, Buffer out, const Call& call) override {
    put(call, [&](const Call& here) { return nccl_->all_gather(in, out, here); });
  }
  void join(const Call& call) override {
    const DeviceGuard guard{cuda_, device()};
    order(stream_, call.stream.handle);
    if (last_) joined_.push_back(std::move(last_));
    while (joined_.size() > most_ahead) {
      joined_.front()->wait(call.deadline);
      joined_.pop_front();
    }
  }
  void wait(const Deadline& deadline) override {
    for (; !joined_.empty(); joined_.pop_front()) joined_.front()->wait(deadline);
    if (last_) last_->wait(deadline);
  }

  void add_on_host(Buffer numbers, const Call& call) override {
    if (!host_) {
      owner_->all_reduce(numbers, ReduceOp::sum, call).wait(call.deadline);
      return;
    }
    try {
      host_->all_reduce(numbers, ReduceOp::sum, call);
    } catch (const CollectiveError& error) {
      end_all_but(nullptr, error.what());
      throw;
    }
  }

  void abort(std::string_view reason) noexcept override { end_all_but(nullptr, reason); }
  /// The same where the owner has been ended already.
  void end(std::string_view reason) noexcept { end_all_but(owner_, reason); }

 private:
  using Started = decltype(std::declval<Nccl&>().all_reduce(Buffer{}, ReduceOp::sum, Call{}));

  static constexpr int first_of_all = -1000;  // CUDA takes the highest priority that there is

  [[nodiscard]] static std::unique_ptr<SharedMemory> connect_host(const World& world, Store& store,
                                                                  const Deadline& deadline) {
    if (world.local_size != world.size) return nullptr;
    try {
      return SharedMemory::connect({.arena_bytes = std::size_t{1} << 20U}, world, store, deadline);
    } catch (const ConfigError&) {  // on all ranks alike: they are in containers that do not see each other
      return nullptr;
    }
  }
  [[nodiscard]] int device() const noexcept { return nccl_->device().index; }

  template <class Start>
  void put(const Call& call, const Start& start) {
    const DeviceGuard guard{cuda_, device()};
    order(call.stream.handle, stream_);
    last_ = std::make_unique<Started>(start(Call{.deadline = call.deadline, .stream = {stream_}}));
  }
  void order(void* first, void* then) const {
    cuda_.require(cuda_.event_record(event_, first), "cudaEventRecord");
    cuda_.require(cuda_.stream_wait_event(then, event_, 0), "cudaStreamWaitEvent");
  }

  void end_all_but(const Nccl* failed, std::string_view reason) noexcept {
    if (failed != owner_) owner_->group_->abort(reason);
    if (failed != nccl_.get()) nccl_->group_->abort(reason);
    if (host_) host_->abort(reason);
  }

  CudaLibrary cuda_;
  Nccl* owner_;
  std::unique_ptr<Nccl> nccl_;
  std::unique_ptr<SharedMemory> host_;  // where the ranks are of one host
  void* stream_ = nullptr;
  void* event_ = nullptr;
  std::unique_ptr<Started> last_{};                // since the last join()
  std::deque<std::unique_ptr<Started>> joined_{};  // the last before each join()
};

}  // namespace detail
}  // namespace railyard::inline v0_1
