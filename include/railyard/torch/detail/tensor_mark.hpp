// SPDX-License-Identifier: MIT
// Tells whether a tensor was touched. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"

#include "railyard/core/detail/digest.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace railyard::inline v0_1 {

namespace detail {

// By which it is seen, nearly for nothing, whether a tensor was changed in place or replaced. LibTorch's own optimizers
// and clip_grad_norm_() go past the version counter, so a few elements are looked at as well.
struct TensorMark {
  const void* tensor = nullptr;
  std::uint32_t version = 0;
  std::uint64_t elements = 0;

  [[nodiscard]] static TensorMark of(const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    TensorMark mark{.tensor = tensor.unsafeGetTensorImpl()};
    // A view counts what is done to any part of what it is a view of.
    if (!tensor.is_view()) mark.version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
    if (!tensor.is_cpu() || tensor.layout() != c10::kStrided || !tensor.is_non_overlapping_and_dense()) return mark;
    constexpr std::int64_t num_looked_at = 8;
    const auto size = static_cast<std::size_t>(tensor.element_size());
    const std::int64_t last = tensor.numel() - 1;
    const auto* bytes = static_cast<const std::byte*>(tensor.data_ptr());
    for (std::int64_t at = 0; last >= 0 && at < num_looked_at; ++at) {
      const std::int64_t element = last * at / (num_looked_at - 1);
      mark.elements = digest_of({bytes + static_cast<std::size_t>(element) * size, size}, mark.elements);
    }
    return mark;
  }
  [[nodiscard]] bool operator==(const TensorMark&) const = default;
  // Whether the values are the same, changed in between or not.
  [[nodiscard]] bool holds_same(const TensorMark& other) const noexcept {
    return tensor == other.tensor && elements == other.elements;
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1
