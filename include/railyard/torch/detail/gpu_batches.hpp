// SPDX-License-Identifier: MIT
// Gives a loader its batches on a GPU. Torch room.
#pragma once

#include "railyard/torch/detail/batch_source.hpp"
#include "railyard/torch/detail/gpu_copies.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/data/epoch_position.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

// Has the parts of another source copied to a GPU while the loop computes: the next one from when a part has been
// given, if it is there already; else as soon as it is asked for, which the host does ahead of the GPU. What is read on
// the loop's thread is not read ahead: users' functions would draw their random numbers before those of the step, and
// not see what it does to their data.
class GpuBatches final : public BatchSource {
 public:
  GpuBatches(std::unique_ptr<BatchSource> source, at::Device gpu, std::size_t bound_bytes)
      : source_(std::move(source)), copies_(gpu, bound_bytes) {}

  void open(const EpochPosition& from) override {
    forget();
    source_->open(from);
  }

  [[nodiscard]] std::optional<LoadedPart> next(const Deadline& deadline) override {
    if (failure_) std::rethrow_exception(failure_);
    std::optional<LoadedPart> part = std::exchange(ahead_, std::nullopt);
    if (!part) part = fetch(deadline);
    if (!part) return std::nullopt;
    copies_.take();
    begin_next(deadline);
    return part;
  }

  [[nodiscard]] bool waits_for_others() const noexcept override { return true; }
  [[nodiscard]] bool is_ready() override { return ahead_ || source_->is_ready(); }

  void close() noexcept override {
    forget();
    source_->close();
  }

 private:
  [[nodiscard]] std::optional<LoadedPart> fetch(const Deadline& deadline) {
    copies_.wait_for_room(deadline);
    std::optional<LoadedPart> part = source_->next(deadline);
    if (!part) return part;
    GpuCopies::Batch batch{std::move(part->data), std::move(part->target)};
    try {
      copies_.start(batch, part->is_pinned);
    } catch (...) {  // the source will not give it again
      failure_ = std::current_exception();
      throw;
    }
    part->data = std::move(batch[0]);
    part->target = std::move(batch[1]);
    return part;
  }

  // What fails here belongs to the next part.
  void begin_next(const Deadline& deadline) noexcept {
    try {
      if (source_->is_ready() && copies_.has_room()) {
        ahead_ = fetch(deadline);
      } else {
        copies_.reserve();
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void forget() noexcept {
    ahead_.reset();
    failure_ = nullptr;
    copies_.drop();
  }

  std::unique_ptr<BatchSource> source_;
  GpuCopies copies_;
  std::optional<LoadedPart> ahead_{};
  std::exception_ptr failure_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
