// SPDX-License-Identifier: MIT
// Looks for gradients that are not finite. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"

#include "railyard/callbacks/detail/number.hpp"
#include "railyard/collectives/detail/vector_reduce.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstddef>
#include <limits>
#include <string>
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

// What of a device's tensors is not finite makes this number so, on the device, for which the host does not wait.
// Cost: one kernel for some hundred tensors of f16, f32 or f64, which writes back what it reads; two for any other.
[[nodiscard]] inline at::Tensor finite_mark(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> many;
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor numbers = as_real(tensor);
    const bool is_alike = many.empty() || numbers.scalar_type() == many.front().scalar_type();
    const bool is_known = numbers.scalar_type() != at::ScalarType::BFloat16 && numbers.is_non_overlapping_and_dense();
    (is_known && is_alike && tensors.size() > 2 ? many : others).push_back(numbers);
  }
  const auto options = at::TensorOptions{}.dtype(at::ScalarType::Float).device(tensors.front().device());
  at::Tensor mark;
  if (!many.empty()) {
    at::Tensor found = at::zeros({}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(many, found, at::ones({}, options));
    mark = found * std::numeric_limits<float>::max() * 2;  // 0, or infinite
  }
  for (const at::Tensor& numbers : others) {
    const at::Tensor largest = at::linalg_vector_norm(numbers, std::numeric_limits<double>::infinity());
    mark = mark.defined() ? at::maximum(mark, largest) : largest;
  }
  return mark;
}

// Of tensors of one device; the host waits for it once.
[[nodiscard]] inline bool are_all_finite(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() || is_finite(finite_mark(tensors).item<double>());
}

// The name of the first parameter whose gradient, or what this rank has of it, is not finite; empty if there is none.
[[nodiscard]] inline std::string first_not_finite(const OpenSlots& open) {
  for (const auto& one : open) {
    const auto piece = one.second->piece.lock();
    const bool has_piece = piece && !piece->is_empty() && !piece->has_whole_weights;
    const at::Tensor& gradient = has_piece ? piece->updated().grad() : one.second->parameter.grad();
    if (gradient.defined() && !is_all_finite(gradient)) return one.second->name;
  }
  return "";
}

}  // namespace detail

}  // namespace railyard::inline v0_1
