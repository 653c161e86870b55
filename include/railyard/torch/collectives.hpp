// SPDX-License-Identifier: MIT
// Collectives on tensors. Whatever is not contiguous is made dense first and copied back afterwards. Torch room.
#pragma once

#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// A contiguous tensor with the values of another one, and the way back. Backends move memory from first to last byte:
// given a strided view they would move the wrong elements without an error.
class Dense {
 public:
  explicit Dense(const at::Tensor& tensor) : original_(tensor) {
    if (tensor.defined() && tensor.layout() == c10::kStrided) dense_ = tensor.detach().contiguous();
  }

  [[nodiscard]] Buffer buffer() const { return buffer_of(dense_.defined() ? dense_ : original_); }
  [[nodiscard]] const at::Tensor& tensor() const noexcept { return dense_; }

  // Refuses what could not be written back, before anything is sent.
  void check_writable(std::string_view operation) const {
    if (original_.defined() && original_.layout() == c10::kStrided &&
        at::has_internal_overlap(original_) == at::MemOverlap::Yes) {
      throw ConfigError{
          compose("{} was given an expanded tensor ({}), several elements of which are one place in "
                  "memory: use .contiguous() first",
                  operation, shape_of(original_))};
    }
  }

  void write_back() const {
    if (dense_.data_ptr() != original_.data_ptr()) {
      original_.detach().copy_(dense_);
    } else {
      torch::autograd::impl::bump_version(original_);  // so that a graph that has saved the old values notices
    }
  }

 private:
  at::Tensor original_;
  at::Tensor dense_{};
};

[[nodiscard]] inline at::Tensor empty_like_part(const at::Tensor& tensor, std::vector<std::int64_t> shape) {
  return at::empty(shape, tensor.options().requires_grad(false));
}

// The shape of one rank's part of a tensor that is divided along its first dimension.
[[nodiscard]] inline std::vector<std::int64_t> divided_shape(const Worker& worker, const at::Tensor& tensor,
                                                             std::string_view operation) {
  auto shape = tensor.sizes().vec();
  if (shape.empty() || shape.front() % worker.world_size() != 0) {
    throw ConfigError{
        compose("{} on rank {}/{} divides the first dimension among the ranks, which {} does not allow: "
                "make it a multiple of {}",
                operation, worker.rank(), worker.world_size(), shape_of(tensor), worker.world_size())};
  }
  shape.front() /= worker.world_size();
  return shape;
}

}  // namespace detail

/// Combines a tensor of all ranks in place; equal bits on every rank afterwards. Outside of autograd.
inline void all_reduce(Worker& worker, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
  const detail::Dense dense{tensor};
  dense.check_writable("all_reduce");
  worker.all_reduce(dense.buffer(), op);
  dense.write_back();
}

/// Gives every rank the values of root's tensor, in place.
inline void broadcast(Worker& worker, const at::Tensor& tensor, int root = 0) {
  const detail::Dense dense{tensor};
  dense.check_writable("broadcast");
  worker.broadcast(dense.buffer(), root);
  dense.write_back();
}

/// Returns the tensors of all ranks, stacked. Shapes: (world_size, *shape of tensor), which is equal on all ranks.
[[nodiscard]] inline at::Tensor all_gather(Worker& worker, const at::Tensor& tensor) {
  const detail::Dense dense{tensor};
  const Buffer in = dense.buffer();
  auto shape = tensor.sizes().vec();
  shape.insert(shape.begin(), worker.world_size());
  const at::Tensor out = detail::empty_like_part(tensor, shape);
  worker.all_gather(in, buffer_of(out));
  return out;
}

/// Returns this rank's slice of the combined tensor. Shapes: the first dimension is divided by world_size.
[[nodiscard]] inline at::Tensor reduce_scatter(Worker& worker, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
  const detail::Dense dense{tensor};
  const Buffer in = dense.buffer();
  const at::Tensor out = detail::empty_like_part(tensor, detail::divided_shape(worker, tensor, "reduce_scatter"));
  worker.reduce_scatter(in, buffer_of(out), op);
  return out;
}

/// Sends slice r of the first dimension to rank r and returns what arrived, in order of rank.
/// Shapes: equal on all ranks; the first dimension is a multiple of world_size.
[[nodiscard]] inline at::Tensor all_to_all(Worker& worker, const at::Tensor& tensor) {
  const detail::Dense dense{tensor};
  const Buffer in = dense.buffer();
  static_cast<void>(detail::divided_shape(worker, tensor, "all_to_all"));
  const at::Tensor out = detail::empty_like_part(tensor, tensor.sizes().vec());
  worker.all_to_all(in, buffer_of(out));
  return out;
}

/// Sends a tensor to one rank, which calls receive() with one of the same shape.
inline void send(Worker& worker, const at::Tensor& tensor, int to) { worker.send(detail::Dense{tensor}.buffer(), to); }

/// Fills a tensor with what rank `from` sends.
inline void receive(Worker& worker, const at::Tensor& tensor, int from) {
  const detail::Dense dense{tensor};
  dense.check_writable("receive");
  worker.receive(dense.buffer(), from);
  dense.write_back();
}

}  // namespace railyard::inline v0_1
