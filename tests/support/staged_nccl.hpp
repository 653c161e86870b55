// SPDX-License-Identifier: MIT
// Nccl for buffers on the host, which are copied to the device and back: so every law of Backend can be tried on it.
// Runs on the fakes of tests/fakes, or, with RAILYARD_TEST_GPU=1, on the GPU of this host, which all ranks share.
#pragma once

#include "railyard/collectives/nccl.hpp"

#include "support/places.hpp"

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard_test {

namespace ry = railyard;

[[nodiscard]] inline bool has_gpu() { return std::getenv("RAILYARD_TEST_GPU") != nullptr; }

[[nodiscard]] inline ry::Nccl::Options nccl_options() {
  if (has_gpu()) return {.device = 0};
  return {.nccl_library = path_of_fake("fake_nccl"), .cudart_library = path_of_fake("fake_cudart")};
}

[[nodiscard]] inline std::unique_ptr<ry::Nccl> connect_nccl(const ry::World& world, ry::Store& store,
                                                            const ry::Deadline& deadline) {
  // NCCL refuses two ranks on one GPU, if it knows that they are.
  if (has_gpu()) ::setenv("NCCL_HOSTID", std::to_string(world.rank).c_str(), 1);
  return ry::Nccl::connect(nccl_options(), world, store, deadline);
}

/// Is memory of a device with a copy of what a buffer holds.
class Staged {
 public:
  Staged(const ry::detail::CudaLibrary& cuda, ry::Device device, const ry::ConstBuffer& host)
      : cuda_(&cuda), buffer_{nullptr, host.count, host.dtype, device} {
    // Whatever is not on this host's side, and what nobody may read, is passed on for Nccl to refuse.
    if (host.device.kind != ry::DeviceKind::cpu || host.data == nullptr || host.count == 0) {
      buffer_ = {const_cast<void*>(host.data), host.count, host.dtype, device};
      return;
    }
    cuda.require(cuda.malloc(&memory_, host.size_bytes()), "cudaMalloc");
    buffer_.data = memory_;
    copy(memory_, host.data);
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    if (memory_ != nullptr) cuda_->free(memory_);
  }

  [[nodiscard]] const ry::Buffer& buffer() const { return buffer_; }
  void copy_to(const ry::Buffer& host) const {
    if (memory_ != nullptr) copy(host.data, memory_);
  }

 private:
  void copy(void* to, const void* from) const {
    cuda_->require(cuda_->memcpy_async(to, from, buffer_.size_bytes(), ry::detail::cuda_memcpy_default, nullptr),
                   "cudaMemcpyAsync");
  }

  const ry::detail::CudaLibrary* cuda_;
  ry::Buffer buffer_;
  void* memory_ = nullptr;
};

class StagedNccl {
 public:
  static constexpr std::string_view name = "Nccl from the host";
  static constexpr ry::Reach reach = ry::Reach::network;
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cpu;
  static constexpr bool sends_ahead = true;
  struct Options {};

  static void check(const Options& /*options*/) { ry::Nccl::check(nccl_options()); }
  static std::unique_ptr<StagedNccl> connect(const Options& /*options*/, const ry::World& world, ry::Store& store,
                                             const ry::Deadline& deadline) {
    auto backend = std::make_unique<StagedNccl>();
    backend->nccl_ = connect_nccl(world, store, deadline);
    backend->world_ = world;
    return backend;
  }

  ry::FinishedWork all_reduce(ry::Buffer data, ry::ReduceOp op, const ry::Call& call) {
    static_cast<void>(arguments().all_reduce(data, op));
    return on_device({}, data, call, [&](auto, ry::Buffer out) { return nccl_->all_reduce(out, op, call); });
  }
  ry::FinishedWork reduce_scatter(ry::ConstBuffer in, ry::Buffer out, ry::ReduceOp op, const ry::Call& call) {
    static_cast<void>(arguments().reduce_scatter(in, out, op));
    return on_device(in, out, call,
                     [&](ry::Buffer from, ry::Buffer to) { return nccl_->reduce_scatter(from, to, op, call); });
  }
  ry::FinishedWork broadcast(ry::Buffer data, int root, const ry::Call& call) {
    return on_device({}, data, call, [&](auto, ry::Buffer out) { return nccl_->broadcast(out, root, call); });
  }
  ry::FinishedWork all_gather(ry::ConstBuffer in, ry::Buffer out, const ry::Call& call) {
    return on_device(in, out, call, [&](ry::Buffer from, ry::Buffer to) { return nccl_->all_gather(from, to, call); });
  }
  ry::FinishedWork all_gather_uneven(ry::ConstBuffer in, ry::Buffer out, std::span<const std::size_t> counts,
                                     const ry::Call& call) {
    return on_device(in, out, call,
                     [&](ry::Buffer from, ry::Buffer to) { return nccl_->all_gather_uneven(from, to, counts, call); });
  }
  ry::FinishedWork gather(ry::ConstBuffer in, ry::Buffer out, int root, const ry::Call& call) {
    return on_device(in, out, call,
                     [&](ry::Buffer from, ry::Buffer to) { return nccl_->gather(from, to, root, call); });
  }
  ry::FinishedWork scatter(ry::ConstBuffer in, ry::Buffer out, int root, const ry::Call& call) {
    return on_device(in, out, call,
                     [&](ry::Buffer from, ry::Buffer to) { return nccl_->scatter(from, to, root, call); });
  }
  ry::FinishedWork all_to_all(ry::ConstBuffer in, ry::Buffer out, const ry::Call& call) {
    return on_device(in, out, call, [&](ry::Buffer from, ry::Buffer to) { return nccl_->all_to_all(from, to, call); });
  }
  ry::FinishedWork barrier(const ry::Call& call) {
    nccl_->barrier(call).wait(call.deadline);
    return {};
  }
  ry::FinishedWork send(ry::ConstBuffer data, int peer, const ry::Call& call) {
    return on_device(data, {}, call, [&](ry::Buffer from, auto) { return nccl_->send(from, peer, call); });
  }
  ry::FinishedWork receive(ry::Buffer data, int peer, const ry::Call& call) {
    return on_device({}, data, call, [&](auto, ry::Buffer to) { return nccl_->receive(to, peer, call); });
  }
  void abort(std::string_view reason) noexcept { nccl_->abort(reason); }

 private:
  // What depends on where buffers lie is checked before they are copied.
  [[nodiscard]] ry::detail::Arguments arguments() const { return {world_, device_kind}; }

  template <class Start>
  ry::FinishedWork on_device(const ry::ConstBuffer& in, const ry::Buffer& out, const ry::Call& call,
                             const Start& start) {
    const ry::detail::DeviceGuard guard{cuda_, nccl_->device().index};
    const Staged from{cuda_, nccl_->device(), in};
    const Staged to{cuda_, nccl_->device(), out};
    auto work = start(from.buffer(), to.buffer());
    work.wait(call.deadline);
    to.copy_to(out);
    return {};
  }

  ry::World world_{};
  ry::detail::CudaLibrary cuda_{nccl_options().cudart_library};
  std::unique_ptr<ry::Nccl> nccl_{};
};
static_assert(ry::Backend<StagedNccl>);

/// Is Nccl as it is, on the fakes or, for as many ranks as there are processes, on one GPU.
class TestNccl {
 public:
  static constexpr std::string_view name = "Nccl of tests";
  static constexpr ry::Reach reach = ry::Reach::network;
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cuda;
  static constexpr bool sends_ahead = true;
  struct Options {};

  TestNccl(const ry::World& world, ry::Store& store, const ry::Deadline& deadline)
      : nccl_(connect_nccl(world, store, deadline)), world_(world) {}

  static void check(const Options& /*options*/) { ry::Nccl::check(nccl_options()); }
  static std::unique_ptr<TestNccl> connect(const Options& /*options*/, const ry::World& world, ry::Store& store,
                                           const ry::Deadline& deadline) {
    return std::make_unique<TestNccl>(world, store, deadline);
  }
  [[nodiscard]] ry::Device device() const noexcept { return nccl_->device(); }
  [[nodiscard]] ry::DeviceLine* device_line(const ry::Deadline& deadline) { return nccl_->device_line(deadline); }

  auto all_reduce(ry::Buffer data, ry::ReduceOp op, const ry::Call& call) { return nccl_->all_reduce(data, op, call); }
  auto reduce_scatter(ry::ConstBuffer in, ry::Buffer out, ry::ReduceOp op, const ry::Call& call) {
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
  void abort(std::string_view reason) noexcept { nccl_->abort(reason); }

 protected:
  [[nodiscard]] const ry::World& world() const { return world_; }

 private:
  std::unique_ptr<ry::Nccl> nccl_;
  ry::World world_;
};
static_assert(ry::Backend<TestNccl>);

/// Is the same for buffers of the host alone, whose operations are done when they return.
class HostNccl : public TestNccl {
 public:
  static constexpr std::string_view name = "Nccl given the host's";
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cpu;

  using TestNccl::TestNccl;
  static std::unique_ptr<HostNccl> connect(const Options& /*options*/, const ry::World& world, ry::Store& store,
                                           const ry::Deadline& deadline) {
    return std::make_unique<HostNccl>(world, store, deadline);
  }

  auto all_reduce(ry::Buffer data, ry::ReduceOp op, const ry::Call& call) {
    static_cast<void>(ry::detail::Arguments{world(), device_kind}.all_reduce(data, op));  // of a device there is none
    return TestNccl::all_reduce(data, op, call);
  }
  ry::FinishedWork barrier(const ry::Call& call) {
    TestNccl::barrier(call).wait(call.deadline);
    return {};
  }
};
static_assert(ry::Backend<HostNccl>);

}  // namespace railyard_test
