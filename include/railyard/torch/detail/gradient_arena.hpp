// SPDX-License-Identifier: MIT
// The memory in which gradients are summed on a device. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Is one slot's place in a part of the arena.
struct GradientPlace {
  std::size_t slot = 0;    // its number
  std::int64_t begin = 0;  // elements of the part
  std::int64_t count = 0;  // real numbers
  at::Tensor sum{};        // these elements, with one dimension
  at::Tensor gradient{};   // the same in the parameter's shape; undefined if its type is another one
};

// Is what one bucket has of one type: a flat tensor, which one collective sums. Between places there may be elements
// that are always zero.
struct GradientPart {
  at::Tensor flat{};
  at::Tensor zeros{};  // as many as there may be between two places
  std::vector<GradientPlace> places{};
};

// One flat tensor for each type of sums, divided into buckets, in their order. Slots in no bucket have no place. It is
// made anew when the buckets, or the parameters, are others; .grad may go on to be a part of an old one.
class GradientArena {
 public:
  // Makes place for all slots, which lie on one device. Cost: none where it has been done.
  void lay_out(std::vector<GradientSlot>& slots, const std::vector<Bucket>& buckets, std::int64_t world_size) {
    if (is_laid_out_for(slots, buckets)) return;
    buckets_ = buckets;
    keys_.clear();
    for (const GradientSlot& slot : slots) keys_.push_back(Key::of(slot));
    parts_.assign(buckets.size(), {});
    wholes_.clear();
    has_.assign(slots.size(), false);
    for (const Bucket& bucket : buckets) {
      for (const std::size_t index : bucket) has_[index] = true;
    }
    for (const at::ScalarType type : {at::ScalarType::Float, at::ScalarType::Double}) lay_out(slots, type, world_size);
  }

  [[nodiscard]] const std::vector<GradientPart>& parts_of(std::size_t bucket) const { return parts_[bucket]; }
  [[nodiscard]] const std::vector<std::vector<GradientPart>>& parts() const noexcept { return parts_; }
  [[nodiscard]] bool has(std::size_t slot) const { return slot < has_.size() && has_[slot]; }
  // All parts of one type as one tensor.
  [[nodiscard]] const std::vector<at::Tensor>& wholes() const noexcept { return wholes_; }

  // Whether the slot's gradient lies in its place.
  [[nodiscard]] static bool is_in(const GradientPlace& place, const GradientSlot& slot) {
    const at::Tensor& gradient = slot.parameter.grad();
    return place.gradient.defined() && gradient.defined() && !gradient.is_sparse() &&
           gradient.data_ptr() == place.gradient.data_ptr() && gradient.strides() == place.gradient.strides();
  }

  // Copies gradients that lie elsewhere, each dense and of the sum's type, to their places in a part: all of it at
  // once, in one pass.
  static void copy_all(const GradientPart& part, const std::vector<GradientSlot>& slots) {
    std::vector<at::Tensor> pieces;
    std::int64_t end = 0;
    const auto fill_to = [&](std::int64_t begin) {
      if (begin > end) pieces.push_back(piece_of(part.zeros, 0, begin - end));
    };
    for (const GradientPlace& place : part.places) {
      fill_to(place.begin);
      pieces.push_back(flat_of(slots[place.slot].parameter.grad(), place.count));
      end = place.begin + place.count;
    }
    fill_to(part.flat.numel());
    at::Tensor flat = part.flat;
    at::cat_out(flat, pieces);
  }

