// SPDX-License-Identifier: MIT
// Counts the GPUs as CUDA does in a rank that is about to use one of them. Collectives room.
#pragma once

#include "railyard/collectives/detail/nccl_library.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/visible_devices.hpp"
#include "railyard/core/error.hpp"

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the number of GPUs as CUDA counts them in this process, which initialises it.
/// Throws: ConfigError with CUDA's words, or if there is none.
[[nodiscard]] inline int count_devices_here(const CudaLibrary& cuda) {
  int count = 0;
  const int code = cuda.get_device_count(&count);
  if (code == cuda_success && count > 0) return count;
  if (code == cuda_initialization_error) {
    throw ConfigError{
        compose("Nccl: CUDA cannot be initialised (CUDA error {}): most likely the program had used CUDA "
                "before its workers were forked; use it in the training function alone, or take Threads",
                code)};
  }
  const char* const reason = code == cuda_success ? "there is none" : cuda.get_error_string(code);
  throw ConfigError{
      compose("Nccl: no GPU can be used: {} (CUDA error {}; {}); is the NVIDIA driver loaded, and is this "
              "process shown a GPU? On CPUs, use Gloo",
              reason, code, visible_devices_text())};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
