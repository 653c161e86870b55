// SPDX-License-Identifier: MIT
// Keeps ranks in step whose own data ends at different times. Train room.
#pragma once

#include "railyard/train/worker.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

namespace railyard::inline v0_1 {

/// Is a batch of a user's own data, and how much it counts.
template <class T>
struct LockstepBatch {
  T batch;
  std::uint64_t size = 0;  ///< samples that count: 0 where this rank's data has ended and its last batch is repeated
};

namespace detail {

// All that a range-for loop asks of a range: LibTorch's data loaders offer no more.
template <class R>
concept LoopRange = requires(R& range) {
  { range.begin() != range.end() } -> std::convertible_to<bool>;
  ++std::declval<decltype(range.begin())&>();
  *range.begin();
};
template <LoopRange R>
using ValueOf = std::remove_cvref_t<decltype(*std::declval<R&>().begin())>;

template <class F, class T>
concept CountsSamples = requires(F& size_of, const T& batch) {
  { size_of(batch) } -> std::convertible_to<std::uint64_t>;
};

}  // namespace detail

/// Is what lockstep() returns; see there. Each begin() goes over the batches anew.
template <detail::LoopRange Batches, detail::CountsSamples<detail::ValueOf<Batches>> SizeOf>
class Lockstep {
  using Value = detail::ValueOf<Batches>;
  using Source = decltype(std::declval<Batches&>().begin());
  using Item = LockstepBatch<Value>;

 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = Item;
    using pointer = Item*;
    using reference = Item&;

    Iterator() = default;
    explicit Iterator(Lockstep& lockstep) noexcept : lockstep_(&lockstep), loop_(lockstep.worker_->control().loop()) {}

    [[nodiscard]] Item& operator*() const noexcept { return *lockstep_->current_; }
    [[nodiscard]] Item* operator->() const noexcept { return &*lockstep_->current_; }
    Iterator& operator++() {
      if (!is_over()) lockstep_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) noexcept {
      return iterator.is_over();
    }

   private:
    [[nodiscard]] bool is_over() const noexcept {
      return lockstep_ == nullptr || lockstep_->worker_->control().loop() != loop_ || !lockstep_->current_;
    }

    Lockstep* lockstep_ = nullptr;
    std::uint64_t loop_ = 0;
  };

  Lockstep(Worker& worker, Batches batches, SizeOf size_of)
      : worker_(&worker), batches_(std::forward<Batches>(batches)), size_of_(std::move(size_of)) {}

  /// Throws: DataError if this rank has no batch at all, for then it has nothing to repeat.
  [[nodiscard]] Iterator begin() {
    source_.emplace(batches_.begin());
    next_.reset();
    worker_->control().begin_loop();
    read_next();
    if (!next_) {
      throw DataError{detail::compose(
          "lockstep() on rank {}/{}: this rank's data has no batch at all, so it has nothing to repeat while others "
          "train: give every rank at least one batch, be it of another rank's samples with a size of 0",
          worker_->rank(), worker_->world_size())};
    }
    take_next();
    return Iterator{*this};
  }
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

 private:
  void read_next() {
    next_.reset();
    if (!(*source_ != batches_.end())) return;
    next_.emplace(**source_);
    ++*source_;
  }

  // One batch is read ahead, so that the ranks learn with the last one that it is the last.
  void take_next() {
    const std::uint64_t size = size_of_(std::as_const(*next_));
    current_.emplace(Item{std::move(*next_), size});
    read_next();
    give_out();
  }

  void advance() {
    worker_->end_step();
    if (have_all_ended()) {
      current_.reset();
    } else if (next_) {
      take_next();
    } else {
      current_->size = 0;
      give_out();
    }
  }

  void give_out() {
    worker_->control().begin_batch(!next_);
    worker_->samples(current_->size);
  }

  // It has come with the exchange of gradients, unless the training function has left that out, on all ranks.
  [[nodiscard]] bool have_all_ended() {
    if (const auto heard = worker_->control().have_all_ended()) return *heard;
    std::int32_t anyone_goes_on = next_ ? 1 : 0;
    worker_->all_reduce(buffer_of_value(anyone_goes_on), ReduceOp::max);
    return anyone_goes_on == 0;
  }

  Worker* worker_;
  Batches batches_;  // a reference to what outlives this, or a value
  SizeOf size_of_;
  std::optional<Source> source_{};
  std::optional<Value> next_{};
  std::optional<Item> current_{};
};

/// Goes over a user's own batches so that all ranks take equally many steps, however many batches each has: a rank
/// whose data has ended repeats its last batch with weight zero, until all have ended. Then all loops end after the
/// same step. Each batch is a step of its own: worker.samples() is called with its size. Means are to be weighted with
/// `size`.
///
/// batches is whatever a range-for loop takes, as often as it can be gone over; an lvalue must outlive the loop.
/// size_of returns the number of samples of a batch; a header of the torch room knows it for tensors. Batches are
/// copied from their range, one ahead of the loop; tensors share their memory. The running statistics of a prepared
/// model's BatchNorm are left alone by repeats. All ranks run the loop; whoever leaves it early does so on all ranks,
/// such as by worker.should_stop(), or the next backward() throws an error that names the rank and its step. Cost: none
/// beside the exchange of gradients; one small collective after a step without one. Throws: DataError on a rank that
/// has no batch at all. Example: for (auto& [batch, size] : ry::lockstep(worker, batches, [](const Batch& batch) {
/// return batch.count(); }))
template <detail::LoopRange Batches, detail::CountsSamples<detail::ValueOf<Batches>> SizeOf>
[[nodiscard]] Lockstep<Batches, SizeOf> lockstep(Worker& worker, Batches&& batches, SizeOf size_of) {
  return {worker, std::forward<Batches>(batches), std::move(size_of)};
}

}  // namespace railyard::inline v0_1
