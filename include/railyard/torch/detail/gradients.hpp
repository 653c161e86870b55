// SPDX-License-Identifier: MIT
// Averages gradients over the global batch at the end of every backward pass. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/autocast_settings.hpp"
#include "railyard/torch/detail/backward_depth.hpp"
#include "railyard/torch/detail/bucket_schedule.hpp"
#include "railyard/torch/detail/ended_slots.hpp"
#include "railyard/torch/detail/gradient_overlap.hpp"
#include "railyard/torch/detail/gradient_refusals.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/loss_scaling.hpp"
#include "railyard/torch/detail/pass_exchange.hpp"
#include "railyard/torch/detail/replaced_weights.hpp"
#include "railyard/torch/detail/running_statistics.hpp"
#include "railyard/torch/detail/step_clock.hpp"
#include "railyard/torch/detail/step_window.hpp"
#include "railyard/torch/detail/watched_models.hpp"
#include "railyard/torch/detail/weight_watch.hpp"
#include "railyard/torch/model_options.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The gradients of all prepared models of one worker.
//
// The accumulator of each parameter has a hook. The first hook of a backward pass queues one callback at the pass's
// end, and that callback exchanges: first the number of samples behind the pass and who has used which parameter, then
// the gradients that anybody has used. With overlap, hooks hand over each bucket of gradients that is complete, which
// is exchanged meanwhile, and the callback does the rest; on a device the gradients come first, see DeviceReduction.
//
// What is averaged is all of .grad, not what the pass has added. That is the same: what was there before is equal on
// all ranks, and the weights sum to one. So several passes per step add up as they do on a single worker.
//
// Where a step has several micro-batches, each gradient is multiplied with its micro-batch's samples before it is
// accumulated, and only the last micro-batch's pass exchanges.
class GradientExchange {
 public:
  explicit GradientExchange(Worker& worker) : worker_(&worker), exchange_(worker), overlap_(worker, exchange_) {}
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Forgets models that are gone. All ranks call it before they take another in.
  void drop_ended_models() {
    if (!drop_ended(*worker_, slots_, models_)) return;
    known_.clear();
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      known_.emplace(slots_[index].parameter.unsafeGetTensorImpl(), index);
    }
    overlap_.forget_order(slots_.size());
    weight_watch_.reset(slots_);
  }

  // Takes a model's parameter in, which has rank 0's values. One that is known already, such as a tied one, is hooked
  // anew if need be.
  static void add(const std::shared_ptr<GradientExchange>& self, const std::string& name, const at::Tensor& parameter) {
    const auto [known, is_new] = self->known_.emplace(parameter.unsafeGetTensorImpl(), self->slots_.size());
    if (is_new) {
      self->slots_.push_back({.name = name, .parameter = parameter});
      hook(self, self->slots_.size() - 1);
    }
    GradientSlot& slot = self->slots_[known->second];
    slot.has_begun = false;
    if (slot.has_lost_hook() || slot.has_other_shape()) hook(self, known->second);
    slot.storage = StorageMark{parameter};
  }

  // The slot of a parameter, nullptr if it is of no prepared model.
  [[nodiscard]] GradientSlot* find(const at::Tensor& parameter) {
    const auto known = known_.find(parameter.unsafeGetTensorImpl());
    return known == known_.end() ? nullptr : &slots_[known->second];
  }

  // This rank's piece of a parameter whose weights ranks share, which the parameter's hook knows; nullptr of any other.
  [[nodiscard]] static std::shared_ptr<GradientPiece> piece_of(const at::Tensor& parameter) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
    if (!accumulator) return nullptr;
    for (const auto& any : accumulator->post_hooks()) {
      const auto* hook = dynamic_cast<const Hook*>(any.get());
      const auto exchange = hook == nullptr ? nullptr : hook->exchange();
      if (exchange == nullptr) continue;
      if (const GradientSlot* slot = exchange->find(parameter)) return slot->piece.lock();
    }
    return nullptr;
  }

  // Throws: ConfigError if micro-batches of a step that is not exchanged have added to the parameter's gradient.
  void check_complete(const at::Tensor& parameter, std::string_view call) {
    if (!window_.is_accumulating) return;
    if (const GradientSlot* slot = find(parameter); slot != nullptr && slot->is_weighted) {
      refuse_early(*worker_, call, window_.step);
    }
  }

  // The same of any parameter.
  void check_complete(std::string_view call) const {
    if (!window_.is_last) refuse_early(*worker_, call, window_.step);
  }

  // Watches a model whose parameters have been added, for as long as it lives.
  void watch(const torch::nn::Module& module) { models_.add(module); }

  [[nodiscard]] StepClock& clock() noexcept { return clock_; }

  // Whether an optimizer may share the weights: the ranks of a host see each other's memory, and gradients are summed
  // there.
  [[nodiscard]] bool can_share_weights() const { return exchange_.has_host() && !options_.comm_hook; }

  // Where gradients that were summed on the device lie, bucket after bucket, from the end of a pass on; nullptr where
  // they are not.
  [[nodiscard]] const GradientArena* arena() const noexcept { return exchange_.arena(); }

  [[nodiscard]] NonFinite non_finite() const noexcept { return options_.non_finite; }
  [[nodiscard]] AnyCommHook& comm_hook() noexcept { return options_.comm_hook; }

  // Takes over what prepare_model() was told, after watch(): the same on all ranks, and for all models. A model that is
  // the only one may get others when it is prepared again.
  void set_options(const ModelOptions& options) {
    check_options_are_equal(*worker_, describe(options));
    const bool has_optimizer =
        std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return !slot.piece.expired(); });
    if (models_.models().size() > 1 || has_optimizer) refuse_other_options(*worker_, options_, options);
    options_ = options;
    before_step_.forget();
    overlap_.reset(slots_.size(), options_, place());
    compares_weights_ = options.compare_weights;
    weight_watch_.reset(slots_);
    note_bucket_sizes(*worker_, options);
  }

  // Tells the user, at the end of training, of steps that have left no trace, and of parameters that have learnt
  // nothing.
  void warn_at_end() const {
    warn_of_skipped();
    if (clock_.has_steps()) warn_of_untrained(*worker_, slots_);
  }

  void warn_of_skipped() const {
    // Overflows are how a GradScaler finds its scale.
    if (worker_->extension<LossScalings>().has_any && clock_.skipped() < window_.step) return;
    if (options_.non_finite == NonFinite::skip) detail::warn_of_skipped(*worker_, clock_.skipped(), window_.step);
  }

  // Ends what goes on beside the worker's own thread.
  void end() noexcept {
    forget_pass();
    overlap_.end();
  }

  // Forgets the micro-batches of a step that will not be completed.
  void abandon_step() {
    if (window_.is_last) return;
    window_ = {.step = window_.step};
    drop_gradients(slots_);  // which are weighted, so that nobody can go on with them
    for (GradientSlot& slot : slots_) slot.forget_micro_batches();
  }

  // Begins a micro-batch, and a step if the one before was its step's last. Makes sure that the backward pass will
  // reach every parameter of every model. .to(dtype or device) takes a parameter's hook away. Before the first step it
  // is hooked anew; later nobody can tell what has gone by.
  static void begin(const std::shared_ptr<GradientExchange>& self, std::uint64_t samples, bool completes_step) {
    bool has_moved = false;
    for (std::size_t index = 0; index < self->slots_.size(); ++index) {
      GradientSlot& slot = self->slots_[index];
      if (slot.has_other_shape()) refuse_reshaped(*self->worker_, slot);
      if (slot.has_lost_hook()) {
        if (slot.has_begun) refuse_converted(*self->worker_, slot);
        hook(self, index);
        has_moved = true;
      }
      slot.has_begun = true;
    }
    if (has_moved) self->overlap_.reset(self->slots_.size(), self->options_, self->place());
    self->models_.check(*self->worker_, self->known_, self->options_.buffers != BufferSync::leave);
    if (self->window_.is_last) {
      if (self->window_.is_accumulating) {
        for (GradientSlot& slot : self->slots_) slot.end_unexchanged();
      }
      self->window_ = {.step = self->window_.step + 1};
      if (self->watches_weights()) self->weight_watch_.look(self->slots_, self->window_.step);
      forget_casts();
      if (self->leaves_steps_out()) {
        self->before_step_.keep(self->models_.models(), RunningStatistics::Of::all_modules);
      }
    }
    StepWindow& window = self->window_;
    window.is_accumulating = window.is_accumulating || !completes_step;
    if (window.is_accumulating) begin_micro_batch(self);
    window.is_last = completes_step;
    window.micro_batch = samples;
    window.samples += samples;
    self->statistics_.forget();
    if (samples == 0) self->statistics_.keep(self->models_.models());
  }

 private:
  // Lives as long as a pass's callback is queued. LibTorch queues it for the innermost pass, such as the one in which
  // checkpointing computes a part of another. When that has gone this one queues its successor, for the pass around it.
  class Pass {
   public:
    explicit Pass(std::shared_ptr<GradientExchange> exchange) : exchange_(std::move(exchange)) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      if (is_over_) return;
      try {
        if (is_inner_) {
          queue_end(exchange_);
          return;
        }
      } catch (const std::exception&) {  // there is no memory, or no pass around it
      }
      exchange_->abandon_pass();
    }

    void end() {
      is_inner_ = depth_of_pass() > 0;
      if (is_inner_) return;
      is_over_ = true;
      exchange_->end_pass();
    }

   private:
    std::shared_ptr<GradientExchange> exchange_;
    bool is_inner_ = false;
    bool is_over_ = false;
  };

  // Holds the exchange weakly, for a model may outlive its worker; its gradients are then nobody else's business.
  class Hook final : public torch::autograd::FunctionPostHook {
   public:
    Hook(std::weak_ptr<GradientExchange> exchange, const GradientSlot& slot)
        : exchange_(std::move(exchange)), parameter_(slot.parameter.unsafeGetTensorImpl()) {}

    [[nodiscard]] std::shared_ptr<GradientExchange> exchange() const { return exchange_.lock(); }

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& inputs) override {
      if (const auto exchange = exchange_.lock()) {
        arrived(exchange, exchange->known_.at(parameter_), inputs.empty() ? at::Tensor{} : inputs.front());
      }
      return outputs;
    }

   private:
    std::weak_ptr<GradientExchange> exchange_;
    const void* parameter_;  // of the accumulator that has the hook, which keeps it alive
  };

  // Weights what a micro-batch adds to the gradient.
  class Weight final : public torch::autograd::FunctionPreHook {
   public:
    Weight(std::weak_ptr<GradientExchange> exchange, const GradientSlot& slot)
        : exchange_(std::move(exchange)), parameter_(slot.parameter.unsafeGetTensorImpl()) {}

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      const auto exchange = exchange_.lock();
      if (!exchange || !exchange->window_.is_accumulating) return gradients;
      GradientSlot& slot = exchange->slots_[exchange->known_.at(parameter_)];
      exchange->check_gradient(slot);
      const std::uint64_t samples = exchange->window_.micro_batch;
      // Left out, not multiplied by zero: it may be NaN.
      if (samples == 0) return torch::autograd::variable_list(gradients.size());
      if (!gradients.front().defined()) return gradients;
      slot.begin_weighting();
      return {gradients.front() * static_cast<double>(samples)};
    }

   private:
    std::weak_ptr<GradientExchange> exchange_;
    const void* parameter_;  // of the accumulator that has the hook, which keeps it alive
  };

  static void hook(const std::shared_ptr<GradientExchange>& self, std::size_t index) {
    GradientSlot& slot = self->slots_[index];
    if (!slot.forget_shape()) refuse_graph(*self->worker_, slot);
    const bool is_frozen = !slot.parameter.requires_grad();
    // A frozen parameter has no accumulator to hook, and it may be thawed later, so it is thawed for a moment.
    if (is_frozen && !at::isFloatingType(slot.parameter.scalar_type()) &&
        !at::isComplexType(slot.parameter.scalar_type())) {
      return;
    }
    if (is_frozen) slot.parameter.set_requires_grad(true);
    slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
    if (is_frozen) slot.parameter.set_requires_grad(false);
    if (self->has_weights_) slot.accumulator->add_pre_hook(std::make_unique<Weight>(self, slot));
    slot.accumulator->add_post_hook(std::make_unique<Hook>(self, slot));
  }

  // Runs on the thread of the parameter's device.
  static void arrived(const std::shared_ptr<GradientExchange>& self, std::size_t index, const at::Tensor& added) {
    const std::lock_guard lock{self->mutex_};
    if (c10::GradMode::is_enabled()) refuse_create_graph(*self->worker_, self->slots_[index]);
    if (self->pass_.expired()) queue_end(self);
    self->note_arrival(self->slots_[index], index, added);
  }

  static void begin_micro_batch(const std::shared_ptr<GradientExchange>& self) {
    refuse_half(*self->worker_, self->slots_);
    const bool needs_weights = !std::exchange(self->has_weights_, true);
    for (GradientSlot& slot : self->slots_) {
      if (needs_weights && slot.accumulator) slot.accumulator->add_pre_hook(std::make_unique<Weight>(self, slot));
      if (!slot.begin_micro_batch()) refuse_touched(*self->worker_, slot, "value", self->window_.step);
    }
  }

  static void queue_end(const std::shared_ptr<GradientExchange>& self) {
    auto pass = std::make_shared<Pass>(self);
    self->pass_ = pass;
    torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end(); });
  }

  // That of a micro-batch is changed by none but the next one, and by the communication thread when it has arrived.
  void check_gradient(const GradientSlot& slot) const {
    if (!slot.is_weighted || slot.has_arrived || slot.has_same_gradient()) return;
    refuse_touched(*worker_, slot, "gradient", window_.step);
  }

  void note_arrival(GradientSlot& slot, std::size_t index, const at::Tensor& added) {
    if (window_.is_last) overlap_.arrive(slot, index, window_.step);
    if (worker_->world_size() > 1 && !overlap_.uses_device()) slot.own_memory(added);
    if (added.defined()) slot.used = true;
    if (added.defined() && added.is_sparse() && !std::exchange(has_told_of_sparse_, true)) {
      warn_of_sparse(*worker_, slot, window_.step);
    }
    if (window_.is_last) slot.end_weighting(static_cast<double>(window_.samples));
    if (slot.is_weighted) slot.mark();
    if (!window_.is_last) return;
    explained([this] { overlap_.hand_over([this] { begin_exchange(); }); });
  }

  void abandon_pass() noexcept {
    const std::lock_guard lock{mutex_};
    forget_pass();
  }

  void forget_pass() noexcept {
    for (GradientSlot& slot : slots_) slot.has_arrived = false;
    overlap_.forget_pass();
  }

  void end_pass() {
    struct Forget {
      GradientExchange& exchange;
      ~Forget() { exchange.forget_pass(); }
    } const forget{*this};
    pass_.reset();
    explained([this] { exchange(); });
  }

  // The collective that has failed is none that the user has called.
  template <class Function>
  void explained(const Function& function) const {
    try {
      function();
    } catch (const CollectiveError& error) {
      refuse_unfinished(*worker_, window_.step, error);
    }
  }

  void exchange() {
    const at::NoGradGuard no_grad;
    for (const GradientSlot& slot : slots_) {
      if (slot.has_lost_hook()) refuse_converted(*worker_, slot);
    }
    statistics_.put_back();
    if (!window_.is_last) return;
    for (GradientSlot& slot : slots_) {
      check_gradient(slot);
      slot.end_weighting(static_cast<double>(window_.samples));
    }
    if (!overlap_.has_begun()) {
      begin_exchange();
    } else {
      clock_.enter(StepClock::Part::wait);
      overlap_.settle();
    }
    const bool is_finite = exchange_.finish(clock_);
    for (GradientSlot& slot : slots_) slot.used = slot.is_weighted = false;
    const PassSummary& summary = exchange_.summary();
    if (summary.num_replaced > 0) compare_replaced(*worker_, slots_);
    if (summary.are_weights_apart) weight_watch_.refuse(*worker_, slots_, window_.step);
    const UnusedSlots& unused = exchange_.unused_here();
    if (unused.count > 0 && !std::exchange(has_told_of_unused_, true)) {
      warn_of_unused(*worker_, unused.first, unused.count, unused.num_using, window_.step);
    }
    if (summary.headers.front().pass == 0) {
      const bool have_all_ended = summary.num_ended == static_cast<std::uint32_t>(worker_->world_size());
      worker_->control().hear(summary.wishes, have_all_ended);
    }
    overlap_.decide(slots_, window_.step, options_);
    sync_buffers(*worker_, models_.buffers(), options_.buffers);
    if (statistics_.has_any()) statistics_.keep(models_.models());  // for another pass of this step
    clock_.enter(StepClock::Part::compute);
    if (!is_finite) {
      refuse_step(exchange_.open());
    } else if (window_.is_refused && leaves_steps_out()) {
      drop_gradients(slots_);
      before_step_.put_back();
    }
  }

  void begin_exchange() {
    if (window_.is_accumulating && window_.num_passes > 0) refuse_second_pass(*worker_, window_.step);
    const bool checks_finite = options_.non_finite != NonFinite::allow || loss_scaling_of(*worker_) != nullptr;
    const PassTerms terms{.header = next_header(),
                          .checks_finite = checks_finite,
                          .uses_host = uses_host(),
                          .uses_device = overlap_.uses_device()};
    exchange_.begin(slots_, overlap_.buckets(), terms, options_.comm_hook);
  }

  [[nodiscard]] bool uses_host() const { return can_share_weights() && are_all_on_cpu(slots_); }

  [[nodiscard]] ExchangePlace place() const {
    return {.is_device = are_all_on(slots_, worker_->device()),
            .is_on_cpu = are_all_on_cpu(slots_),
            .is_host = uses_host()};
  }

  // Counts the pass.
  [[nodiscard]] PassHeader next_header() {
    const ControlLane& control = worker_->control();
    return {.samples = static_cast<double>(window_.samples),
            .silent = worker_->step_samples() ? 0U : 1U,
            .num_slots = static_cast<std::uint32_t>(slots_.size()),
            .has_replaced = has_replaced_storage(slots_) ? 1U : 0U,
            .step = window_.step,
            .pass = window_.num_passes++,
            .loop = control.loop(),
            .waited = clock_.waited() + overlap_.waited(),
            .wishes = worker_->wishes(),
            .has_ended = control.has_ended() ? 1U : 0U,
            .weights = std::exchange(compares_weights_, false) ? digest_of_weights(slots_) : 0,
            .data = short_digest(digest_of(std::as_bytes(std::span{control.data()}))),
            .weights_seen = watches_weights() ? weight_watch_.number() : 0};
  }

  [[nodiscard]] bool watches_weights() const { return options_.compare_weights && worker_->world_size() > 1; }

  // Whether a step whose gradients are not finite leaves no trace.
  [[nodiscard]] bool leaves_steps_out() const {
    return options_.non_finite == NonFinite::skip ||
           (options_.non_finite == NonFinite::stop && loss_scaling_of(*worker_) != nullptr);
  }

  // Leaves the step out on all ranks, or ends it, as all have found the same. With a GradScaler that is an overflow,
  // until the scaler finds that it is none.
  void refuse_step(const OpenSlots& open) {
    const auto scaling = loss_scaling_of(*worker_);
    if (options_.non_finite == NonFinite::allow && !scaling) return;
    const std::string name = first_not_finite(open);
    if (!std::exchange(window_.is_refused, true)) clock_.count_skipped();
    if (scaling) scaling->note_overflow(window_.step, name);
    if (options_.non_finite == NonFinite::allow) return;
    drop_gradients(slots_);
    before_step_.put_back();
    if (scaling) return;
    const std::string what = describe_not_finite(window_.step, name);
    if (options_.non_finite == NonFinite::stop) refuse_not_finite(*worker_, what);
    if (clock_.skipped() == 1) warn_of_first_skipped(*worker_, what);
  }

  Worker* worker_;
  PassExchange exchange_;
  GradientOverlap overlap_;
  StepClock clock_{};
  ModelOptions options_{};
  StepWindow window_{};
  bool compares_weights_ = false;  // in the next pass, as a model was prepared
  bool has_weights_ = false;       // the accumulators have the hook that weights micro-batches
  bool has_told_of_unused_ = false;
  bool has_told_of_sparse_ = false;
  std::vector<GradientSlot> slots_{};
  std::unordered_map<const void*, std::size_t> known_{};  // slots_ by parameter, which they keep alive
  WatchedModels models_{};
  WeightWatch weight_watch_{};
  RunningStatistics statistics_{};   // where the batch under way counts nothing
  RunningStatistics before_step_{};  // where the step may be left out
  std::weak_ptr<Pass> pass_{};
  std::mutex mutex_{};
};

