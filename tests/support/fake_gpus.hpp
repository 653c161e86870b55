// SPDX-License-Identifier: MIT
// A host with GPUs that are not there: the fakes of tests/fakes in the place of NVIDIA's libraries.
#pragma once

#include "support/places.hpp"
#include "support/setting.hpp"

#include <cstdlib>
#include <string>

#include <dlfcn.h>

namespace railyard_test {

/// Is a host with so many GPUs, as NVML and the CUDA driver tell them; without CUDA_VISIBLE_DEVICES.
class FakeGpus {
 public:
  explicit FakeGpus(int count) : count_("RAILYARD_FAKE_CUDA_DEVICES", std::to_string(count)) {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }

  /// Does what a program does that uses CUDA; forget_cuda() makes it one that never has.
  static void use_cuda() { driver_call<int(unsigned)>("cuInit")(0); }
  static void forget_cuda() { driver_call<void()>("fake_cuda_forget")(); }

 private:
  template <class Function>
  static Function* driver_call(const char* name) {
    void* const driver = ::dlopen(path_of_fake("fake_cuda").c_str(), RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Function*>(::dlsym(driver, name));
  }

  Setting nvml_{"RAILYARD_NVML_LIBRARY", path_of_fake("fake_nvml")};
  Setting driver_{"RAILYARD_CUDA_LIBRARY", path_of_fake("fake_cuda")};
  Setting count_;
};

/// Takes a library away from such a host, or another part of it.
[[nodiscard]] inline Setting no_nvml() { return {"RAILYARD_NVML_LIBRARY", "/nowhere/libnvidia-ml.so.1"}; }
[[nodiscard]] inline Setting no_driver() { return {"RAILYARD_CUDA_LIBRARY", "/nowhere/libcuda.so.1"}; }
[[nodiscard]] inline Setting visible(const std::string& list) { return {"CUDA_VISIBLE_DEVICES", list}; }

}  // namespace railyard_test
