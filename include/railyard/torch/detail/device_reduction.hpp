// SPDX-License-Identifier: MIT
// Averages gradients on a device while its backward pass goes on. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_arena.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/non_finite.hpp"
#include "railyard/torch/detail/pass_numbers.hpp"
#include "railyard/torch/detail/step_clock.hpp"
#include "railyard/torch/detail/worker_gpu.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/device_line.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// What goes to the device and comes from it has its order there: each bucket's sum begins when the stream on which the
// backward pass puts its kernels has come to it, on the line's own stream; and when the pass has ended its stream waits
// for the last of them. The host puts all of it there and waits for nothing of the device.
//
// Since nobody knows then what the other ranks have, each rank gives, of every gradient of a bucket, what it has times
// its samples, and zeros where it has none. What the ranks have said of themselves, at the end of the pass and by way
// of the host, tells by what the sums are to be divided, and which of them are gradients.
//
// Used by one thread at a time.
class DeviceReduction {
 public:
  DeviceReduction(Worker& worker, DeviceLine& line) : worker_(&worker), line_(&line) {}

  void begin(std::vector<GradientSlot>& slots, const std::vector<Bucket>& buckets, const PassHeader& header) {
    slots_ = &slots;
    header_ = header;
    summary_ = {};
    kept_.assign(slots.size(), {});
    arena_.lay_out(slots, buckets, worker_->world_size());
  }

  // Puts the sum of a bucket on the device, which no gradient may be added to any more. Buckets come in their order.
  void launch(std::size_t bucket) {
    for (const GradientPart& part : arena_.parts_of(bucket)) {
      fill(part);
      line_->all_reduce(buffer_of(part.flat), ReduceOp::sum, call_behind(part.flat));
      num_bytes_ += 2 * part.flat.nbytes();
    }
  }

