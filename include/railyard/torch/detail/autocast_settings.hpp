// SPDX-License-Identifier: MIT
// What LibTorch's autocasting is set to on a thread, whatever the release. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/version.h>

namespace railyard::inline v0_1 {

namespace detail {

// Inside an autocast scope LibTorch keeps the casts of weights until the outermost one is left. Where weights are
// updated inside, the next forward pass would go on with the old ones. Cost: nothing worth naming outside a scope.
inline void forget_casts() { at::autocast::clear_cache(); }

// Of one kind of device, CPU or CUDA.
struct AutocastSettings {
  bool is_enabled = false;
  at::ScalarType dtype = at::ScalarType::BFloat16;

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  [[nodiscard]] static AutocastSettings of(at::DeviceType kind) {
    return {.is_enabled = at::autocast::is_autocast_enabled(kind), .dtype = at::autocast::get_autocast_dtype(kind)};
  }
  // Throws: c10::Error, having changed nothing, if the release does not know the type there.
  void apply(at::DeviceType kind) const {
    at::autocast::set_autocast_dtype(kind, dtype);
    at::autocast::set_autocast_enabled(kind, is_enabled);
  }
#else
  [[nodiscard]] static AutocastSettings of(at::DeviceType kind) {
    if (kind == at::DeviceType::CPU) {
      return {.is_enabled = at::autocast::is_cpu_enabled(), .dtype = at::autocast::get_autocast_cpu_dtype()};
    }
    return {.is_enabled = at::autocast::is_enabled(), .dtype = at::autocast::get_autocast_gpu_dtype()};
  }
  void apply(at::DeviceType kind) const {
    if (kind == at::DeviceType::CPU) {
      at::autocast::set_autocast_cpu_dtype(dtype);
      at::autocast::set_cpu_enabled(is_enabled);
    } else {
      at::autocast::set_autocast_gpu_dtype(dtype);
      at::autocast::set_enabled(is_enabled);
    }
  }
#endif
};

}  // namespace detail

}  // namespace railyard::inline v0_1
