// SPDX-License-Identifier: MIT
// Averages gradients by the collectives of any backend, in flat buffers. Torch room.
#pragma once

#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/collectives/detail/vector_reduce.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Whether every value is finite; of a sparse tensor those that it holds.
[[nodiscard]] inline bool is_all_finite(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return is_all_finite(tensor._values());
  if (tensor.is_cpu() && tensor.is_non_overlapping_and_dense() && tensor.scalar_type() == at::ScalarType::Float) {
    const std::array<const float*, 1> source{tensor.data_ptr<float>()};
    return sum(SumTask<float>{.sources = source, .count = static_cast<std::size_t>(tensor.numel())});
  }
  return at::isfinite(tensor).all().item<bool>();
}

// One small all-reduce says what the ranks have; then all gradients that somebody gives are copied into one flat tensor
// per dtype and device, summed, and copied back.
class FlatReduction {
 public:
  explicit FlatReduction(Worker& worker) : worker_(&worker) {}

  [[nodiscard]] PassSummary begin(const std::vector<GradientSlot>& slots, const PassHeader& header, bool has_samples) {
    has_samples_ = has_samples;
    samples_ = header.samples;
    std::vector<double> numbers{header.samples, static_cast<double>(header.silent),
                                static_cast<double>(header.wants_stop), static_cast<double>(header.has_ended)};
    const std::size_t first_place = numbers.size();
    for (const std::uint64_t place : {header.loop, header.step, header.pass}) {
      const auto number = static_cast<double>(place);
      numbers.insert(numbers.end(), {number, number * number});
    }
    const std::size_t first_slot = numbers.size();
    for (const GradientSlot& slot : slots) {
      numbers.push_back(slot.used ? 1.0 : 0.0);
      numbers.push_back(has_samples && slot.parameter.grad().defined() ? 1.0 : 0.0);
    }
    if (worker_->world_size() > 1) worker_->all_reduce(buffer_of(numbers), ReduceOp::sum);
    PassSummary summary{.headers = {header},
                        .samples = numbers[0],
                        .num_silent = static_cast<std::uint32_t>(numbers[1]),
                        .num_stopping = static_cast<std::uint32_t>(numbers[2]),
                        .num_ended = static_cast<std::uint32_t>(numbers[3])};
    for (std::size_t at = first_place; at < first_slot; at += 2) {
      // The sum of squares is least when all are equal.
      if (numbers[at + 1] * worker_->world_size() == numbers[at] * numbers[at]) continue;
      summary.headers = gather(header);
      break;
    }
    for (std::size_t at = first_slot; at < numbers.size(); at += 2) {
      summary.num_using.push_back(static_cast<std::uint32_t>(numbers[at]));
      summary.num_giving.push_back(static_cast<std::uint32_t>(numbers[at + 1]));
    }
    return summary;
  }

  // See HostReduction::average().
  [[nodiscard]] bool average(const OpenSlots& slots, const PassSummary& summary, bool is_weighted, AnyCommHook& hook) {
    bool is_finite = true;
    OpenSlots open = slots;
    while (!open.empty()) {
      OpenSlots alike;
      OpenSlots others;
      for (const auto& one : open) {
        (are_alike(*one.second, *open.front().second) ? alike : others).push_back(one);
      }
      is_finite &= average_alike(alike, summary.samples, is_weighted, hook);
      open = std::move(others);
    }
    return is_finite;
  }

 private:
  [[nodiscard]] std::vector<PassHeader> gather(const PassHeader& header) const {
    const std::vector<std::int64_t> own{static_cast<std::int64_t>(header.step), static_cast<std::int64_t>(header.pass),
                                        static_cast<std::int64_t>(header.loop)};
    std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(worker_->world_size()));
    worker_->all_gather(buffer_of(own), buffer_of(all));
    std::vector<PassHeader> headers;
    for (std::size_t at = 0; at < all.size(); at += own.size()) {
      headers.push_back({.num_slots = header.num_slots,
                         .step = static_cast<std::uint64_t>(all[at]),
                         .pass = static_cast<std::uint64_t>(all[at + 1]),
                         .loop = static_cast<std::uint64_t>(all[at + 2])});
    }
    return headers;
  }

  [[nodiscard]] static bool are_alike(const GradientSlot& one, const GradientSlot& other) {
    return one.sum_type() == other.sum_type() && one.parameter.device() == other.parameter.device();
  }

  [[nodiscard]] bool average_alike(const OpenSlots& slots, double samples, bool is_weighted, AnyCommHook& hook) {
    std::int64_t count = 0;
    for (const auto& one : slots) count += one.second->real_count();
    const auto options =
        at::TensorOptions{}.dtype(slots.front().second->sum_type()).device(slots.front().second->parameter.device());
    const at::Tensor flat = at::empty({count}, options);
    visit_parts(slots, flat, [this](const at::Tensor& part, const GradientSlot& slot) {
      const at::Tensor& gradient = slot.parameter.grad();
      if (!has_samples_ || !gradient.defined()) {
        part.zero_();  // left out, not multiplied by zero: it may be NaN
      } else {
        part.copy_(as_real(gradient.is_sparse() ? gradient.to_dense() : gradient));
      }
    });
    if (has_samples_ && !is_weighted) flat.mul_(samples_);
    if (hook) {
      std::vector<at::Tensor> parts;
      std::vector<std::size_t> ids;
      visit_parts(slots, flat, [&parts](const at::Tensor& part, const GradientSlot&) { parts.push_back(part); });
      for (const auto& one : slots) ids.push_back(one.first);
      hook.all_reduce(*worker_, {.flat = flat, .parts = parts, .ids = ids});
    } else {
      worker_->all_reduce(buffer_of(flat), ReduceOp::sum);
    }
    flat.div_(samples);
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
  bool has_samples_ = false;  // on this rank, in the pass that has begun
  double samples_ = 0;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
