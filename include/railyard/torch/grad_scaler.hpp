// SPDX-License-Identifier: MIT
// Scales losses so that gradients in f16 are neither lost nor overflow. Torch room.
#pragma once

#include "railyard/torch/detail/autocast_settings.hpp"
#include "railyard/torch/detail/gradients.hpp"
#include "railyard/torch/detail/loss_scaling.hpp"
#include "railyard/torch/detail/update_digest.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_mul.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how a GradScaler finds its scale. Equal on all ranks.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     ///< of the scale, after growth_interval steps in a row without an overflow
  double backoff_factor = 0.5;  ///< of the scale, after an overflow on any rank
  std::int64_t growth_interval = 2000;
  /// So many steps in a row that are left out are no longer taken for overflows; nor is a scale that falls below 1.
  std::int64_t most_skipped = 20;
  /// false: changes nothing, so that the same loop trains in bf16 or f32.
  bool enabled = true;
};

/// Multiplies losses with a scale, so that their gradients in f16 do not vanish, and divides the gradients by it before
/// they are used. A step that overflows on any rank is left out on all of them, and the scale becomes smaller; after
/// enough steps without one it grows.
///
/// Which step that is, all ranks learn with the exchange of gradients that they make anyway, so that scales are equal
/// everywhere. Gradients that are not finite are what this expects, and ModelOptions::non_finite means: `skip` and
/// `stop` drop such gradients and put running statistics back, `allow` leaves the gradients as they are; step() leaves
/// the update out each time. Where that goes on (GradScalerOptions::most_skipped), `stop` has update() throw on all
/// ranks; otherwise Result::warnings() tells of it.
///
/// Every rank makes one and calls the same functions in the same order, once in a step, after its last micro-batch:
/// scale(loss).backward(), then unscale_(optimizer) if the gradients are clipped or looked at, then step(optimizer),
/// and after all optimizers update(). All losses of a step are scaled. A part of the TrainState; made after
/// prepare_model(), and must not outlive the training function. What a PowerSgdHook has not sent yet is at the scale of
/// its step. Throws: ConfigError if an option makes no sense, if the worker has another GradScaler, or if calls are
/// missing or come twice.
/// Example: scaler.scale(loss).backward(); scaler.unscale_(optimizer); ry::clip_grad_norm_(optimizer, 1.0);
/// scaler.step(optimizer); scaler.update();
class GradScaler {
 public:
  explicit GradScaler(Worker& worker, const GradScalerOptions& options = {})
      : worker_(&worker), options_(options), scale_(options.init_scale) {
    check_options();
    if (!options.enabled) return;
    auto& scalings = worker.extension<detail::LossScalings>();
    if (!scalings.current.expired()) {
      throw ConfigError{detail::compose(
          "GradScaler on rank {}/{}: the worker has one already, and all its models are exchanged together: use that "
          "for all losses and optimizers",
          worker.rank(), worker.world_size())};
    }
    scaling_ = std::make_shared<detail::LossScaling>();
    scalings.current = scaling_;
    scalings.has_any = true;
    tell_scale();
  }

  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// Returns the loss times the scale, in f32 at least.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) {
    if (!is_enabled()) return loss;
    scaling_->is_scaled = true;
    return (detail::is_half(loss) ? loss.to(at::ScalarType::Float) : loss) * scale_;
  }
  /// Returns the scale; 1 if it is not enabled.
  [[nodiscard]] double scale() const noexcept { return is_enabled() ? scale_ : 1; }

  /// Divides the gradients of an optimizer by the scale, so that they can be clipped or looked at; step() does it
  /// otherwise. Cost: one pass over them; of a prepared optimizer over this rank's pieces.
  template <class X>
  void unscale_(PreparedOptimizer<X>& optimizer) {
    if (!is_enabled()) return;
    begin_unscale(&optimizer.inner(), "unscale_()");
    refuse_half(optimizer.param_groups());
    if (!scaling_->is_overflow) optimizer.scale_gradients_(1 / scale_);
    scaling_->unscaled.push_back(&optimizer.inner());
  }
  void unscale_(torch::optim::Optimizer& optimizer) {
    if (!is_enabled()) return;
    begin_unscale(&optimizer, "unscale_()");
    refuse_half(optimizer.param_groups());
    const std::vector<at::Tensor> gradients = gradients_of(optimizer);
    const at::NoGradGuard no_grad;
    if (!scaling_->is_overflow && !gradients.empty()) at::_foreach_mul_(gradients, 1 / scale_);
    scaling_->unscaled.push_back(&optimizer);
  }

  /// Updates the weights, unless a gradient of the step has overflowed on any rank. Returns whether it has, on all
  /// ranks alike.
  template <class X>
  bool step(PreparedOptimizer<X>& optimizer) {
    return step_by(optimizer, &optimizer.inner());
  }
  bool step(torch::optim::Optimizer& optimizer) { return step_by(optimizer, &optimizer); }

  /// Makes the scale that of the next step. Throws: ConfigError if no optimizer has made its step; DataError on all
  /// ranks if ModelOptions::non_finite is `stop` and what goes on is no overflow.
  void update() {
    if (!is_enabled()) return;
    if (scaling_->stepped.empty()) refuse("update()", "there was no step(optimizer) since the last update()");
    if (scaling_->is_overflow) {
      const double before = scale_;
      scale_ = std::max(scale_ * options_.backoff_factor, double{std::numeric_limits<float>::min()});
      num_good_ = 0;
      ++num_skipped_;
      tell_scale();
      scaling_->begin();
      return tell_if_no_overflow(before);
    }
    num_skipped_ = 0;
    if (++num_good_ == options_.growth_interval) {
      const double grown = scale_ * options_.growth_factor;
      if (grown <= double{std::numeric_limits<float>::max()}) scale_ = grown;
      num_good_ = 0;
    }
    tell_scale();
    scaling_->begin();
  }

  [[nodiscard]] bool is_enabled() const noexcept { return scaling_ != nullptr; }

  [[nodiscard]] State state() const {
    return {{"scale", scale_}, {"growth_tracker", num_good_}, {"num_skipped", num_skipped_}};
  }
  void load_state(const State& state) {
    scale_ = state.at("scale").number();
    num_good_ = state.at("growth_tracker").as<std::int64_t>();
    num_skipped_ = state.at("num_skipped").as<std::int64_t>();
    if (is_enabled()) tell_scale();
  }

 private:
  void check_options() const {
    const auto check = [this](bool holds, std::string_view what, double value, std::string_view must) {
      if (holds) return;
      throw ConfigError{detail::compose("GradScaler on rank {}/{}: GradScalerOptions::{} is {}: it must be {}",
                                        worker_->rank(), worker_->world_size(), what, value, must)};
    };
    const GradScalerOptions& o = options_;
    check(o.init_scale > 0 && o.init_scale <= double{std::numeric_limits<float>::max()}, "init_scale", o.init_scale,
          "more than 0, and finite");
    check(o.growth_factor > 1 && std::isfinite(o.growth_factor), "growth_factor", o.growth_factor, "more than 1");
    check(o.backoff_factor > 0 && o.backoff_factor < 1, "backoff_factor", o.backoff_factor, "between 0 and 1");
    check(o.growth_interval > 0, "growth_interval", static_cast<double>(o.growth_interval), "1 or more");
    check(o.most_skipped > 0, "most_skipped", static_cast<double>(o.most_skipped), "1 or more");
  }

  [[noreturn]] void refuse(std::string_view call, std::string_view why) const {
    throw ConfigError{
        detail::compose("GradScaler: {} on rank {}/{}: {}. Call, once in a step: scaler.scale(loss).backward(), "
                        "scaler.unscale_(optimizer) if gradients are clipped, scaler.step(optimizer), and "
                        "scaler.update() after all optimizers",
                        call, worker_->rank(), worker_->world_size(), why)};
  }

  void begin_unscale(const void* optimizer, std::string_view call) const {
    detail::gradient_exchange_of(*worker_)->check_complete(call);
    if (!scaling_->is_scaled) refuse(call, "no loss was scaled since the last update()");
    if (detail::LossScaling::has(scaling_->stepped, optimizer)) {
      refuse(call, "the optimizer has made its step since the last update()");
    }
    if (detail::LossScaling::has(scaling_->unscaled, optimizer)) {
      refuse(call, "the optimizer's gradients have been divided by the scale already");
    }
  }

  template <class Optimizer>
  bool step_by(Optimizer& optimizer, const void* key) {
    if (!is_enabled()) {
      optimizer.step();
      return true;
    }
    if (!detail::LossScaling::has(scaling_->unscaled, key)) unscale_(optimizer);
    if (detail::LossScaling::has(scaling_->stepped, key)) {
      refuse("step()", "the optimizer has made its step since the last update()");
    }
    scaling_->stepped.push_back(key);
    if (scaling_->is_overflow) return false;
    optimizer.step();
    detail::forget_casts();
    return true;
  }

  // What the division by the scale leaves would be too small for the type.
  void refuse_half(const std::vector<torch::optim::OptimizerParamGroup>& groups) const {
    for (const auto& group : groups) {
      for (const at::Tensor& tensor : group.params()) {
        if (tensor.scalar_type() != at::ScalarType::Half) continue;
        throw ConfigError{
            detail::compose("GradScaler on rank {}/{}: an optimizer has a weight of type f16 ({}), in which gradients "
                            "vanish once they are divided by the scale: keep weights in f32 and compute in f16 by "
                            "Autocast, or use prepare_optimizer with PreparedOptimizerOptions::master_weights",
                            worker_->rank(), worker_->world_size(), detail::shape_of(tensor))};
      }
    }
  }

  // Each once: C++ modules list tied parameters twice.
  [[nodiscard]] std::vector<at::Tensor> gradients_of(torch::optim::Optimizer& optimizer) const {
    const auto& exchange = detail::gradient_exchange_of(*worker_);
    std::vector<at::Tensor> gradients;
    std::unordered_set<const void*> seen;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
        if (exchange->find(parameter) == nullptr) {
          throw ConfigError{
              detail::compose("GradScaler on rank {}/{}: an optimizer has a parameter {} of no prepared model, of "
                              "whose gradient nobody "
                              "knows whether it overflows: call prepare_model() for all that is trained",
                              worker_->rank(), worker_->world_size(), detail::shape_of(parameter))};
        }
        exchange->check_complete(parameter, "unscale_()");
        gradients.push_back(parameter.grad());
      }
    }
    return gradients;
  }

  // The ranks compare it with their next gradients.
  void tell_scale() const { worker_->extension<detail::UpdateDigest>().add_scale(scale_); }

  void tell_if_no_overflow(double before) {
    const bool is_small = scale_ < 1 && before >= 1;
    if (!is_small && num_skipped_ != options_.most_skipped) return;
    const std::string what = detail::compose(
        "step {}: the gradient{} is not finite, as those of the last {} steps were not, with a loss that the "
        "GradScaler "
        "has come to scale by {} only: that is no overflow of f16",
        scaling_->step, scaling_->parameter.empty() ? "" : detail::compose(" of \"{}\"", scaling_->parameter),
        num_skipped_, before);
    if (detail::gradient_exchange_of(*worker_)->non_finite() == NonFinite::stop) {
      detail::refuse_not_finite(*worker_, what);
    }
    if (worker_->rank() != 0 || has_told_) return;
    has_told_ = true;
    worker_->warn(what + ". Look for NaNs in the data, lower the learning rate or clip; steps go on being left out");
  }

  Worker* worker_;
  GradScalerOptions options_;
  double scale_;
  std::int64_t num_good_ = 0;     // steps in a row without an overflow, since the scale has changed
  std::int64_t num_skipped_ = 0;  // steps in a row with one
  bool has_told_ = false;
  std::shared_ptr<detail::LossScaling> scaling_{};
};
static_assert(Stateful<GradScaler>);

}  // namespace railyard::inline v0_1
