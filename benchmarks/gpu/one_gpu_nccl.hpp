// SPDX-License-Identifier: MIT
// Nccl for several ranks on one GPU, whose reductions can be made slower.
#pragma once

#include <railyard/railyard.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace bench {

namespace ry = railyard;

/// Is what all objects of OneGpuNccl of a process do with reductions on the device.
struct Reductions {
  std::mutex mutex{};
  std::chrono::microseconds delay{0};  // before each, on its stream
  std::vector<std::size_t> counts{};   // of elements, one for each since it was cleared

  static Reductions& of_process() {
    static Reductions all;
    return all;
  }
};

class OneGpuNccl {
 public:
  static constexpr std::string_view name = "Nccl on one GPU";
  static constexpr ry::Reach reach = ry::Reach::network;
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cuda;
  static constexpr bool sends_ahead = true;
  struct Options {};

  explicit OneGpuNccl(std::unique_ptr<ry::Nccl> nccl) : nccl_(std::move(nccl)) {}

  static void check(const Options& /*options*/) { ry::Nccl::check({.device = 0}); }
  static std::unique_ptr<OneGpuNccl> connect(const Options& /*options*/, const ry::World& world, ry::Store& store,
                                             const ry::Deadline& deadline) {
    // NCCL refuses two ranks on one GPU, if it knows that they are.
    ::setenv("NCCL_HOSTID", std::to_string(world.rank).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    return std::make_unique<OneGpuNccl>(ry::Nccl::connect({.device = 0}, world, store, deadline));
  }
  [[nodiscard]] ry::Device device() const noexcept { return nccl_->device(); }

  auto all_reduce(ry::Buffer data, ry::ReduceOp op, const ry::Call& call) {
    note(data.device, data.count, call);
    return nccl_->all_reduce(data, op, call);
  }
  auto reduce_scatter(ry::ConstBuffer in, ry::Buffer out, ry::ReduceOp op, const ry::Call& call) {
    note(in.device, in.count, call);
    return nccl_->reduce_scatter(in, out, op, call);
  }
  auto broadcast(ry::Buffer data, int root, const ry::Call& call) { return nccl_->broadcast(data, root, call); }
  auto all_gather(ry::ConstBuffer in, ry::Buffer out, const ry::Call& call) { return nccl_->all_gather(in, out, call); }
  auto all_gather_uneven(ry::ConstBuffer in, ry::Buffer out, std::span<const std::size_t> counts,
                         const ry::Call& call) {
    return nccl_->all_gather_uneven(in, out, counts, call);
  }
  auto gather(ry::ConstBuffer in, ry::Buffer out, int root, const ry::Call& call) {
    return nccl_->gather(in, out, root, call);
  }
  auto scatter(ry::ConstBuffer in, ry::Buffer out, int root, const ry::Call& call) {
    return nccl_->scatter(in, out, root, call);
  }
  auto all_to_all(ry::ConstBuffer in, ry::Buffer out, const ry::Call& call) { return nccl_->all_to_all(in, out, call); }
  auto barrier(const ry::Call& call) { return nccl_->barrier(call); }
  auto send(ry::ConstBuffer data, int peer, const ry::Call& call) { return nccl_->send(data, peer, call); }
  auto receive(ry::Buffer data, int peer, const ry::Call& call) { return nccl_->receive(data, peer, call); }
  // What goes by it is neither noted nor made slower.
  [[nodiscard]] ry::DeviceLine* device_line(const ry::Deadline& deadline) { return nccl_->device_line(deadline); }
  void abort(std::string_view reason) noexcept { nccl_->abort(reason); }

 private:
  // Numbers of the host are none of those that overlap with a backward pass.
  static void note(ry::Device device, std::size_t count, const ry::Call& call) {
    if (device.kind != ry::DeviceKind::cuda) return;
    Reductions& all = Reductions::of_process();
    const std::lock_guard lock{all.mutex};
    all.counts.push_back(count);
    if (all.delay.count() == 0) return;
    using LaunchHostFunction = int (*)(void*, void (*)(void*), void*);
    static const auto launch = reinterpret_cast<LaunchHostFunction>(::dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc"));
    const auto wait = [](void* delay) { std::this_thread::sleep_for(*static_cast<std::chrono::microseconds*>(delay)); };
    if (launch == nullptr || launch(call.stream.handle, wait, &all.delay) != 0) {
      throw std::runtime_error{"cudaLaunchHostFunc cannot be called"};
    }
  }

  std::unique_ptr<ry::Nccl> nccl_;
};
static_assert(ry::Backend<OneGpuNccl>);

}  // namespace bench
