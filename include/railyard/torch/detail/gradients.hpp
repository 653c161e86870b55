// SPDX-License-Identifier: MIT
// Averages gradients over the global batch at the end of every backward pass. Torch room.
#pragma once

#include "railyard/torch/tensor.hpp"

#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace railyard::inline v0_1 {

namespace detail {

// The gradients of all prepared models of one worker.
//
// The accumulator of each parameter has a hook. The first hook of a backward pass queues one callback at the pass's
// end, and that callback exchanges: first the number of samples behind the pass and who has used which parameter, then
// per dtype one flat buffer of the gradients that anybody has used.
//
// What is averaged is all of .grad, not what the pass has added. That is the same: what was there before is equal on
// all ranks, and the weights sum to one. So several passes per step add up as they do on a single worker.
class GradientExchange {
 public:
  explicit GradientExchange(Worker& worker) : worker_(&worker) {}
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Takes a model's parameter in. One that is known already, such as a tied one, is hooked anew if need be.
  static void add(const std::shared_ptr<GradientExchange>& self, const std::string& name, const at::Tensor& parameter) {
    if (self->known_.insert(parameter.unsafeGetTensorImpl()).second) {
      self->slots_.push_back({.name = name, .parameter = parameter});
      hook(self, self->slots_.size() - 1);
      return;
    }
    for (std::size_t index = 0; index < self->slots_.size(); ++index) {
      Slot& slot = self->slots_[index];
      if (!slot.parameter.is_same(parameter)) continue;
      slot.has_begun = false;
      if (has_lost_hook(slot)) hook(self, index);
    }
  }

  // Watches a model whose parameters have been added, for as long as it lives.
  void watch(const torch::nn::Module& module) { modules_.push_back(module.weak_from_this()); }

  // Makes sure, before a step, that its backward pass will reach every parameter of every model. .to(dtype or device)
  // takes a parameter's hook away. Before the first step it is hooked anew; later nobody can tell what has gone by.
  static void begin_step(const std::shared_ptr<GradientExchange>& self) {
    for (std::size_t index = 0; index < self->slots_.size(); ++index) {
      Slot& slot = self->slots_[index];
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
  }

 private:
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  struct Slot {
    std::string name{};
    at::Tensor parameter{};
    NodePointer accumulator{};  // LibTorch itself keeps it only as long as a graph refers to it
    bool used = false;          // in the pass that is under way
    bool has_begun = false;     // a step, since it was prepared
  };

  // Lives as long as the pass's callback is queued: a pass that has thrown leaves an expired one behind.
  struct Pass {};

  // Holds the exchange weakly, for a model may outlive its worker; its gradients are then nobody else's business.
  class Hook final : public torch::autograd::FunctionPostHook {
   public:
    Hook(std::weak_ptr<GradientExchange> exchange, std::size_t index) : exchange_(std::move(exchange)), index_(index) {}

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

  [[nodiscard]] static bool has_lost_hook(const Slot& slot) {
    return torch::autograd::impl::try_get_grad_accumulator(slot.parameter) != slot.accumulator;
  }

  [[noreturn]] void refuse_converted(const Slot& slot) const {
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
    Slot& slot = self->slots_[index];
    const bool is_frozen = !slot.parameter.requires_grad();
    // A frozen parameter has no accumulator to hook, and it may be thawed later, so it is thawed for a moment.
    if (is_frozen && !at::isFloatingType(slot.parameter.scalar_type()) &&
        !at::isComplexType(slot.parameter.scalar_type())) {
      return;
    }
    if (is_frozen) slot.parameter.set_requires_grad(true);
    slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
    if (is_frozen) slot.parameter.set_requires_grad(false);
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
      for (Slot& slot : self->slots_) slot.used = false;
      auto pass = std::make_shared<Pass>();
      self->pass_ = pass;
      torch::autograd::Engine::get_default_engine().queue_callback([self, pass] {
        self->pass_.reset();
        self->exchange_or_explain();
      });
    }
    if (has_gradient) self->slots_[index].used = true;
  }

  // What all ranks know after the first exchange of a pass.
  struct Summary {
    double samples = 0;         // behind this pass, on all ranks
    double silent_ranks = 0;    // that have not said how many samples theirs are
    std::vector<double> flags;  // per parameter: ranks that have used it, ranks with samples that have a gradient
  };

  [[nodiscard]] bool has_samples() const { return worker_->step_samples().value_or(0) > 0; }

  [[nodiscard]] Summary summarise() {
    const auto samples = worker_->step_samples();
    std::vector<double> numbers{static_cast<double>(samples.value_or(0)), samples ? 0.0 : 1.0};
    for (const Slot& slot : slots_) {
      numbers.push_back(slot.used ? 1.0 : 0.0);
      numbers.push_back(has_samples() && slot.parameter.grad().defined() ? 1.0 : 0.0);
    }
    if (worker_->world_size() > 1) worker_->all_reduce(buffer_of(numbers), ReduceOp::sum);
    return {numbers[0], numbers[1], {numbers.begin() + 2, numbers.end()}};
  }

  // The collective that has failed is none that the user has called.
  void exchange_or_explain() {
    try {
      exchange();
    } catch (const CollectiveError& error) {
      throw CollectiveError{
          error.operation(), error.rank(), error.blamed(),
          fmt::format("backward() on rank {}/{} exchanges gradients and could not finish: {}. All ranks must call "
                      "backward() equally often; a loss that uses no prepared parameter counts as not calling it",
                      worker_->rank(), worker_->world_size(), error.what())};
    }
  }

  void exchange() {
    const at::NoGradGuard no_grad;
    for (const Slot& slot : slots_) {
      if (has_lost_hook(slot)) refuse_converted(slot);
    }
    const Summary summary = summarise();
    check(summary);
    if (worker_->world_size() == 1) return;
    std::vector<Slot*> open;
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      if (summary.flags[2 * index] == 0) continue;  // unused everywhere: stays as it was
      if (summary.flags[2 * index + 1] == 0) {
        // Used by ranks without samples only, so nothing may remain of it.
        slots_[index].parameter.mutable_grad().reset();
      } else {
        open.push_back(&slots_[index]);
      }
    }
    while (!open.empty()) {
      std::vector<Slot*> alike;
      std::vector<Slot*> others;
      for (Slot* slot : open) (has_like(*slot, *open.front()) ? alike : others).push_back(slot);
      average(alike, summary.samples);
      open = std::move(others);
    }
  }

