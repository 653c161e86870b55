// SPDX-License-Identifier: MIT
// Averages gradients by the collectives of any backend, in flat buffers. Torch room.
#pragma once

#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/collectives/detail/vector_reduce.hpp"
#include "railyard/core/side_line.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
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

// The name of the first parameter whose gradient, or what this rank has of it, is not finite; empty if there is none.
[[nodiscard]] inline std::string first_not_finite(const OpenSlots& open) {
  for (const auto& one : open) {
    const auto piece = one.second->piece.lock();
    const bool has_piece = piece && !piece->is_empty();
    const at::Tensor& gradient = has_piece ? piece->weights.grad() : one.second->parameter.grad();
    if (gradient.defined() && !is_all_finite(gradient)) return one.second->name;
  }
  return "";
}

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
  [[nodiscard]] BucketUse open(const Bucket& bucket) {
    const bool is_first = summary_.headers.empty();
    std::vector<double> numbers = is_first ? numbers_of_header() : std::vector<double>{};
    const std::size_t first_slot = numbers.size();
    for (const std::size_t index : bucket) {
      const GradientSlot& slot = (*slots_)[index];
      numbers.push_back(slot.used ? 1.0 : 0.0);
      numbers.push_back(has_samples() && slot.parameter.grad().defined() ? 1.0 : 0.0);
    }
    if (worker_->world_size() > 1) all_reduce(buffer_of(numbers));
    if (is_first) summarise(numbers);
    BucketUse use;
    for (std::size_t at = first_slot; at < numbers.size(); at += 2) {
      use.num_using.push_back(static_cast<std::uint32_t>(numbers[at]));
      use.num_giving.push_back(static_cast<std::uint32_t>(numbers[at + 1]));
    }
    return use;
  }

  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }

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

  // What is the same on all ranks that are together.
  using Places = std::array<std::uint64_t, 5>;
  [[nodiscard]] static Places places_of(const PassHeader& header) noexcept {
    return {header.loop, header.step, header.pass, header.updates, header.weights};
  }

  // The sum of squares over all ranks is least when all are equal.
  [[nodiscard]] std::vector<double> numbers_of_header() const {
    std::vector<double> numbers{header_.samples, static_cast<double>(header_.silent),
                                static_cast<double>(header_.has_ended)};
    const auto wishes = header_.wishes.numbers<double>();
    numbers.insert(numbers.end(), wishes.begin(), wishes.end());
    for (const std::uint64_t place : places_of(header_)) {
      const auto number = static_cast<double>(place);
      numbers.insert(numbers.end(), {number, number * number});
    }
    return numbers;
  }

  void summarise(const std::vector<double>& sums) {
    constexpr std::size_t wishes = 3;
    constexpr std::size_t places = wishes + Wishes::count;
    summary_ = {.headers = {header_},
                .samples = sums[0],
                .num_silent = static_cast<std::uint32_t>(sums[1]),
                .num_ended = static_cast<std::uint32_t>(sums[2]),
                .wishes = Wishes::of_anyone<double>(std::span{sums}.subspan<wishes, Wishes::count>())};
    for (std::size_t at = places; at < places + 2 * std::tuple_size_v<Places>; at += 2) {
      if (sums[at + 1] * worker_->world_size() == sums[at] * sums[at]) continue;
      summary_.headers = gather();
      return;
    }
  }

  [[nodiscard]] std::vector<PassHeader> gather() {
    const Places own = places_of(header_);
    std::vector<std::int64_t> places(own.size() * static_cast<std::size_t>(worker_->world_size()));
    const std::size_t begin = own.size() * static_cast<std::size_t>(worker_->rank());
    std::copy(own.begin(), own.end(), places.begin() + static_cast<std::ptrdiff_t>(begin));
    all_reduce(buffer_of(places));
    std::vector<PassHeader> headers;
    for (std::size_t at = 0; at < places.size(); at += own.size()) {
      headers.push_back({.num_slots = header_.num_slots,
                         .step = static_cast<std::uint64_t>(places[at + 1]),
                         .pass = static_cast<std::uint64_t>(places[at + 2]),
                         .loop = static_cast<std::uint64_t>(places[at]),
                         .updates = static_cast<std::uint64_t>(places[at + 3]),
                         .weights = static_cast<std::uint64_t>(places[at + 4])});
    }
    return headers;
  }

  [[nodiscard]] static bool are_alike(const GradientSlot& one, const GradientSlot& other) {
    return one.sum_type() == other.sum_type() && one.parameter.device() == other.parameter.device();
  }

  [[nodiscard]] bool average_alike(const OpenSlots& slots) {
    const bool is_weighted = header_.is_weighted != 0;
    std::int64_t count = 0;
    for (const auto& one : slots) count += one.second->real_count();
    const auto options =
        at::TensorOptions{}.dtype(slots.front().second->sum_type()).device(slots.front().second->parameter.device());
    const at::Tensor flat = at::empty({count}, options);
    num_bytes_ += 2 * flat.nbytes();
    visit_parts(slots, flat, [this](const at::Tensor& part, const GradientSlot& slot) {
      const at::Tensor& gradient = slot.parameter.grad();
      if (!has_samples() || !gradient.defined()) {
        part.zero_();  // left out, not multiplied by zero: it may be NaN
      } else {
        part.copy_(as_real(gradient.is_sparse() ? gradient.to_dense() : gradient));
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
