// SPDX-License-Identifier: MIT
// What is known of one parameter whose gradients are averaged, and of one backward pass. Torch room.
#pragma once

#include "railyard/torch/detail/tensor_mark.hpp"
#include "railyard/torch/detail/weight_storage.hpp"

#include "railyard/core/buffer.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/train/detail/control_lane.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The part of a parameter that this rank updates for all ranks of the host, which share its weights, or for all ranks,
// which have copies; see PreparedOptimizer. Elements begin to end in the order of memory.
struct GradientPiece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  at::Tensor weights{};            // a view of one dimension; undefined where this rank has no part
  at::Tensor master{};             // the same in f32, where the optimizer updates that; see PrepareOptimizerOptions
  bool is_spent = false;           // an update has used what is in the gradient
  bool is_mixed = false;           // and a backward pass has added to that
  bool is_copy = false;            // a rank of the first host has the same one, and tells of it for both
  bool has_whole_weights = false;  // this rank has the other pieces too, and all of the gradient: on a GPU

  [[nodiscard]] bool is_empty() const noexcept { return begin == end; }

  // What the optimizer updates, and which has the gradient.
  [[nodiscard]] at::Tensor& updated() noexcept { return master.defined() ? master : weights; }
  [[nodiscard]] const at::Tensor& updated() const noexcept { return master.defined() ? master : weights; }

  // Of one more backward pass.
  void add(const at::Tensor& added) {
    at::Tensor& gradient = updated().mutable_grad();
    if (gradient.defined()) {
      gradient.add_(added);
      is_mixed = is_mixed || is_spent;
    } else {
      gradient = added;
      is_spent = is_mixed = false;
    }
  }
};

struct GradientSlot {
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::string name{};
  at::Tensor parameter{};
  NodePointer accumulator{};             // LibTorch itself keeps it only as long as a graph refers to it
  bool used = false;                     // since the last exchange
  bool has_arrived = false;              // at its gradient, in the backward pass under way
  bool has_begun = false;                // a step, since it was prepared
  bool was_trained = false;              // some rank has used it in a pass that was exchanged
  std::weak_ptr<GradientPiece> piece{};  // while an optimizer shares the weights
  std::vector<std::int64_t> strides{};   // of the gradient on every rank, once an exchange has asked
  bool is_weighted = false;              // micro-batches under way have added to the gradient
  at::Tensor before{};                   // what it was before them: it is not weighted with their samples
  TensorMark gradient_mark{};            // as the last of them has left it
  TensorMark parameter_mark{};           // as it was when that one had gone by
  TensorMark parameter_before{};         // and when it began
  at::Tensor stage{};                    // memory that the other ranks see, where the gradient itself is not there
  std::vector<std::int64_t> shape{};     // of the parameter, when its accumulator was hooked
  StorageMark storage{};                 // of the parameter, when the ranks were last known to have equal weights

  // Sums are made in f32 at least: n x gradient would overflow a half type.
  [[nodiscard]] at::ScalarType sum_type() const {
    const at::ScalarType type = parameter.scalar_type();
    return type == at::ScalarType::Double || type == at::ScalarType::ComplexDouble ? at::ScalarType::Double
                                                                                   : at::ScalarType::Float;
  }

  // Whether its model is gone, and every graph that leads to it: nobody knows it but this slot and its accumulator.
  [[nodiscard]] bool is_ended() const {
    return accumulator ? accumulator.use_count() == 1 && parameter.use_count() == 2 : parameter.use_count() == 1;
  }

  // Whether LibTorch has another accumulator for the parameter, as it does after .to().
  [[nodiscard]] bool has_lost_hook() const {
    return torch::autograd::impl::try_get_grad_accumulator(parameter) != accumulator;
  }

  // Elements of the sum: two for a complex number.
  [[nodiscard]] std::int64_t real_count() const { return parameter.numel() * (parameter.is_complex() ? 2 : 1); }
  // Of what is exchanged.
  [[nodiscard]] std::size_t sum_bytes() const {
    return static_cast<std::size_t>(real_count()) * c10::elementSize(sum_type());
  }

  // The parameter's strides if it has no gaps, those of a contiguous tensor otherwise.
  [[nodiscard]] const std::vector<std::int64_t>& gradient_strides() {
    if (!strides.empty() || parameter.dim() == 0) return strides;
    if (parameter.is_non_overlapping_and_dense()) return strides = parameter.strides().vec();
    strides.assign(static_cast<std::size_t>(parameter.dim()), 1);
    for (std::size_t dim = strides.size(); dim-- > 1;) {
      strides[dim - 1] = strides[dim] * std::max<std::int64_t>(parameter.size(static_cast<std::int64_t>(dim)), 1);
    }
    return strides;
  }

