// SPDX-License-Identifier: MIT
// Averages gradients over the global batch at the end of every backward pass. Torch room.
#pragma once

#include "railyard/torch/detail/flat_reduction.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/host_reduction.hpp"
#include "railyard/torch/detail/running_statistics.hpp"
#include "railyard/torch/detail/step_clock.hpp"
#include "railyard/torch/model_options.hpp"
#include "railyard/torch/tensor.hpp"

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
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace railyard::inline v0_1 {

namespace detail {

// The gradients of all prepared models of one worker.
//
// The accumulator of each parameter has a hook. The first hook of a backward pass queues one callback at the pass's
// end, and that callback exchanges: first the number of samples behind the pass and who has used which parameter, then
// the gradients that anybody has used.
//
// What is averaged is all of .grad, not what the pass has added. That is the same: what was there before is equal on
// all ranks, and the weights sum to one. So several passes per step add up as they do on a single worker.
//
// Where a step has several micro-batches, each gradient is multiplied with its micro-batch's samples before it is
// accumulated, and only the last micro-batch's pass exchanges.
class GradientExchange {
 public:
  explicit GradientExchange(Worker& worker) : worker_(&worker), flat_(worker) {
    if (HostMemory* memory = worker.host_memory(); memory != nullptr && worker.world_size() > 1) {
      host_.emplace(worker, *memory, clock_);
    }
  }
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Takes a model's parameter in. One that is known already, such as a tied one, is hooked anew if need be.
  static void add(const std::shared_ptr<GradientExchange>& self, const std::string& name, const at::Tensor& parameter) {
    const auto [known, is_new] = self->known_.emplace(parameter.unsafeGetTensorImpl(), self->slots_.size());
    if (is_new) {
      self->slots_.push_back({.name = name, .parameter = parameter});
      hook(self, self->slots_.size() - 1);
      return;
    }
    GradientSlot& slot = self->slots_[known->second];
    slot.has_begun = false;
    if (has_lost_hook(slot)) hook(self, known->second);
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

  // Watches a model whose parameters have been added, for as long as it lives.
  void watch(const torch::nn::Module& module) {
    modules_.push_back(module.weak_from_this());
    for (const at::Tensor& buffer : module.buffers()) buffers_.push_back(buffer);
  }

  [[nodiscard]] StepClock& clock() noexcept { return clock_; }

  // Whether an optimizer may share the weights: the ranks see each other's memory, and gradients are summed there.
  [[nodiscard]] bool can_share_weights() const { return host_ && !options_.comm_hook; }

  // Takes over what prepare_model() was told.
  void set_options(const ModelOptions& options) { options_ = options; }

  // Forgets the micro-batches of a step that will not be completed.
  void abandon_step() {
    if (!window_.is_last) window_ = {.step = window_.step};
  }

  // Begins a micro-batch, and a step if the one before was its step's last. Makes sure that the backward pass will
  // reach every parameter of every model. .to(dtype or device) takes a parameter's hook away. Before the first step it
  // is hooked anew; later nobody can tell what has gone by.
  static void begin(const std::shared_ptr<GradientExchange>& self, std::uint64_t samples, bool completes_step) {
    for (std::size_t index = 0; index < self->slots_.size(); ++index) {
      GradientSlot& slot = self->slots_[index];
      if (has_lost_hook(slot)) {
        if (slot.has_begun) self->refuse_converted(slot);
        hook(self, index);
      }
      slot.has_begun = true;
    }
    for (const auto& weak : self->modules_) {
      const auto module = weak.lock();
      if (module && !self->knows_all_of(*module)) self->refuse_unknown(*module);
    }
    if (self->window_.is_last) self->window_ = {.step = self->window_.step + 1};
    Window& window = self->window_;
    window.is_accumulating = window.is_accumulating || !completes_step;
    if (window.is_accumulating && !std::exchange(self->has_weights_, true)) {
      for (const GradientSlot& slot : self->slots_) {
        if (slot.accumulator) slot.accumulator->add_pre_hook(std::make_unique<Weight>(self));
      }
    }
    window.is_last = completes_step;
    window.micro_batch = samples;
    window.samples += samples;
    self->statistics_.forget();
    if (samples == 0) self->statistics_.keep(self->modules_);
  }

 private:
  // The micro-batches of one step.
  struct Window {
    std::uint64_t step = 0;         // counts from 1; 0 before the first
    std::uint64_t samples = 0;      // of this rank so far
    std::uint64_t micro_batch = 0;  // samples of the one under way
    bool is_accumulating = false;   // it has several: gradients are weighted before they are accumulated
    bool is_last = true;            // the step's last one has begun
    std::uint64_t num_passes = 0;   // that have been exchanged
  };

  // Lives as long as the pass's callback is queued: a pass that has thrown leaves an expired one behind.
  struct Pass {};

  // Holds the exchange weakly, for a model may outlive its worker; its gradients are then nobody else's business.
  class Hook final : public torch::autograd::FunctionPostHook {
   public:
    Hook(std::weak_ptr<GradientExchange> exchange, std::size_t index) : exchange_(std::move(exchange)), index_(index) {}

    [[nodiscard]] std::shared_ptr<GradientExchange> exchange() const { return exchange_.lock(); }

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& inputs) override {
      if (const auto exchange = exchange_.lock()) {
        arrived(exchange, index_, !inputs.empty() && inputs.front().defined());
      }
      return outputs;
    }

   private:
    std::weak_ptr<GradientExchange> exchange_;
    std::size_t index_;
  };

  // Weights what a micro-batch adds to the gradient.
  class Weight final : public torch::autograd::FunctionPreHook {
   public:
    explicit Weight(std::weak_ptr<GradientExchange> exchange) : exchange_(std::move(exchange)) {}

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      const auto exchange = exchange_.lock();
      if (!exchange || !exchange->window_.is_accumulating) return gradients;
      const std::uint64_t samples = exchange->window_.micro_batch;
      torch::autograd::variable_list weighted;
      for (const at::Tensor& gradient : gradients) {
        // Left out, not multiplied by zero: it may be NaN.
        const bool counts = gradient.defined() && samples > 0;
        weighted.push_back(counts ? gradient * static_cast<double>(samples) : at::Tensor{});
      }
      return weighted;
    }

   private:
    std::weak_ptr<GradientExchange> exchange_;
  };

  [[nodiscard]] static bool has_lost_hook(const GradientSlot& slot) {
    return torch::autograd::impl::try_get_grad_accumulator(slot.parameter) != slot.accumulator;
  }

  [[noreturn]] void refuse_converted(const GradientSlot& slot) const {
    throw ConfigError{
        fmt::format("the parameter \"{}\" of a prepared model was converted, now to {}, after training had begun on "
                    "rank {}/{}: its gradients may have gone unaveraged. Convert the model before prepare_model(), or "
                    "call prepare_model(worker, model) again right after converting it",
                    slot.name, shape_of(slot.parameter), worker_->rank(), worker_->world_size())};
  }

  // Walks by itself, for named_parameters() of the whole would put all names together in every step.
  [[nodiscard]] bool knows_all_of(const torch::nn::Module& module) const {
    const auto own = module.named_parameters(/*recurse=*/false);
    for (const auto& item : own) {
      if (!known_.contains(item.value().unsafeGetTensorImpl())) return false;
    }
    const auto children = module.children();
    return std::all_of(children.begin(), children.end(), [this](const auto& child) { return knows_all_of(*child); });
  }

  void refuse_unknown(const torch::nn::Module& module) const {
    for (const auto& item : module.named_parameters()) {
      if (known_.contains(item.value().unsafeGetTensorImpl())) continue;
      throw ConfigError{
          fmt::format("the parameter \"{}\" has come into a prepared model since prepare_model() on rank {}/{}, so its "
                      "gradients would not be averaged: build the model before prepare_model(), or call "
                      "prepare_model(worker, model) again after changing it",
                      item.key(), worker_->rank(), worker_->world_size())};
    }
  }

  static void hook(const std::shared_ptr<GradientExchange>& self, std::size_t index) {
    GradientSlot& slot = self->slots_[index];
    const bool is_frozen = !slot.parameter.requires_grad();
    // A frozen parameter has no accumulator to hook, and it may be thawed later, so it is thawed for a moment.
    if (is_frozen && !at::isFloatingType(slot.parameter.scalar_type()) &&
        !at::isComplexType(slot.parameter.scalar_type())) {
      return;
    }
    if (is_frozen) slot.parameter.set_requires_grad(true);
    slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
    if (is_frozen) slot.parameter.set_requires_grad(false);
    if (self->has_weights_) slot.accumulator->add_pre_hook(std::make_unique<Weight>(self));
    slot.accumulator->add_post_hook(std::make_unique<Hook>(self, index));
  }

  // Runs on the thread of the parameter's device.
  static void arrived(const std::shared_ptr<GradientExchange>& self, std::size_t index, bool has_gradient) {
    const std::lock_guard lock{self->mutex_};
    if (c10::GradMode::is_enabled()) {
      throw ConfigError{
          fmt::format("backward(create_graph=true) reached the parameter \"{}\" of a prepared model on rank "
                      "{}/{}: an averaged gradient cannot be differentiated. For a gradient penalty use "
                      "torch::autograd::grad(..., create_graph=true) and a plain backward() of the penalty",
                      self->slots_[index].name, self->worker_->rank(), self->worker_->world_size())};
    }
    if (self->pass_.expired()) {
      auto pass = std::make_shared<Pass>();
      self->pass_ = pass;
      torch::autograd::Engine::get_default_engine().queue_callback([self, pass] {
        self->pass_.reset();
        self->exchange_or_explain();
      });
    }
    if (has_gradient) self->slots_[index].used = true;
  }

  // The collective that has failed is none that the user has called.
  void exchange_or_explain() {
    try {
      exchange();
    } catch (const CollectiveError& error) {
      throw CollectiveError{
          error.operation(), error.rank(), error.blamed(),
          fmt::format(
              "backward() on rank {}/{} exchanges gradients in step {} and could not finish: {}. All ranks must "
              "call backward() equally often; a loss that uses no prepared parameter counts as not calling it, "
              "and so does a break or continue on one rank alone",
              worker_->rank(), worker_->world_size(), window_.step, error.what())};
    }
  }

  void exchange() {
    const at::NoGradGuard no_grad;
    for (const GradientSlot& slot : slots_) {
      if (has_lost_hook(slot)) refuse_converted(slot);
    }
    statistics_.put_back();
    if (!window_.is_last) return;
    if (window_.is_accumulating && window_.num_passes > 0) refuse_second_pass();
    const bool has_host = can_share_weights() && are_all_on_cpu();
    const PassHeader header = next_header();
    const bool has_samples = window_.samples > 0;
    clock_.enter(StepClock::Part::communication);
    const PassSummary summary =
        has_host ? host_->begin(slots_, header, has_samples) : flat_.begin(slots_, header, has_samples);
    try {
      check(summary);
    } catch (...) {  // on all ranks alike; nobody may go on while another still reads what it has shown
      if (has_host) host_->end();
      throw;
    }
    if (header.pass == 0) {
      const bool have_all_ended = summary.num_ended == static_cast<std::uint32_t>(worker_->world_size());
      worker_->control().hear(summary.num_stopping > 0, have_all_ended);
    }
    OpenSlots open;
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      GradientSlot& slot = slots_[index];
      slot.used = false;
      if (summary.num_using[index] == 0) continue;  // unused everywhere: stays as it was
      if (summary.num_giving[index] == 0) {
        // Used by ranks without samples only, so nothing may remain of it.
        slot.parameter.mutable_grad().reset();
      } else {
        open.emplace_back(index, &slot);
      }
    }
    bool is_finite = true;
    if (worker_->world_size() == 1) {
      is_finite = finish_alone(open);
    } else if (has_host) {
      is_finite = host_->average(open, summary, window_.is_accumulating);
    } else {
      is_finite = flat_.average(open, summary, window_.is_accumulating, options_.comm_hook);
    }
    sync_buffers(*worker_, buffers_, options_.buffers);
    if (statistics_.has_any()) statistics_.keep(modules_);  // for another pass of this step
    clock_.count_step(has_host ? host_->take_bytes() : 0);
    clock_.enter(StepClock::Part::compute);
    if (!is_finite && options_.non_finite != NonFinite::allow) refuse_step(open);
  }

  // Counts the pass.
  [[nodiscard]] PassHeader next_header() {
    const ControlLane& control = worker_->control();
    return {.samples = static_cast<double>(window_.samples),
            .silent = worker_->step_samples() ? 0U : 1U,
            .num_slots = static_cast<std::uint32_t>(slots_.size()),
            .step = window_.step,
            .pass = window_.num_passes++,
            .loop = control.loop(),
            .waited = clock_.waited(),
            .wants_stop = worker_->wants_stop() ? 1U : 0U,
            .has_ended = control.has_ended() ? 1U : 0U};
  }

  // A single worker's gradients are what they are, but for the weights of micro-batches.
  [[nodiscard]] bool finish_alone(const OpenSlots& open) const {
    bool is_finite = true;
    for (const auto& one : open) {
      at::Tensor& gradient = one.second->parameter.mutable_grad();
      if (window_.is_accumulating) gradient.div_(static_cast<double>(window_.samples));
      if (options_.non_finite != NonFinite::allow) is_finite &= is_all_finite(gradient);
    }
    return is_finite;
  }

  [[nodiscard]] bool are_all_on_cpu() const {
    return std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.parameter.is_cpu(); });
  }

  // Leaves the step out on all ranks, or ends it, as all have found the same.
  void refuse_step(const OpenSlots& open) {
    std::string name;
    for (const auto& one : open) {
      const at::Tensor& gradient = one.second->parameter.grad();
      if (name.empty() && gradient.defined() && !is_all_finite(gradient)) name = one.second->name;
      one.second->parameter.mutable_grad().reset();
      if (const auto piece = one.second->piece.lock(); piece && !piece->is_empty()) {
        piece->weights.mutable_grad().reset();
      }
    }
    ++num_skipped_;
    const std::string what = fmt::format("step {}: the gradient{}, averaged over all ranks, is not finite",
                                         window_.step, name.empty() ? "" : fmt::format(" of \"{}\"", name));
    if (options_.non_finite == NonFinite::stop) {
      throw DataError{fmt::format(
          "{} (backward() on rank {}/{}): look for NaNs in the data, lower the learning rate or clip; or set "
          "ModelOptions::non_finite to skip or allow",
          what, worker_->rank(), worker_->world_size())};
    }
    if (worker_->rank() == 0 && num_skipped_ == 1) {
      fmt::print(stderr, "railyard: {}; the step is left out on all ranks, as later ones will be without a word\n",
                 what);
    }
  }

  [[noreturn]] void refuse_second_pass() const {
    throw ConfigError{
        fmt::format("backward() on rank {}/{} was called twice in step {}, which has several micro-batches: add the "
                    "losses and call backward() once for each micro-batch",
                    worker_->rank(), worker_->world_size(), window_.step)};
  }

  // Ranks that are at different steps would average what does not belong together.
  void check_together(const PassSummary& summary) const {
    const PassHeader& first = summary.headers.front();
    for (std::size_t rank = 1; rank < summary.headers.size(); ++rank) {
      const PassHeader& other = summary.headers[rank];
      if (first.is_together_with(other)) continue;
      if (first.num_slots != other.num_slots) {
        throw ConfigError{fmt::format(
            "backward() on rank {}/{}: rank {} has prepared {} parameters and rank 0 {}: all ranks must call "
            "prepare_model() for the same models",
            worker_->rank(), worker_->world_size(), rank, other.num_slots, first.num_slots)};
      }
      if (first.loop != other.loop) {
        throw ConfigError{fmt::format(
            "backward() on rank {}/{}: in its step {} rank {} goes over the training data for the {}. time, rank 0 in "
            "its step {} for the {}. A rank has left its loop earlier than the others (by break, or an exception that "
            "was caught); all ranks must leave it at the same step: decide by worker.should_stop()",
            worker_->rank(), worker_->world_size(), other.step, rank, other.loop, first.step, first.loop)};
      }
      throw ConfigError{fmt::format(
          "backward() on rank {}/{}: rank {} is in backward pass {} of its step {}, rank 0 in pass {} of its step {}. "
          "A "
          "rank has left out a backward() (by continue, or a loss that uses no prepared parameter) or has called one "
          "more; all ranks must call it equally often in every step",
          worker_->rank(), worker_->world_size(), rank, other.pass + 1, other.step, first.pass + 1, first.step)};
    }
  }

  void check(const PassSummary& summary) const {
    if (summary.num_silent > 0) {
      throw ConfigError{
          fmt::format("backward() on rank {}/{}: {} of the ranks did not say how many samples are behind "
                      "their gradients, which is what they are weighted with. Set .drives_step = true on "
                      "the training loader, or call worker.samples(n) before backward()",
                      worker_->rank(), worker_->world_size(), summary.num_silent)};
    }
    check_together(summary);
    if (summary.samples == 0) {
      throw ConfigError{
          fmt::format("backward() on rank {}/{}: worker.samples(0) was called on every rank, so there is "
                      "nothing to average; leave the step out on all ranks instead",
                      worker_->rank(), worker_->world_size())};
    }
  }

  Worker* worker_;
  FlatReduction flat_;
  StepClock clock_{};
  std::optional<HostReduction> host_{};  // where the ranks share memory
  ModelOptions options_{};
  Window window_{};
  bool has_weights_ = false;  // the accumulators have the hook that weights micro-batches
  std::uint64_t num_skipped_ = 0;
  std::vector<GradientSlot> slots_{};
  std::unordered_map<const void*, std::size_t> known_{};  // slots_ by parameter, which they keep alive
  std::vector<std::weak_ptr<const torch::nn::Module>> modules_{};
  std::vector<at::Tensor> buffers_{};
  RunningStatistics statistics_{};  // where the batch under way counts nothing
  std::weak_ptr<Pass> pass_{};
  std::mutex mutex_{};
};

// The worker's one exchange. Destroyed with the worker, and with it the hooks' effect.
struct Gradients {
  static constexpr std::string_view extension_name = "torch.gradients";
  std::shared_ptr<GradientExchange> exchange{};
};

[[nodiscard]] inline const std::shared_ptr<GradientExchange>& gradient_exchange_of(Worker& worker) {
  auto& gradients = worker.extension<Gradients>();
  if (!gradients.exchange) {
    gradients.exchange = std::make_shared<GradientExchange>(worker);
    worker.on_samples([weak = std::weak_ptr{gradients.exchange}](std::uint64_t samples, bool completes_step) {
      if (const auto exchange = weak.lock()) GradientExchange::begin(exchange, samples, completes_step);
    });
    worker.on_step_times([&worker, clock = &gradients.exchange->clock()] { return clock->total(worker.world_size()); });
    worker.on_abandoned_step([weak = std::weak_ptr{gradients.exchange}] {
      if (const auto exchange = weak.lock()) exchange->abandon_step();
    });
  }
  return gradients.exchange;
}

}  // namespace detail

}  // namespace railyard::inline v0_1
