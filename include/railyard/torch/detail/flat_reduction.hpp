// SPDX-License-Identifier: MIT
// Averages gradients by the collectives of any backend, in flat buffers. Torch room.
#pragma once

#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/non_finite.hpp"
#include "railyard/torch/detail/pass_numbers.hpp"
#include "railyard/torch/detail/step_clock.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/side_line.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// For each bucket one small all-reduce says what the ranks have; then all gradients that somebody gives are copied into
// one flat tensor per dtype and device, summed, and copied back. With the first bucket the ranks also learn of each
// other's samples.
//
// Used by one thread at a time.
class FlatReduction {
 public:
  explicit FlatReduction(Worker& worker) : worker_(&worker) {}

  // Sums from here on beside the worker's operations.
  void use_side(SideLine& side) noexcept { side_ = &side; }

  // See HostReduction.
  void begin(std::vector<GradientSlot>& slots, const PassHeader& header, AnyCommHook& hook) {
    slots_ = &slots;
    header_ = header;
    hook_ = &hook;
    summary_ = {};
  }

  // Tells what this rank has of the next bucket, and learns what all have.
  [[nodiscard]] BucketUse open(const Bucket& bucket, StepClock& clock) {
    const bool is_first = summary_.headers.empty();
    const PassNumbers told{worker_->world_size()};
    std::vector<double> numbers(is_first ? told.count() : 0);
    if (is_first) told.add(header_, worker_->rank(), numbers);
    const std::size_t first_slot = numbers.size();
    for (const std::size_t index : bucket) {
      const GradientSlot& slot = (*slots_)[index];
      numbers.push_back(slot.used ? 1.0 : 0.0);
      numbers.push_back(has_samples() && slot.parameter.grad().defined() ? 1.0 : 0.0);
    }
    if (worker_->world_size() > 1) {
      clock.enter(StepClock::Part::wait);  // so few numbers come as soon as the last rank has come
      all_reduce(buffer_of(numbers));
      clock.enter(StepClock::Part::communication);
    }
    if (is_first) summarise(numbers);
    BucketUse use;
    for (std::size_t at = first_slot; at < numbers.size(); at += 2) {
      use.num_using.push_back(static_cast<std::uint32_t>(numbers[at]));
      use.num_giving.push_back(static_cast<std::uint32_t>(numbers[at + 1]));
    }
    return use;
  }

  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }
  // Takes over what another reduction has learnt of the pass.
  void go_by(const PassSummary& summary) { summary_ = summary; }

  // See HostReduction::average(); the result is the same on all ranks.
  [[nodiscard]] bool average(const OpenSlots& slots) {
    bool is_finite = true;
    OpenSlots open = slots;
    while (!open.empty()) {
      OpenSlots alike;
      OpenSlots others;
      for (const auto& one : open) {
        (are_alike(*one.second, *open.front().second) ? alike : others).push_back(one);
      }
      is_finite &= average_alike(alike);
      open = std::move(others);
    }
    return is_finite;
  }

  // Returns what all ranks say, by sums alone, for a side line has no other operation.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine) {
    return PassNumbers{worker_->world_size()}.gather_texts(
        std::span{&mine, 1}, worker_->rank(), [this](std::vector<std::int64_t>& all) { all_reduce(buffer_of(all)); });
  }

  // See HostReduction.
  [[nodiscard]] std::uint64_t take_bytes() noexcept { return std::exchange(num_bytes_, 0); }

  // Ends every wait beside the worker's operations, from any thread.
  void abort(std::string_view reason) noexcept {
    if (side_ != nullptr) side_->abort(reason);
  }

 private:
  [[nodiscard]] bool has_samples() const noexcept { return header_.samples > 0; }

  void all_reduce(const Buffer& data) {
    if (side_ == nullptr) return worker_->all_reduce(data, ReduceOp::sum);
    side_->all_reduce(data, ReduceOp::sum, {.deadline = worker_->collective_deadline()});
  }

  void summarise(const std::vector<double>& sums) {
    const PassNumbers numbers{worker_->world_size()};
    summary_ = numbers.summary_of(sums);
    summary_.headers = {header_};
    if (numbers.are_together(sums)) return;
    summary_.headers = numbers.gather(std::span{&header_, 1}, worker_->rank(),
                                      [this](std::vector<std::int64_t>& all) { all_reduce(buffer_of(all)); });
  }

  [[nodiscard]] static bool are_alike(const GradientSlot& one, const GradientSlot& other) {
    return one.sum_type() == other.sum_type() && one.parameter.device() == other.parameter.device();
  }

  [[nodiscard]] bool average_alike(const OpenSlots& slots) {
    // With the samples behind them, by micro-batches; those that none of these has reached are so here.
    const bool is_weighted =
        std::any_of(slots.begin(), slots.end(), [](const auto& one) { return one.second->is_weighted; });
    std::int64_t count = 0;
    for (const auto& one : slots) count += one.second->real_count();
    const auto options =
        at::TensorOptions{}.dtype(slots.front().second->sum_type()).device(slots.front().second->parameter.device());
    const at::Tensor flat = at::empty({count}, options);
    num_bytes_ += 2 * flat.nbytes();
    visit_parts(slots, flat, [this, is_weighted](const at::Tensor& part, const GradientSlot& slot) {
      const at::Tensor& gradient = slot.parameter.grad();
      if (!has_samples() || !gradient.defined()) {
        part.zero_();  // left out, not multiplied by zero: it may be NaN
      } else {
        part.copy_(as_real(gradient.is_sparse() ? gradient.to_dense() : gradient));
        if (is_weighted && !slot.is_weighted) part.mul_(header_.samples);
      }
    });
    if (*hook_) {
      // Divided before: what a hook leaves out must weigh as much in a later step, of however many samples.
      if (has_samples()) flat.mul_((is_weighted ? 1 : header_.samples) / summary_.samples);
      std::vector<at::Tensor> parts;
      std::vector<std::size_t> ids;
      visit_parts(slots, flat, [&parts](const at::Tensor& part, const GradientSlot&) { parts.push_back(part); });
      for (const auto& one : slots) ids.push_back(one.first);
      hook_->all_reduce(*worker_, {.flat = flat, .parts = parts, .ids = ids});
    } else {
      if (has_samples() && !is_weighted) flat.mul_(header_.samples);
      all_reduce(buffer_of(flat));
      flat.div_(summary_.samples);
    }
    visit_parts(slots, flat,
                [](const at::Tensor& part, const GradientSlot& slot) { as_real(slot.dense_gradient()).copy_(part); });
    return is_all_finite(flat);
  }

  // Calls visit with each parameter's part of the flat tensor, in the parameter's shape.
  template <class Visit>
  static void visit_parts(const OpenSlots& slots, const at::Tensor& flat, Visit visit) {
    std::int64_t begin = 0;
    for (const auto& one : slots) {
      const std::int64_t count = one.second->real_count();
      const auto shape = as_real(one.second->parameter.detach()).sizes().vec();
      visit(flat.narrow(0, begin, count).view(shape), *one.second);
      begin += count;
    }
  }

  Worker* worker_;
  std::uint64_t num_bytes_ = 0;
  SideLine* side_ = nullptr;
  std::vector<GradientSlot>* slots_ = nullptr;  // of the pass under way, as all that follows
  AnyCommHook* hook_ = nullptr;
  PassHeader header_{};
  PassSummary summary_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