  [[nodiscard]] bool has_other_shape() const { return parameter.sizes() != at::IntArrayRef{shape}; }
  // Forgets all that goes by the parameter's shape and type, before its accumulator is hooked. Returns whether LibTorch
  // has forgotten it too: the accumulator lives as long as a graph that leads to it.
  [[nodiscard]] bool forget_shape() {
    strides.clear();
    stage.reset();
    const bool had_other_shape = !shape.empty() && has_other_shape();
    if (had_other_shape) {
      accumulator = {};
      if (torch::autograd::impl::try_get_grad_accumulator(parameter)) return false;
      if (parameter.grad().defined() && parameter.grad().sizes() != parameter.sizes()) parameter.mutable_grad().reset();
    }
    shape = parameter.sizes().vec();
    return true;
  }

  // Gives the gradient memory of its own, after `added` has become it. LibTorch may leave it in memory that another
  // gradient of the pass has as well, if one of the two is a view, and that must not be averaged while it is needed.
  // Where it was added to what was there before, as to a part of a flat tensor of the user's, it stays there.
  void own_memory(const at::Tensor& added) const {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || !gradient.has_storage() || !added.defined() || !added.has_storage()) return;
    if (!added.storage().is_alias_of(gradient.storage())) return;
    // A view that nothing else is known of has a base.
    const std::size_t num_known = added.is_view() && added._base().use_count() == 1 ? 3 : 2;
    if (gradient.storage().use_count() > num_known) gradient = gradient.clone();
  }

  // Called before a micro-batch adds to the gradient.
  void begin_weighting() {
    if (std::exchange(is_weighted, true)) return;
    before = parameter.grad();
    parameter.mutable_grad().reset();
  }

  // Adds to what was there before, once, as if that had come with the samples of this rank, by which all is divided in
  // the end. More may still be added by micro-batches.
  void end_weighting(double samples) {
    if (!before.defined()) return;
    at::Tensor earlier = std::exchange(before, {});
    const at::NoGradGuard no_grad;
    at::Tensor& gradient = parameter.mutable_grad();
    earlier.mul_(samples);
    if (!gradient.defined()) {
      gradient = earlier;
    } else if (earlier.is_sparse() && !gradient.is_sparse()) {  // which cannot take a dense one
      gradient.add_(earlier);
    } else {
      gradient = earlier.add_(gradient);
    }
  }

  // Called when a micro-batch has added to the gradient.
  void mark() {
    gradient_mark = TensorMark::of(parameter.grad());
    parameter_mark = TensorMark::of(parameter);
  }

  // Whether the gradient is as the last micro-batch has left it.
  [[nodiscard]] bool has_same_gradient() const { return TensorMark::of(parameter.grad()) == gradient_mark; }
  // Called when a micro-batch begins. Returns whether the weights are as they were when the one before had gone by, or
  // began: a forward pass may change them, and a loop may change them for a pass and put them back.
  [[nodiscard]] bool begin_micro_batch() {
    const TensorMark now = TensorMark::of(parameter);
    const TensorMark then = std::exchange(parameter_before, now);
    return !is_weighted || now.holds_same(parameter_mark) || now.holds_same(then);
  }
  // Forgets micro-batches whose step has never been exchanged, unless the loop has done so.
  void end_unexchanged() {
    if (!is_weighted) return;
    if (!has_same_gradient()) before = parameter.grad();
    forget_micro_batches();
  }

  // They will not be completed.
  void forget_micro_batches() {
    used = false;
    if (std::exchange(is_weighted, false)) parameter.mutable_grad() = std::exchange(before, {});
  }

  // The gradient, made if there is none. A sparse one becomes dense: the rows that other ranks have used are others.
  [[nodiscard]] at::Tensor& dense_gradient() const {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || gradient.is_sparse()) gradient = at::empty_like(parameter.detach());
    return gradient;
  }
};

[[nodiscard]] inline bool are_all_on_cpu(const std::vector<GradientSlot>& slots) {
  return std::all_of(slots.begin(), slots.end(), [](const auto& slot) { return slot.parameter.is_cpu(); });
}

