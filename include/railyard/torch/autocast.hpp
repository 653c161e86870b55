// SPDX-License-Identifier: MIT
// Computes in bf16 or f16 where that is safe, for as long as a scope lasts. Torch room.
#pragma once

#include "railyard/torch/detail/autocast_settings.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

namespace railyard::inline v0_1 {

/// Says what an Autocast does.
struct AutocastOptions {
  /// bf16, or torch::kHalf (f16), whose gradients need a GradScaler.
  at::ScalarType dtype = at::ScalarType::BFloat16;
  /// false: computes in the tensors' own types, inside a scope that does not.
  bool enabled = true;
};

/// Is a scope in which this thread's matrix products, convolutions and the like compute in bf16 or f16, and what needs
/// the range, such as losses, in f32: LibTorch's own list. Weights stay in f32, and so do their gradients. Enter it for
/// the forward pass and the loss, and leave it before backward(), which goes by what the forward pass did.
///
/// Scopes nest; each leaves everything as it was, also by an exception, and the outermost one forgets the casts of
/// weights. They are forgotten with each step and update as well, so that a scope may also last for the whole loop. A
/// scope ends on the thread where it began. Throws: ConfigError if the device is neither CPU nor CUDA, if the type is
/// another one, or if this LibTorch does not compute in f16 on CPUs: 1.13 does not, 2.15 does.
/// Example: at::Tensor loss; { const ry::Autocast autocast{worker}; loss = loss_of(net->forward(x), y); }
class [[nodiscard]] Autocast {
 public:
  /// On that kind of device. Example: const ry::Autocast exact{torch::kCPU, {.enabled = false}};
  explicit Autocast(at::Device device, const AutocastOptions& options = {})
      : kind_(device.type()), before_(known_settings(device)) {
    apply(options);
    at::autocast::increment_nesting();
  }
  /// On the kind of device that the worker's tensors belong on; see device().
  explicit Autocast(Worker& worker, const AutocastOptions& options = {}) : Autocast(device(worker), options) {}
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) detail::forget_casts();
    before_.apply(kind_);
  }

 private:
  [[nodiscard]] static detail::AutocastSettings known_settings(at::Device device) {
    if (device.is_cpu() || device.is_cuda()) return detail::AutocastSettings::of(device.type());
    throw ConfigError{
        detail::compose("Autocast computes on CPUs and CUDA devices; {} was given: give the device of the model, "
                        "ry::device(worker)",
                        device.str())};
  }

  void apply(const AutocastOptions& options) const {
    if (options.dtype != at::ScalarType::BFloat16 && options.dtype != at::ScalarType::Half) {
      throw ConfigError{
          detail::compose("AutocastOptions::dtype is {}: give torch::kBFloat16, or torch::kHalf with a GradScaler",
                          c10::toString(options.dtype))};
    }
    if (!options.enabled) return detail::AutocastSettings{.is_enabled = false, .dtype = before_.dtype}.apply(kind_);
    try {
      detail::AutocastSettings{.is_enabled = true, .dtype = options.dtype}.apply(kind_);
    } catch (const c10::Error&) {
      throw ConfigError{
          detail::compose("Autocast: LibTorch {} does not compute in {} on CPUs: use torch::kBFloat16, or a newer "
                          "LibTorch (2.15 does)",
                          TORCH_VERSION, c10::toString(options.dtype))};
    }
  }

  at::DeviceType kind_;
  detail::AutocastSettings before_;
};

}  // namespace railyard::inline v0_1