  // Tells what this rank has, when all buckets have been launched, and learns what all have, of each slot.
  [[nodiscard]] BucketUse meet(StepClock& clock) {
    const PassNumbers told{worker_->world_size()};
    std::vector<double> numbers(told.count());
    told.add(header_, worker_->rank(), numbers);
    for (const GradientSlot& slot : *slots_) {
      numbers.push_back(slot.used ? 1.0 : 0.0);
      numbers.push_back(has_samples() && slot.parameter.grad().defined() ? 1.0 : 0.0);
    }
    clock.enter(StepClock::Part::wait);  // so few numbers come as soon as the last rank has come
    add_up(buffer_of(numbers));
    clock.enter(StepClock::Part::communication);
    summarise(numbers);
    BucketUse use;
    for (std::size_t at = told.count(); at < numbers.size(); at += 2) {
      use.num_using.push_back(static_cast<std::uint32_t>(numbers[at]));
      use.num_giving.push_back(static_cast<std::uint32_t>(numbers[at + 1]));
    }
    return use;
  }

  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }

  // Makes the sums gradients, and leaves those alone that nobody has used.
  void average(const BucketUse& use) {
    if (arena_.wholes().empty()) return;
    line_->join(call_behind(arena_.wholes().front()));
    for (at::Tensor whole : arena_.wholes()) whole.div_(summary_.samples);
    for (const auto& of_bucket : arena_.parts()) {
      for (const GradientPart& part : of_bucket) {
        for (const GradientPlace& place : part.places) take(place, use);
      }
    }
    kept_.clear();
  }

  // Whether all averages are finite, the same on all ranks. The host waits for the device.
  [[nodiscard]] bool is_finite() const {
    line_->wait(worker_->collective_deadline());  // which tells of ranks that are gone
    return are_all_finite(arena_.wholes());
  }

  // See FlatReduction.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine) {
    return PassNumbers{worker_->world_size()}.gather_texts(
        std::span{&mine, 1}, worker_->rank(), [this](std::vector<std::int64_t>& all) { add_up(buffer_of(all)); });
  }

  // Where each bucket's gradients are, from average() on, on the stream that was current then.
  [[nodiscard]] const GradientArena& arena() const noexcept { return arena_; }

  [[nodiscard]] std::uint64_t take_bytes() noexcept { return std::exchange(num_bytes_, 0); }

  void abort(std::string_view reason) noexcept { line_->abort(reason); }

 private:
  [[nodiscard]] bool has_samples() const noexcept { return header_.samples > 0; }
  // What a slot's gradient is multiplied with before it is summed.
  [[nodiscard]] double factor_of(const GradientSlot& slot) const noexcept {
    return slot.is_weighted ? 1 : header_.samples;
  }

  // Behind what is computed where the tensor lies.
  [[nodiscard]] Call call_behind(const at::Tensor& tensor) const {
    return {.deadline = worker_->collective_deadline(), .stream = current_stream(tensor.device())};
  }

  void add_up(const Buffer& numbers) {
    line_->add_on_host(numbers, {.deadline = worker_->collective_deadline(), .stream = {}});
  }

  void summarise(const std::vector<double>& sums) {
    const PassNumbers numbers{worker_->world_size()};
    summary_ = numbers.summary_of(sums);
    summary_.headers = {header_};
    if (numbers.are_together(sums)) return;
    summary_.headers = numbers.gather(std::span{&header_, 1}, worker_->rank(),
                                      [this](std::vector<std::int64_t>& all) { add_up(buffer_of(all)); });
  }

  // Brings this rank's gradients into a part, times its samples.
  void fill(const GradientPart& part) {
    std::size_t num_in_place = 0;
    std::size_t num_alike = 0;
    std::size_t num_of_first = 0;  // that have the same factor
    const double factor = factor_of((*slots_)[part.places.front().slot]);
    for (const GradientPlace& place : part.places) {
      const GradientSlot& slot = (*slots_)[place.slot];
      keep(place, slot);
      num_in_place += GradientArena::is_in(place, slot) ? 1U : 0U;
      num_alike += GradientArena::is_alike(place, slot) ? 1U : 0U;
      num_of_first += factor_of(slot) == factor ? 1U : 0U;
    }
    const std::size_t count = part.places.size();
    if (!has_samples()) {
      part.flat.zero_();  // left out, not multiplied by zero: it may be NaN
    } else if (num_of_first == count && num_in_place == count) {
      part.flat.mul_(factor);
    } else if (num_of_first == count && num_alike == count && num_in_place == 0) {
      GradientArena::copy_all(part, *slots_);
      if (factor != 1) part.flat.mul_(factor);
    } else {
      for (const GradientPlace& place : part.places) fill(place);
    }
    for (const GradientPlace& place : part.places) {
      const GradientSlot& slot = (*slots_)[place.slot];
      // From here on the memory that it came in is free.
      if (slot.parameter.grad().defined() && place.gradient.defined() && slot.used) {
        slot.parameter.mutable_grad() = place.gradient;
      }
    }
  }

  void fill(const GradientPlace& place) {
    const GradientSlot& slot = (*slots_)[place.slot];
    const at::Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined()) {
      place.sum.zero_();
    } else if (GradientArena::is_in(place, slot)) {
      place.sum.mul_(factor_of(slot));
    } else {
      const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
      if (place.gradient.defined()) {
        place.gradient.copy_(dense);
      } else {
        in_shape_of(place, slot).copy_(as_real(dense));
      }
      place.sum.mul_(factor_of(slot));
    }
  }

  // What lies in the place of a slot that this rank has not used: if nobody has it is to stay as it was.
  void keep(const GradientPlace& place, const GradientSlot& slot) {
    if (!slot.used && GradientArena::is_in(place, slot)) kept_[place.slot] = slot.parameter.grad().clone();
  }

  // The sum of what has another type than it.
  [[nodiscard]] static at::Tensor in_shape_of(const GradientPlace& place, const GradientSlot& slot) {
    return place.sum.view(as_real(slot.parameter.detach()).sizes());
  }

  void take(const GradientPlace& place, const BucketUse& use) {
    const GradientSlot& slot = (*slots_)[place.slot];
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (use.num_using[place.slot] == 0) {
      if (kept_[place.slot].defined()) place.gradient.copy_(kept_[place.slot]);
    } else if (use.num_giving[place.slot] == 0) {
      gradient.reset();  // used by ranks without samples only, so nothing may remain of it
    } else if (place.gradient.defined()) {
      gradient = place.gradient;
    } else {
      as_real(slot.dense_gradient()).copy_(in_shape_of(place, slot));
    }
  }

  Worker* worker_;
  DeviceLine* line_;
  GradientArena arena_{};
  std::uint64_t num_bytes_ = 0;
  std::vector<GradientSlot>* slots_ = nullptr;  // of the pass under way, as all that follows
  PassHeader header_{};
  PassSummary summary_{};
  std::vector<at::Tensor> kept_{};  // by slot
};

}  // namespace detail

}  // namespace railyard::inline v0_1
