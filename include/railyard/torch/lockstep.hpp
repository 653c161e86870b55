// SPDX-License-Identifier: MIT
// Knows the size of LibTorch's batches for lockstep(). Torch room.
#pragma once

#include "railyard/train/lockstep.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The first dimension counts the samples; a vector holds examples that have not been stacked.
struct SizeOfBatch {
  [[nodiscard]] std::uint64_t operator()(const at::Tensor& batch) const {
    return static_cast<std::uint64_t>(batch.size(0));
  }
  template <class Data, class Target>
  [[nodiscard]] std::uint64_t operator()(const torch::data::Example<Data, Target>& batch) const {
    return static_cast<std::uint64_t>(batch.data.size(0));
  }
  [[nodiscard]] std::uint64_t operator()(const std::pair<at::Tensor, at::Tensor>& batch) const {
    return static_cast<std::uint64_t>(batch.first.size(0));
  }
  template <class Example>
  [[nodiscard]] std::uint64_t operator()(const std::vector<Example>& batch) const {
    return batch.size();
  }
};

}  // namespace detail

/// Goes over batches of tensors, torch::data::Example<>, pairs of tensors or vectors of examples; see lockstep() in
/// railyard/train/lockstep.hpp. Shapes: the first dimension of data counts the samples.
/// Example: for (auto& [batch, size] : ry::lockstep(worker, *data_loader)) loss(net->forward(batch.data),
/// batch.target);
template <detail::LoopRange Batches>
requires detail::CountsSamples<const detail::SizeOfBatch, detail::ValueOf<Batches>>
[[nodiscard]] auto lockstep(Worker& worker, Batches&& batches) {
  return lockstep(worker, std::forward<Batches>(batches), detail::SizeOfBatch{});
}

}  // namespace railyard::inline v0_1
