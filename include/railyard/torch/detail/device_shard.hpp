// SPDX-License-Identifier: MIT
// Weights on GPUs that each rank updates a part of, and that are gathered afterwards. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/gradients.hpp"
#include "railyard/torch/detail/master_weights.hpp"
#include "railyard/torch/detail/weight_refusals.hpp"
#include "railyard/torch/detail/worker_gpu.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/device_line.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// A gradient as its parameter lies in memory; that itself if it does.
[[nodiscard]] inline at::Tensor laid_as(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!gradient.is_sparse() && gradient.strides() == parameter.strides()) return gradient.detach();
  const at::NoGradGuard no_grad;
  return at::empty_like(parameter.detach()).copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
}

// One optimizer's parameters on this rank's GPU, moved into blocks of memory, one after another. Each block is cut into
// one part per rank, equally long, so that one all-gather in place gives all ranks what each has updated. Every rank
// has all weights and all of each gradient; what is divided is the optimizer's state and its work.
//
// Where the backend has a line on the device, one block is gathered there while the next is updated, and the stream on
// which the weights are used waits for all of them; the host does not.
class DeviceShard {
 public:
  struct Block {
    std::vector<at::Tensor> parameters{};
    std::vector<std::shared_ptr<GradientPiece>> pieces{};  // of them
    std::vector<const void*> places{};                     // where they are
    at::Tensor weights{};                                  // of all, flat; what is between them is zero
    at::Tensor own{};                                      // this rank's part
    at::Tensor master{};                                   // the same in f32, where that is updated instead
  };

  // parameters: unique, of prepared models, shareable, on this rank's GPU. block_bytes: of weights, about.
  // has_masters: those in half types have a copy in f32. All ranks call it with the same.
  DeviceShard(Worker& worker, std::vector<at::Tensor> parameters, bool has_masters, std::size_t block_bytes)
      : worker_(&worker), line_(worker.world_size() > 1 ? worker.device_line() : nullptr) {
    for (const at::Tensor& parameter : parameters) {
      refuse_other_owner(worker, parameter, "to one block of memory with others");
    }
    std::map<at::ScalarType, std::vector<at::Tensor>> of_types;
    for (at::Tensor& parameter : parameters) of_types[parameter.scalar_type()].push_back(std::move(parameter));
    parameters.clear();
    for (const auto& one : of_types) parameters.insert(parameters.end(), one.second.begin(), one.second.end());
    std::size_t bytes = 0;
    for (const at::Tensor& parameter : parameters) {
      const bool is_other = blocks_.empty() || blocks_.back().parameters[0].scalar_type() != parameter.scalar_type();
      if (is_other || bytes >= block_bytes) {
        blocks_.emplace_back();
        bytes = 0;
      }
      blocks_.back().parameters.push_back(parameter);
      bytes += static_cast<std::size_t>(parameter.numel()) * static_cast<std::size_t>(parameter.element_size());
    }
    const at::NoGradGuard no_grad;
    for (Block& block : blocks_) lay_out(block, has_masters && is_half(block.parameters[0]));
  }
  DeviceShard(const DeviceShard&) = delete;
  DeviceShard& operator=(const DeviceShard&) = delete;
  ~DeviceShard() = default;  // the weights stay where they are, which they keep alive

  [[nodiscard]] const std::vector<Block>& blocks() const noexcept { return blocks_; }