// Whether all are on a GPU that is the worker's.
[[nodiscard]] inline bool are_all_on(const std::vector<GradientSlot>& slots, const Device& device) {
  return device.kind == DeviceKind::cuda &&
         std::all_of(slots.begin(), slots.end(), [&device](const GradientSlot& slot) {
           return slot.parameter.is_cuda() && slot.parameter.get_device() == device.index;
         });
}

// What the other passes of a step have left would be half a step.
inline void drop_gradients(const std::vector<GradientSlot>& slots) {
  for (const GradientSlot& slot : slots) {
    slot.parameter.mutable_grad().reset();
    if (const auto piece = slot.piece.lock(); piece && !piece->is_empty()) piece->updated().mutable_grad().reset();
  }
}

// Numbers of slots that are exchanged together.
using Bucket = std::vector<std::size_t>;

// What the ranks have of the slots of a bucket, one after another.
struct BucketUse {
  std::vector<std::uint32_t> num_using{};   // ranks that have used it
  std::vector<std::uint32_t> num_giving{};  // ranks with samples that have a gradient
};

// Slots that an exchange averages, with their numbers.
using OpenSlots = std::vector<std::pair<std::size_t, GradientSlot*>>;

// Cuts tensors, one after another, each beginning at a whole cache line, into one part per rank.
class RankPart {
 public:
  // counts: elements of each tensor.
  RankPart(const std::vector<std::int64_t>& counts, std::int64_t rank, std::int64_t size) {
    std::int64_t num_lines = 0;
    for (const std::int64_t count : counts) num_lines += lines_of(count);
    first_ = num_lines * rank / size * line;
    last_ = num_lines * (rank + 1) / size * line;
  }

  // Begin and end of this rank's part of the next tensor.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> next(std::int64_t count) {
    const std::int64_t at = std::exchange(at_, at_ + lines_of(count) * line);
    return {std::clamp<std::int64_t>(first_ - at, 0, count), std::clamp<std::int64_t>(last_ - at, 0, count)};
  }

 private:
  static constexpr std::int64_t line = 64;
  [[nodiscard]] static std::int64_t lines_of(std::int64_t count) noexcept { return (count + line - 1) / line; }

  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
  std::int64_t at_ = 0;
};

[[nodiscard]] inline at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// Of those that train; a few elements of each tell weights that were initialised anew, or loaded.
[[nodiscard]] inline std::uint64_t digest_of_weights(const std::vector<GradientSlot>& slots) {
  std::uint64_t digest = 0;
  for (const GradientSlot& slot : slots) {
    if (!slot.parameter.requires_grad()) continue;
    const std::uint64_t elements = TensorMark::of(slot.parameter).elements;
    digest = digest_of(std::as_bytes(std::span{&elements, 1}), digest);
  }
  return short_digest(digest);
}

// What one rank says with the first bucket of an exchange.
struct PassHeader {
  double samples = 0;        // behind what is exchanged
  std::uint32_t silent = 0;  // it has not said how many
  std::uint32_t num_slots = 0;
  std::uint32_t has_replaced = 0;  // the memory of weights; see StorageMark
  std::uint64_t step = 0;
  std::uint64_t pass = 0;  // of that step
  std::uint64_t loop = 0;  // over training data, in which it is
  double waited = 0;       // seconds in all, for others
  Wishes wishes{};
  std::uint32_t has_ended = 0;  // its data, with this step
  std::uint64_t updates = 0;    // see UpdateDigest
  std::uint64_t weights = 0;    // digest_of_weights() in the first pass after a model was prepared, else 0
  std::uint64_t data = 0;       // digest of ControlLane::data()
  double weights_seen = 0;      // WeightWatch::number() of the step

  [[nodiscard]] bool is_together_with(const PassHeader& other) const noexcept {
    return num_slots == other.num_slots && step == other.step && pass == other.pass && loop == other.loop &&
           updates == other.updates && weights == other.weights && data == other.data;
  }
};

// What all ranks know after it.
struct PassSummary {
  std::vector<PassHeader> headers{};  // by rank; where nobody can be told apart, one for all
  double samples = 0;                 // on all ranks
  std::uint32_t num_silent = 0;       // ranks that have not said how many
  std::uint32_t num_ended = 0;        // ranks whose data ends with this step
  std::uint32_t num_replaced = 0;     // ranks that have replaced the memory of weights
  bool are_weights_apart = false;     // see WeightWatch
  Wishes wishes{};                    // of any rank
  std::vector<double> waits{};        // seconds that each rank had waited for others when it began, by rank
};

}  // namespace detail

}  // namespace railyard::inline v0_1
