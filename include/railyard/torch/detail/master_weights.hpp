// SPDX-License-Identifier: MIT
// Copies in f32 of weights in half types. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] inline bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::ScalarType::Half || tensor.scalar_type() == at::ScalarType::BFloat16;
}

// Takes over weights that are no longer what the copy rounds to: they were loaded, or written to, which goes past it.
inline void follow_weights(const at::Tensor& master, const at::Tensor& weights) {
  const at::Tensor rounded = master.to(weights.scalar_type());
  if (weights.is_cpu() && at::equal(rounded, weights.detach())) return;  // a GPU's answer would have to be waited for
  master.copy_(at::where(rounded.eq(weights.detach()), master, weights.detach().to(master.scalar_type())));
}

}  // namespace detail

}  // namespace railyard::inline v0_1