  // Whether some gradients are divided, once taken.
  [[nodiscard]] bool has_masters() const noexcept {
    return std::any_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.master.defined(); });
  }

  // Gives this rank's part of the gradients to the copies in f32 that have one.
  void take_gradients() const {
    for (const Block& block : blocks_) {
      for (std::size_t at = 0; block.master.defined() && at < block.parameters.size(); ++at) {
        at::Tensor& gradient = block.parameters[at].mutable_grad();
        if (!gradient.defined()) continue;
        GradientPiece& piece = *block.pieces[at];
        if (!piece.is_empty()) piece.add(part_of(block.parameters[at], gradient, piece).to(at::ScalarType::Float));
        gradient.reset();
      }
    }
  }

  // The gradient of a piece; undefined if there is none.
  [[nodiscard]] static at::Tensor gradient_of(const at::Tensor& parameter, const GradientPiece& piece) {
    if (piece.master.defined()) return piece.master.grad();
    const at::Tensor& gradient = parameter.grad();
    return gradient.defined() ? part_of(parameter, gradient, piece) : at::Tensor{};
  }

  // Called before this rank's part of a block is updated. Throws: ConfigError if weights are no longer there, or what
  // was taken holds the gradient of the step before.
  void begin_update(const Block& block) const {
    for (std::size_t at = 0; at < block.parameters.size(); ++at) {
      const at::Tensor& parameter = block.parameters[at];
      if (parameter.data_ptr() != block.places[at]) refuse_replaced(*worker_, parameter, "on every rank");
      refuse_mixed(*worker_, parameter, *block.pieces[at]);
      block.pieces[at]->is_spent = true;
    }
    if (block.master.defined()) follow_weights(block.master, block.own);
  }
  // Called when it has been: begins to give it to all ranks.
  void end_update(const Block& block) const {
    if (block.master.defined()) block.own.copy_(block.master);
    gather(block);
    // What a backward pass has kept of the old weights is now recognised as outdated, as after any update in place.
    for (const at::Tensor& parameter : block.parameters) {
      torch::autograd::impl::bump_version(parameter);
    }
  }

  // Called when all blocks have been: what is put on the current stream from here on sees all weights.
  void end_updates() const {
    if (line_ != nullptr) line_->join(call_on(blocks_.front()));
  }

 private:
  static constexpr std::int64_t line = 64;  // elements, at which each parameter begins
  [[nodiscard]] static std::int64_t lines_of(std::int64_t count) noexcept { return (count + line - 1) / line; }

  [[nodiscard]] static at::Tensor part_of(const at::Tensor& parameter, const at::Tensor& gradient,
                                          const GradientPiece& piece) {
    const at::Tensor laid = laid_as(parameter, gradient);
    return laid.as_strided({piece.end - piece.begin}, {1}, laid.storage_offset() + piece.begin);
  }

  [[nodiscard]] Call call_on(const Block& block) const {
    return {.deadline = worker_->collective_deadline(), .stream = current_stream(block.weights.device())};
  }
  void gather(const Block& block) const {
    if (line_ != nullptr) {
      line_->all_gather(buffer_of(block.own), buffer_of(block.weights), call_on(block));
    } else if (worker_->world_size() > 1) {
      worker_->all_gather(buffer_of(block.own), buffer_of(block.weights));
    }
  }

  void lay_out(Block& block, bool has_master) const {
    std::int64_t num_lines = 0;
    for (const at::Tensor& parameter : block.parameters) num_lines += lines_of(parameter.numel());
    const std::int64_t size = worker_->world_size();
    const std::int64_t count = (num_lines + size - 1) / size * line;  // of each rank's part
    const std::int64_t first = count * worker_->rank();
    block.weights = at::zeros({count * size}, block.parameters[0].options().requires_grad(false));
    block.own = block.weights.narrow(0, first, count);
    std::int64_t place = 0;
    for (at::Tensor& parameter : block.parameters) {
      move_to(block.weights, place, parameter);
      block.places.push_back(parameter.data_ptr());
      auto piece = std::make_shared<GradientPiece>();
      piece->begin = std::clamp<std::int64_t>(first - place, 0, parameter.numel());
      piece->end = std::clamp<std::int64_t>(first + count - place, 0, parameter.numel());
      piece->has_whole_weights = true;
      if (!piece->is_empty()) {
        piece->weights = block.weights.narrow(0, place + piece->begin, piece->end - piece->begin);
      }
      GradientSlot& slot = *gradient_exchange_of(*worker_)->find(parameter);
      slot.piece = piece;
      slot.storage = StorageMark{parameter};  // all ranks have moved there together
      block.pieces.push_back(std::move(piece));
      place += lines_of(parameter.numel()) * line;
    }
    if (has_master) make_masters(block, first);
  }

  static void make_masters(Block& block, std::int64_t first) {
    block.master = block.own.to(at::ScalarType::Float);
    std::int64_t place = 0;
    for (std::size_t at = 0; at < block.parameters.size(); ++at) {
      GradientPiece& piece = *block.pieces[at];
      if (!piece.is_empty())
        piece.master = block.master.narrow(0, place + piece.begin - first, piece.end - piece.begin);
      place += lines_of(block.parameters[at].numel()) * line;
    }
  }

  // Moves a parameter into a block, which it keeps alive, and yet gives it a storage of its own: whoever saves it
  // writes no more than that.
  static void move_to(const at::Tensor& block, std::int64_t place, at::Tensor& parameter) {
    auto* memory = static_cast<std::byte*>(block.data_ptr()) + place * block.element_size();
    const at::Tensor moved = at::from_blob(
        memory, parameter.sizes(), parameter.strides(), [block](void* /*memory*/) {}, block.options(), block.device());
    moved.copy_(parameter.detach());
    parameter.set_data(moved);
  }

  Worker* worker_;
  DeviceLine* line_;
  std::vector<Block> blocks_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
