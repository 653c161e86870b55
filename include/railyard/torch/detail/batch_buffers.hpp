// SPDX-License-Identifier: MIT
// The memory that batches are written to, used again once nobody holds it. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Gives out tensors, each new, over memory that no other tensor has: whatever holds one, be it a view, a graph or the
// user, also holds its storage, and so keeps it from being given out again. Used by one thread at a time; tensors may
// be let go of on any.
class BatchBuffers {
 public:
  // most_kept: tensors whose memory is used again; that of others goes back when they are let go of. is_pinned: copies
  // to a GPU may still read it then, which LibTorch looks to, as it also keeps it for the next: most_kept is to be 0.
  explicit BatchBuffers(std::size_t most_kept, bool is_pinned = false) noexcept
      : most_kept_(most_kept), is_pinned_(is_pinned) {}

  // Its elements are whatever was there.
  [[nodiscard]] at::Tensor take(at::IntArrayRef shape, at::ScalarType type) {
    const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>{});
    const std::size_t size = static_cast<std::size_t>(count) * c10::elementSize(type);
    const auto free = std::find_if(kept_.begin(), kept_.end(), [size](const c10::Storage& storage) {
      return storage.use_count() == 1 && storage.nbytes() >= size && storage.nbytes() / 2 <= size;
    });
    if (free == kept_.end()) return take_new(shape, type);
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage{*free}, c10::DispatchKeySet{c10::DispatchKey::CPU}, c10::scalarTypeToTypeMeta(type));
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
    return tensor;
  }

 private:
  [[nodiscard]] at::Tensor take_new(at::IntArrayRef shape, at::ScalarType type) {
    at::Tensor tensor = at::empty(shape, at::TensorOptions(type).pinned_memory(is_pinned_));
    if (most_kept_ == 0) return tensor;
    if (kept_.size() == most_kept_) kept_.erase(kept_.begin());
    kept_.push_back(tensor.storage());
    return tensor;
  }

  std::size_t most_kept_;
  bool is_pinned_;
  std::vector<c10::Storage> kept_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
