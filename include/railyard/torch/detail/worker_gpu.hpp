// SPDX-License-Identifier: MIT
// The GPU of a worker as LibTorch knows it: what is current on its thread, and what it draws random numbers from.
// Needs none of CUDA's headers, and asks nothing of CUDA where the worker has no GPU. Torch room.
#pragma once

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include <dlfcn.h>

namespace railyard::inline v0_1 {

namespace detail {

// That of the worker whose training function runs on this thread; nothing if it has none.
[[nodiscard]] inline std::optional<at::Device>& gpu_of_thread() {
  static thread_local std::optional<at::Device> gpu;
  return gpu;
}

// The stream on which LibTorch puts what this thread computes on a GPU.
[[nodiscard]] inline Stream current_stream(at::Device gpu) {
  const c10::Stream stream = c10::impl::getDeviceGuardImpl(gpu.type())->getStream(gpu);
  if (stream.id() == 0) return {};  // CUDA's default stream
  // cudaStream_t c10::cuda::CUDAStream::stream() const, of a class that holds a c10::Stream and nothing else.
  using Handle = void* (*)(const c10::Stream*);
  static const auto handle = reinterpret_cast<Handle>(::dlsym(RTLD_DEFAULT, "_ZNK3c104cuda10CUDAStream6streamEv"));
  if (handle == nullptr) {
    throw ConfigError{compose(
        "a collective on {} while another stream than CUDA's default one is current: libc10_cuda of this program does "
        "not show its streams; use the default stream",
        gpu.str())};
  }
  return {handle(&stream)};
}

// Makes the worker's GPU the current one of this thread, whose streams order the worker's collectives from here on. A
// LibTorch without CUDA has no such thing, and says so when the first tensor is made there.
inline void enter_gpu(Worker& worker, at::Device gpu) {
  if (!c10::impl::hasDeviceGuardImpl(gpu.type())) return;
  c10::impl::getDeviceGuardImpl(gpu.type())->setDevice(gpu);
  gpu_of_thread() = gpu;
  worker.on_stream([gpu] { return current_stream(gpu); });
}

// LibTorch seeds the generators of all GPUs alike; here that of this thread's GPU gets a seed of its own.
inline void seed_gpu(std::uint64_t seed) {
  const std::optional<at::Device> gpu = gpu_of_thread();
  if (!gpu) return;
  at::Generator generator = at::globalContext().defaultGenerator(*gpu);
  const std::lock_guard lock{generator.mutex()};
  generator.set_current_seed(seed);
}

// Throws: ConfigError if the backend is for GPUs and this program's LibTorch is not.
inline void check_libtorch_knows_gpus(const Worker& worker) {
  if (worker.device().kind != DeviceKind::cuda || c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return;
  throw ConfigError{
      compose("prepare_model() on rank {}/{}: the backend is for GPUs, and this program's LibTorch has no CUDA. Link a "
              "LibTorch "
              "that has: with CMake, RAILYARD_LIBTORCH names it, and RAILYARD_LIBTORCH_CUDA is ON; by hand, "
              "-Wl,--no-as-needed -ltorch_cuda",
              worker.rank(), worker.world_size())};
}

// A LibTorch with CUDA begins a thread for each GPU with the first backward pass of a process, be it on CPUs; in what
// is forked from it none can be run. Throws: ConfigError there.
inline void check_backward_works(const Worker& worker) {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return;
  const c10::AutoGradMode with_graph{true};
  const at::Tensor one = at::ones({1}).set_requires_grad(true);
  try {
    one.sum().backward();
  } catch (const c10::Error& error) {
    throw ConfigError{
        compose("prepare_model() on rank {}/{}: no backward pass can be run in this process, which was forked from one "
                "that had "
                "run backward() before, whose threads for GPUs it lacks ({}). Run what comes before fit() without "
                "backward(), or "
                "in a training function of its own, or use Launched",
                worker.rank(), worker.world_size(), error.what_without_backtrace())};
  }
}

}  // namespace detail

}  // namespace railyard::inline v0_1
