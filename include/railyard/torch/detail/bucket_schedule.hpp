// SPDX-License-Identifier: MIT
// Divides the gradients of a pass into buckets, and follows which of them are complete. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/model_options.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/train/worker.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The most bytes of gradients in the first bucket, and in any other.
struct BucketLimits {
  std::size_t first = 0;
  std::size_t others = 0;
};

// As the options say. Between hosts no more than an eighth of all gradients, so that a small model's are on the network
// while its backward pass goes on, yet not so little that a message costs more by its way than by its size.
[[nodiscard]] inline BucketLimits limits_of(const ModelOptions& options, const std::vector<GradientSlot>& slots,
                                            bool spans_hosts) {
  constexpr std::size_t parts = 8;
  constexpr std::size_t least = std::size_t{256} << 10U;
  std::size_t most = std::numeric_limits<std::size_t>::max();
  if (spans_hosts) {
    std::size_t total = 0;
    for (const GradientSlot& slot : slots) total += slot.sum_bytes();
    most = std::max(total / parts, least);
  }
  return {.first = std::min(options.first_bucket_bytes, most), .others = std::min(options.bucket_bytes, most)};
}

// Keeps the settings of a plan with what equal bits depend on; the plan itself is told when it has been made.
inline void note_bucket_sizes(Worker& worker, const ModelOptions& options) {
  worker.environment().set("bucket_bytes", static_cast<std::int64_t>(options.bucket_bytes));
  worker.environment().set("first_bucket_bytes", static_cast<std::int64_t>(options.first_bucket_bytes));
}

// Buckets are exchanged in one order on all ranks, so one is ready when it and all before it are complete. Until an
// order of slots is known there is one bucket, and passes tell the order.
class BucketSchedule {
 public:
  // One bucket of so many slots.
  void reset(std::size_t num_slots) {
    buckets_.assign(1, {});
    for (std::size_t index = 0; index < num_slots; ++index) buckets_.front().push_back(index);
    bucket_of_.assign(num_slots, 0);
    observed_.clear();
    is_observed_.assign(num_slots, false);
    has_repeats_ = false;
    begin_pass();
  }

  // What becomes of slots that were not observed, such as frozen parameters.
  enum class Others : std::uint8_t {
    in_last_bucket,  // one of their own would cost an exchange
    in_none,
  };

  // Cuts all slots into buckets, in an order that was observed.
  void cut(const std::vector<std::int64_t>& observed, const std::vector<GradientSlot>& slots,
           const BucketLimits& limits, Others others = Others::in_last_bucket) {
    buckets_.assign(1, {});
    bucket_of_.assign(slots.size(), none);
    is_observed_.assign(slots.size(), false);
    std::size_t size_bytes = 0;
    for (const std::int64_t number : observed) {
      const auto index = static_cast<std::size_t>(number);
      const GradientSlot& slot = slots[index];
      const std::size_t more = slot.sum_bytes();
      const std::size_t limit = buckets_.size() == 1 ? limits.first : limits.others;
      if (!buckets_.back().empty() && size_bytes + more > limit) {
        buckets_.emplace_back();
        size_bytes = 0;
      }
      put(index);
      is_observed_[index] = true;
      size_bytes += more;
    }
    for (std::size_t index = 0; index < slots.size(); ++index) {
      if (!is_observed_[index] && others == Others::in_last_bucket) put(index);
    }
    begin_pass();
  }

  [[nodiscard]] const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  // Digits that are other ones if any gradient is in another bucket, or at another place in it.
  [[nodiscard]] std::string plan() const {
    std::uint64_t digest = 0;
    for (const Bucket& bucket : buckets_) digest = digest_of(std::as_bytes(std::span{bucket}), digest);
    return compose("{} buckets, {:016x}", buckets_.size(), digest);
  }
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  // Its number, or none.
  [[nodiscard]] std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }

  void begin_pass() {
    num_ready_ = 0;
    num_missing_.clear();
    for (const Bucket& bucket : buckets_) num_missing_.push_back(bucket.size());
  }

  // A gradient has arrived: it is the first of its slot in this pass, or one more.
  void arrive(std::size_t index, bool is_first) {
    has_repeats_ = has_repeats_ || !is_first;
    if (!is_first) return;
    if (!is_observed_[index]) observed_.push_back(static_cast<std::int64_t>(index));
    is_observed_[index] = true;
    if (bucket_of_[index] == none) return;
    --num_missing_[bucket_of_[index]];
    while (num_ready_ < buckets_.size() && num_missing_[num_ready_] == 0) ++num_ready_;
  }

  // How many buckets, from the first on, are complete in this pass.
  [[nodiscard]] std::size_t num_ready() const noexcept { return num_ready_; }
  // Since the last reset: whether a slot's gradient has come in several parts in one pass, and the order of the slots.
  [[nodiscard]] bool has_repeats() const noexcept { return has_repeats_; }
  [[nodiscard]] const std::vector<std::int64_t>& observed() const noexcept { return observed_; }

 private:
  void put(std::size_t index) {
    bucket_of_[index] = buckets_.size() - 1;
    buckets_.back().push_back(index);
  }

  std::vector<Bucket> buckets_{};
  std::vector<std::size_t> bucket_of_{};  // by slot
  std::vector<std::int64_t> observed_{};
  std::vector<bool> is_observed_{};         // by slot
  std::vector<std::size_t> num_missing_{};  // slots that have not arrived in this pass, by bucket
  std::size_t num_ready_ = 0;
  bool has_repeats_ = false;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