  // Whether copy_all() may copy it: it has its elements in the same order.
  [[nodiscard]] static bool is_alike(const GradientPlace& place, const GradientSlot& slot) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (!place.gradient.defined() || !gradient.defined() || gradient.is_sparse()) return false;
    if (gradient.scalar_type() != place.gradient.scalar_type() || gradient.sizes() != place.gradient.sizes())
      return false;
    for (std::int64_t dim = 0; dim < gradient.dim(); ++dim) {
      if (gradient.size(dim) > 1 && gradient.stride(dim) != place.gradient.stride(dim)) return false;
    }
    return true;
  }

 private:
  struct Key {
    const void* tensor = nullptr;
    at::ScalarType type = at::ScalarType::Float;
    std::vector<std::int64_t> sizes{};

    [[nodiscard]] static Key of(const GradientSlot& slot) {
      return {slot.parameter.unsafeGetTensorImpl(), slot.parameter.scalar_type(), slot.shape};
    }
    [[nodiscard]] bool is_of(const GradientSlot& slot) const {
      return tensor == slot.parameter.unsafeGetTensorImpl() && type == slot.parameter.scalar_type() &&
             sizes == slot.shape;
    }
  };

  static constexpr std::int64_t alignment = 4;  // elements: kernels read four at once

  [[nodiscard]] bool is_laid_out_for(const std::vector<GradientSlot>& slots, const std::vector<Bucket>& buckets) const {
    return keys_.size() == slots.size() && buckets_ == buckets &&
           std::equal(keys_.begin(), keys_.end(), slots.begin(),
                      [](const Key& key, const GradientSlot& slot) { return key.is_of(slot); });
  }

  // Those of one type. Each bucket's part can be divided among the ranks.
  void lay_out(std::vector<GradientSlot>& slots, at::ScalarType type, std::int64_t world_size) {
    const auto up_to = [](std::int64_t count, std::int64_t multiple) {
      return (count + multiple - 1) / multiple * multiple;
    };
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    std::int64_t end = 0;
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      GradientPart part;
      std::int64_t count = 0;
      for (const std::size_t index : buckets_[bucket]) {
        if (slots[index].sum_type() != type) continue;
        part.places.push_back({.slot = index, .begin = count, .count = slots[index].real_count()});
        count = up_to(count + slots[index].real_count(), alignment);
      }
      if (count == 0) continue;
      count = up_to(count, alignment * world_size);
      ranges.emplace_back(end, count);
      end += count;
      parts_[bucket].push_back(std::move(part));
    }
    if (end == 0) return;
    const auto options = at::TensorOptions{}.dtype(type).device(slots.front().parameter.device());
    const at::Tensor whole = at::zeros({end}, options);
    const at::Tensor zeros = at::zeros({alignment * (world_size + 1)}, options);
    wholes_.push_back(whole);
    auto range = ranges.begin();
    for (auto& of_bucket : parts_) {
      if (of_bucket.empty() || of_bucket.back().flat.defined()) continue;
      GradientPart& part = of_bucket.back();
      part.flat = piece_of(whole, range->first, range->second);
      part.zeros = zeros;
      for (GradientPlace& place : part.places) {
        place.sum = piece_of(part.flat, part.flat.storage_offset() + place.begin, place.count);
        place.gradient = gradient_in(place, slots[place.slot]);
      }
      ++range;
    }
  }

  // No view, or zero_grad() of LibTorch 1.13 would refuse it.
  [[nodiscard]] static at::Tensor piece_of(const at::Tensor& whole, std::int64_t offset, std::int64_t count) {
    return shaped(whole, offset, {count}, {1});
  }
  [[nodiscard]] static at::Tensor shaped(const at::Tensor& tensor, std::int64_t offset,
                                         const std::vector<std::int64_t>& sizes,
                                         const std::vector<std::int64_t>& strides) {
    at::Tensor piece = tensor.variable_data();
    auto* const impl = piece.unsafeGetTensorImpl();
    impl->set_allow_tensor_metadata_change(true);
    impl->set_storage_offset(offset);
    impl->set_sizes_and_strides(sizes, strides);
    return piece;
  }

  [[nodiscard]] static at::Tensor gradient_in(const GradientPlace& place, GradientSlot& slot) {
    const at::Tensor& parameter = slot.parameter;
    const auto sizes = parameter.sizes().vec();
    if (!parameter.is_complex()) {
      if (parameter.scalar_type() != place.sum.scalar_type()) return {};
      return shaped(place.sum, place.sum.storage_offset(), sizes, slot.gradient_strides());
    }
    const at::Tensor pairs = shaped(place.sum, place.sum.storage_offset(), {place.count / 2, 2}, {2, 1});
    const at::Tensor numbers = at::view_as_complex(pairs);
    if (parameter.scalar_type() != numbers.scalar_type()) return {};
    return shaped(numbers, numbers.storage_offset(), sizes, slot.gradient_strides());
  }

  // In the order of memory, which strides that are the place's have in common with it.
  [[nodiscard]] static at::Tensor flat_of(const at::Tensor& gradient, std::int64_t count) {
    const at::Tensor numbers = as_real(gradient);
    return shaped(numbers, numbers.storage_offset(), {count}, {1});
  }

  std::vector<Bucket> buckets_{};
  std::vector<Key> keys_{};                         // by slot
  std::vector<std::vector<GradientPart>> parts_{};  // by bucket, then by type
  std::vector<at::Tensor> wholes_{};                // by type
  std::vector<bool> has_{};                         // by slot
};

}  // namespace detail

}  // namespace railyard::inline v0_1
