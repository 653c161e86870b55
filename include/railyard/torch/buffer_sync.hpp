// SPDX-License-Identifier: MIT
// What becomes of a model's buffers (running statistics, counters), which no gradient keeps equal. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/reduce_op.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what happens to the buffers of a model that is trained together.
enum class BufferSync : std::uint8_t {
  leave,      ///< each rank keeps its own
  broadcast,  ///< every rank gets rank 0's
  average,    ///< floating-point buffers become the mean over the ranks, all others rank 0's
};

namespace detail {

// Averages tensors of one dtype as one buffer.
inline void average_buffers(Worker& worker, const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  const at::Tensor flat = at::empty({count}, tensors.front().options().requires_grad(false));
  const auto visit = [&](auto&& move) {
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      move(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()), tensor);
      begin += tensor.numel();
    }
  };
  visit([](const at::Tensor& part, const at::Tensor& tensor) { part.copy_(tensor); });
  worker.all_reduce(buffer_of(flat), ReduceOp::average);
  visit([](const at::Tensor& part, const at::Tensor& tensor) { tensor.copy_(part); });
}

// Makes the buffers of all ranks one, in the order given, which is the same on all ranks. Writes in place, so that a
// graph which has saved a buffer's values notices: call it after the backward pass (FAULTS D32).
// Cost: broadcast one collective of all bytes; average one per floating dtype, and one for all else.
inline void sync_buffers(Worker& worker, std::span<const at::Tensor> buffers, BufferSync policy) {
  if (policy == BufferSync::leave || worker.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::ScalarType, std::vector<at::Tensor>>> groups;
  std::vector<at::Tensor> copied;
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    const at::Tensor values = buffer.is_complex() ? at::view_as_real(buffer.detach()) : buffer.detach();
    if (policy == BufferSync::broadcast || !values.is_floating_point()) {
      copied.push_back(values);
      continue;
    }
    std::size_t at = 0;
    while (at < groups.size() && groups[at].first != values.scalar_type()) ++at;
    if (at == groups.size()) groups.push_back({values.scalar_type(), {}});
    groups[at].second.push_back(values);
  }
  for (const auto& group : groups) average_buffers(worker, group.second);
  if (!copied.empty()) broadcast_piece(worker, copied);
}

}  // namespace detail

}  // namespace railyard::inline v0_1
