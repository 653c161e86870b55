// SPDX-License-Identifier: MIT
// Divides the gradients of a pass into buckets, and follows which of them are complete. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/model_options.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Buckets are exchanged in one order on all ranks, so one is ready when it and all before it are complete. Until an
// order of slots is known there is one bucket, and the first pass tells the order.
class BucketSchedule {
 public:
  // One bucket of so many slots.
  void reset(std::size_t num_slots) {
    buckets_.assign(1, {});
    for (std::size_t index = 0; index < num_slots; ++index) buckets_.front().push_back(index);
    bucket_of_.assign(num_slots, 0);
    has_order_ = false;
    begin_pass();
  }

  // Cuts all slots into buckets, in the order given.
  void cut(const std::vector<std::int64_t>& order, const std::vector<GradientSlot>& slots,
           const ModelOptions& options) {
    buckets_.clear();
    std::size_t size_bytes = 0;
    for (const std::int64_t number : order) {
      const auto index = static_cast<std::size_t>(number);
      const GradientSlot& slot = slots[index];
      const std::size_t more = static_cast<std::size_t>(slot.real_count()) * c10::elementSize(slot.sum_type());
      const std::size_t limit = buckets_.size() == 1 ? options.first_bucket_bytes : options.bucket_bytes;
      if (buckets_.empty() || size_bytes + more > limit) {
        buckets_.emplace_back();
        size_bytes = 0;
      }
      bucket_of_[index] = buckets_.size() - 1;
      buckets_.back().push_back(index);
      size_bytes += more;
    }
    has_order_ = true;
    begin_pass();
  }

  [[nodiscard]] const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  [[nodiscard]] std::size_t num_slots() const noexcept { return bucket_of_.size(); }
  void begin_pass() {
    arrived_.clear();
    has_repeats_ = false;
    num_ready_ = 0;
    num_missing_.clear();
    for (const Bucket& bucket : buckets_) num_missing_.push_back(bucket.size());
  }

  // A gradient has arrived: it is the first of its slot in this pass, or one more.
  void arrive(std::size_t index, bool is_first) {
    has_repeats_ = has_repeats_ || !is_first;
    if (!is_first) return;
    if (!has_order_) arrived_.push_back(index);
    --num_missing_[bucket_of_[index]];
    while (num_ready_ < buckets_.size() && num_missing_[num_ready_] == 0) ++num_ready_;
  }

  // How many buckets, from the first on, are complete in this pass.
  [[nodiscard]] std::size_t num_ready() const noexcept { return num_ready_; }
  [[nodiscard]] std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }
  // Whether a slot's gradient has come in several parts in this pass.
  [[nodiscard]] bool has_repeats() const noexcept { return has_repeats_; }

  // The slots in the order of this pass, in which none was known; behind them those that have not arrived, the last
  // first, for backward passes begin where forward passes end.
  [[nodiscard]] std::vector<std::int64_t> observed_order() const {
    std::vector<std::int64_t> order(arrived_.begin(), arrived_.end());
    std::vector<bool> is_there(num_slots());
    for (const std::size_t index : arrived_) is_there[index] = true;
    for (std::size_t index = num_slots(); index-- > 0;) {
      if (!is_there[index]) order.push_back(static_cast<std::int64_t>(index));
    }
    return order;
  }

 private:
  std::vector<Bucket> buckets_{};
  std::vector<std::size_t> bucket_of_{};  // by slot
  bool has_order_ = false;
  std::vector<std::size_t> arrived_{};      // in this pass, while no order is known
  std::vector<std::size_t> num_missing_{};  // slots that have not arrived, by bucket
  std::size_t num_ready_ = 0;
  bool has_repeats_ = false;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