  void check(const Summary& summary) const {
    if (summary.silent_ranks > 0) {
      throw ConfigError{
          fmt::format("backward() on rank {}/{}: {} of the ranks did not say how many samples are behind "
                      "their gradients, which is what they are weighted with. Set .drives_step = true on "
                      "the training loader, or call worker.samples(n) before backward()",
                      worker_->rank(), worker_->world_size(), summary.silent_ranks)};
    }
    if (summary.samples == 0) {
      throw ConfigError{
          fmt::format("backward() on rank {}/{}: worker.samples(0) was called on every rank, so there is "
                      "nothing to average; leave the step out on all ranks instead",
                      worker_->rank(), worker_->world_size())};
    }
  }

  // Sums are made in f32 at least: n x gradient would overflow a half type.
  [[nodiscard]] static at::ScalarType sum_type(const at::Tensor& parameter) {
    const at::ScalarType type = parameter.scalar_type();
    return type == at::ScalarType::Double || type == at::ScalarType::ComplexDouble ? at::ScalarType::Double
                                                                                   : at::ScalarType::Float;
  }

  [[nodiscard]] static bool has_like(const Slot& one, const Slot& other) {
    return sum_type(one.parameter) == sum_type(other.parameter) && one.parameter.device() == other.parameter.device();
  }

  [[nodiscard]] static at::Tensor as_real(const at::Tensor& tensor) {
    return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  }

  [[nodiscard]] static std::int64_t real_count(const at::Tensor& tensor) {
    return tensor.numel() * (tensor.is_complex() ? 2 : 1);
  }

  void average(const std::vector<Slot*>& slots, double samples) {
    std::int64_t count = 0;
    for (const Slot* slot : slots) count += real_count(slot->parameter);
    const at::Tensor& first = slots.front()->parameter;
    const at::Tensor flat = at::empty({count}, at::TensorOptions{}.dtype(sum_type(first)).device(first.device()));
    visit_parts(slots, flat, [this](const at::Tensor& part, const Slot& slot) {
      const at::Tensor& gradient = slot.parameter.grad();
      if (!has_samples() || !gradient.defined()) {
        part.zero_();  // left out, not multiplied by zero: it may be NaN
      } else {
        part.copy_(as_real(gradient.is_sparse() ? gradient.to_dense() : gradient));
      }
    });
    if (has_samples()) flat.mul_(static_cast<double>(*worker_->step_samples()));
    worker_->all_reduce(buffer_of(flat), ReduceOp::sum);
    flat.div_(samples);
    visit_parts(slots, flat, [](const at::Tensor& part, const Slot& slot) {
      at::Tensor& gradient = slot.parameter.mutable_grad();
      // A sparse gradient becomes a dense one: the rows that other ranks have used are others.
      if (!gradient.defined() || gradient.is_sparse()) gradient = at::empty_like(slot.parameter.detach());
      as_real(gradient).copy_(part);
    });
  }

  // Calls visit with each parameter's part of the flat tensor, in the parameter's shape.
  template <class Visit>
  static void visit_parts(const std::vector<Slot*>& slots, const at::Tensor& flat, Visit visit) {
    std::int64_t begin = 0;
    for (const Slot* slot : slots) {
      const std::int64_t count = real_count(slot->parameter);
      const auto shape = as_real(slot->parameter.detach()).sizes().vec();
      visit(flat.narrow(0, begin, count).view(shape), *slot);
      begin += count;
    }
  }

  Worker* worker_;
  std::vector<Slot> slots_{};
  std::unordered_set<const void*> known_{};  // the parameters of slots_, which keeps them alive
  std::vector<std::weak_ptr<const torch::nn::Module>> modules_{};
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
    worker.on_samples([weak = std::weak_ptr{gradients.exchange}] {
      if (const auto exchange = weak.lock()) GradientExchange::begin_step(exchange);
    });
  }
  return gradients.exchange;
}

}  // namespace detail

}  // namespace railyard::inline v0_1