// The worker's one exchange. Destroyed with the worker, and with it the hooks' effect.
struct Gradients {
  static constexpr std::string_view extension_name = "torch.gradients";
  std::shared_ptr<GradientExchange> exchange{};

  Gradients() = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients() {
    if (exchange) exchange->end();
  }
};

[[nodiscard]] inline const std::shared_ptr<GradientExchange>& gradient_exchange_of(Worker& worker) {
  auto& gradients = worker.extension<Gradients>();
  if (!gradients.exchange) {
    gradients.exchange = std::make_shared<GradientExchange>(worker);
    worker.on_samples([weak = std::weak_ptr{gradients.exchange}](std::uint64_t samples, bool completes_step) {
      if (const auto exchange = weak.lock()) GradientExchange::begin(exchange, samples, completes_step);
    });
    worker.on_step_times([&worker, exchange = gradients.exchange.get()](bool is_end) {
      if (is_end) exchange->warn_at_end();
      return exchange->clock().total(worker.world_size());
    });
    worker.on_data_wait([clock = &gradients.exchange->clock()](bool begins) { clock->enter_data(begins); });
    worker.on_abandoned_step([weak = std::weak_ptr{gradients.exchange}] {
      if (const auto exchange = weak.lock()) exchange->abandon_step();
    });
  }
  return gradients.exchange;
}

}  // namespace detail

}  // namespace railyard::inline v0_1
