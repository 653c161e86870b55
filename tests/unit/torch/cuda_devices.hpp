// SPDX-License-Identifier: MIT
// Workers with a GPU each: on the fakes of tests/fakes, or, with RAILYARD_TEST_GPU=1, on the GPU of this host, which
// all of them share.
#pragma once

#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "fit.hpp"
#include "support/catch.hpp"
#include "support/fake_gpus.hpp"
#include "support/places.hpp"
#include "support/staged_nccl.hpp"

#include <optional>
#include <utility>

#include <dlfcn.h>

namespace test {

using railyard_test::FakeGpus;
using railyard_test::has_gpu;
using railyard_test::TestNccl;

// Four GPUs, as NVML, CUDA's libraries and LibTorch show them: as many in all tests, for LibTorch counts them once.
struct FakeDevices {
  FakeDevices() {
    if (has_gpu()) return;
    gpus.emplace(4);
    if (::dlopen(railyard_test::path_of_fake("fake_torch_cuda").c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
      FAIL(::dlerror());
  }
  std::optional<FakeGpus> gpus{};
};

// Ranks that share a GPU are processes, or NCCL would not take them.
template <class Function>
ry::Result on_devices(int num_workers, Function function) {
  if (has_gpu()) return try_run<TestNccl, ry::Processes>(num_workers, std::move(function));
  return try_run<TestNccl, ry::Threads>(num_workers, std::move(function));
}
template <class Function>
ry::Result on_processes(int num_workers, Function function) {
  return try_run<TestNccl, ry::Processes>(num_workers, std::move(function));
}

// How often the host has waited for a device, as the fakes have counted.
inline unsigned long host_waits(int device) {
  void* const library = ::dlopen(railyard_test::path_of_fake("fake_cudart").c_str(), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<unsigned long (*)(int)>(::dlsym(library, "fake_cuda_host_waits"))(device);
}

}  // namespace test
