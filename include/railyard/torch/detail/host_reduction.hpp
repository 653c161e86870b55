// SPDX-License-Identifier: MIT
// Averages gradients where they lie, in memory that all ranks of the host see. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/step_clock.hpp"

#include "railyard/collectives/detail/vector_reduce.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The exchange of one pass takes a step for each bucket, in which all ranks learn where its gradients lie; then each
// rank adds its own part of all of them, in the order of ranks, and writes the mean to every rank. One more step tells
// that all have. With the first bucket the ranks also learn of each other's samples. Where a rank has no gradient for
// what others have used, one step more gives it one.
//
// Used by one thread at a time.
class HostReduction {
 public:
  HostReduction(Worker& worker, HostMemory& memory) : worker_(&worker), memory_(&memory) {}
  HostReduction(const HostReduction&) = delete;
  HostReduction& operator=(const HostReduction&) = delete;
  ~HostReduction() { memory_->heap()->deallocate(table_); }

  // Takes its steps from here on beside the backend's operations.
  void use_side() noexcept {
    if (HostMemory* side = memory_->side()) memory_ = side;
  }

  // Begins a pass over slots that outlive it, before anybody is told.
  void begin(std::vector<GradientSlot>& slots, const PassHeader& header, std::size_t num_buckets) {
    reserve_table(slots.size());
    slots_ = &slots;
    header_ = header;
    num_buckets_ = num_buckets;
    summary_ = {};
  }

  // Shows this rank's gradients of the next bucket and waits for all ranks'.
  [[nodiscard]] BucketUse open(const Bucket& bucket, StepClock& clock) {
    for (const std::size_t index : bucket) {
      GradientSlot& slot = (*slots_)[index];
      const bool has_gradient = slot.parameter.grad().defined();
      Entry& entry = table_[index];
      entry = {.place = 0,
               .late_place = 0,
               .count = slot.real_count(),
               .type = static_cast<std::int32_t>(slot.parameter.scalar_type()),
               .used = slot.used ? 1U : 0U,
               .gives = header_.samples > 0 && has_gradient ? 1U : 0U};
      // What nobody may need is shown only where that costs nothing.
      if (has_gradient && (slot.used || is_in_place(slot))) entry.place = show(slot, entry.gives != 0);
    }
    const bool is_first = summary_.headers.empty();
    const Record record{.header = header_, .table = memory_->place_of(table_)};
    const auto shown = std::as_bytes(std::span{&record, 1});
    clock.enter(StepClock::Part::wait);
    if (is_first) {
      memory_->begin(Purpose::gradients, shown, static_cast<int>(num_buckets_) + 1, worker_->collective_deadline());
      summarise();
    } else {
      memory_->step({});
    }
    clock.enter(StepClock::Part::communication);
    return use_of(bucket);
  }

  // Throws on all ranks, which share the memory that they write to: ConfigError if a parameter of a bucket that is open
  // is another one on one of them.
  void check_alike(const Bucket& bucket) const {
    for (const std::size_t index : bucket) {
      for (std::size_t rank = 1; rank < tables_.size(); ++rank) {
        if (index >= std::min(summary_.headers.front().num_slots, summary_.headers[rank].num_slots)) continue;
        const Entry& first = tables_.front()[index];
        const Entry& other = tables_[rank][index];
        if (first.count == other.count && first.type == other.type) continue;
        const auto text = [](const Entry& entry) {
          return compose("{} elements of {}", entry.count, c10::toString(static_cast<at::ScalarType>(entry.type)));
        };
        throw ConfigError{compose(
            "backward() on rank {}/{}: the parameter \"{}\" has {} on rank {} and {} on rank 0: it was converted "
            "after prepare_model() on some ranks; do that before, on all",
            worker_->rank(), worker_->world_size(), (*slots_)[index].name, text(other), rank, text(first))};
      }
    }
  }

  // What the ranks have told with the first bucket.
  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }

  // Leaves the mean in the gradients of the given slots, which somebody gives, or beside them until close(). Those of
  // ranks whose headers are weighted have been multiplied with the samples behind them. Returns whether all results of
  // this rank's part are finite.
  [[nodiscard]] bool average(const OpenSlots& open, StepClock& clock) {
    if (lacks_place(open)) {
      for (const auto& [index, slot] : open) {
        if (table_[index].place == 0) table_[index].late_place = show(*slot, table_[index].gives != 0);
      }
      memory_->add_step();
      take_step({}, clock);
    }
    const bool is_finite = add_own_part(open);
    memory_->rest();
    return is_finite;
  }

  // Ends the pass: all that was open has its mean. Returns whether all ranks have found their results finite.
  [[nodiscard]] bool close(const OpenSlots& open, bool is_finite, StepClock& clock) {
    std::uint8_t is_bad = is_finite ? 0 : 1;
    take_step(std::as_bytes(std::span{&is_bad, 1}), clock);
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      if (memory_->record_of(rank)[0] != std::byte{0}) is_bad = 1;
    }
    for (const auto& one : open) {
      GradientSlot& slot = *one.second;
      if (slot.piece.lock()) {
        slot.parameter.mutable_grad().reset();  // it is not the mean, which nobody has all of
      } else if (!is_in_place(slot)) {
        as_real(slot.dense_gradient()).copy_(slot.stage);
      }
    }
    return is_bad == 0;
  }

  // Bytes of gradients that this rank has read and written since the last call.
  [[nodiscard]] std::uint64_t take_bytes() noexcept { return std::exchange(num_bytes_, 0); }

  // Ends a pass of which all ranks know that nothing more comes.
  void cancel() { memory_->step({}); }

  // Ends every wait of this rank, from any thread.
  void abort(std::string_view reason) noexcept { memory_->abort(reason); }
  // After that: returns once nobody is at this rank's gradients.
  void withdraw() noexcept { memory_->withdraw(); }

 private:
  void take_step(std::span<const std::byte> record, StepClock& clock) {
    clock.enter(StepClock::Part::wait);
    memory_->step(record);
    clock.enter(StepClock::Part::communication);
  }

  struct Entry {
    std::uint64_t place = 0;
    std::uint64_t late_place = 0;  // where there was none in the first step, which others may still be looking at
    std::int64_t count = 0;        // of the parameter, as real numbers
    std::int32_t type = 0;         // and its at::ScalarType
    std::uint32_t used = 0;
    std::uint32_t gives = 0;
  };
  struct Record {
    PassHeader header{};
    std::uint64_t table = 0;
  };

  void reserve_table(std::size_t size) {
    if (size <= table_size_) return;
    memory_->heap()->deallocate(std::exchange(table_, nullptr));
    table_size_ = 0;
    table_ = static_cast<Entry*>(allocate(size * sizeof(Entry)));
    table_size_ = size;
  }

  [[nodiscard]] void* allocate(std::size_t size_bytes) const {
    if (void* memory = memory_->heap()->allocate(size_bytes)) return memory;
    throw Error{
        compose("there is no room for {} more bytes of gradients in the memory that rank {}/{} shares with the "
                "others: see the limits of address space (ulimit -v) and of the container's memory",
                size_bytes, worker_->rank(), worker_->world_size())};
  }

  void summarise() {
    tables_.clear();
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      Record record;
      const auto shown = memory_->record_of(rank);
      if (shown.size() != sizeof record) {
        throw Error{compose("rank {} shows {} bytes of its gradients to rank {}, not {}: do all ranks run one program?",
                            rank, shown.size(), worker_->rank(), sizeof record)};
      }
      std::memcpy(&record, shown.data(), sizeof record);
      tables_.push_back(reinterpret_cast<const Entry*>(memory_->at(rank, record.table)));
      summary_.headers.push_back(record.header);
      summary_.samples += record.header.samples;
      summary_.num_silent += record.header.silent;
      summary_.wishes.add(record.header.wishes);
      summary_.num_ended += record.header.has_ended;
    }
  }

  [[nodiscard]] BucketUse use_of(const Bucket& bucket) const {
    BucketUse use;
    for (const std::size_t index : bucket) {
      std::uint32_t num_using = 0;
      std::uint32_t num_giving = 0;
      for (std::size_t rank = 0; rank < tables_.size(); ++rank) {
        if (index >= summary_.headers[rank].num_slots) continue;
        num_using += tables_[rank][index].used;
        num_giving += tables_[rank][index].gives;
      }
      use.num_using.push_back(num_using);
      use.num_giving.push_back(num_giving);
    }
    return use;
  }

  // Whether the other ranks can read and write the gradient itself, as elements of the sum in the parameter's order.
  [[nodiscard]] bool is_in_place(GradientSlot& slot) const {
    const at::Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined() || gradient.layout() != c10::kStrided || !gradient.is_cpu()) return false;
    const at::ScalarType type = gradient.scalar_type();
    if (type != slot.parameter.scalar_type() || type == at::ScalarType::Half || type == at::ScalarType::BFloat16) {
      return false;
    }
    if (gradient.is_conj() || gradient.is_neg()) return false;
    if (gradient.strides() != at::IntArrayRef{slot.gradient_strides()}) return false;
    return memory_->place_of(gradient.data_ptr()) != 0;
  }

  // Makes sure that the others see memory of this slot, with the gradient in it if it counts. Returns the place.
  [[nodiscard]] std::uint64_t show(GradientSlot& slot, bool gives) {
    if (!slot.parameter.grad().defined()) static_cast<void>(slot.dense_gradient());
    if (is_in_place(slot)) return memory_->place_of(slot.parameter.grad().data_ptr());
    if (!slot.stage.defined()) slot.stage = make_stage(slot);
    const at::Tensor& gradient = slot.parameter.grad();
    if (gives) slot.stage.copy_(as_real(gradient.is_sparse() ? gradient.to_dense() : gradient));
    return memory_->place_of(slot.stage.data_ptr());
  }

  [[nodiscard]] at::Tensor make_stage(GradientSlot& slot) const {
    std::vector<std::int64_t> sizes = slot.parameter.sizes().vec();
    std::vector<std::int64_t> strides = slot.gradient_strides();
    if (slot.parameter.is_complex()) {
      for (std::int64_t& stride : strides) stride *= 2;
      sizes.push_back(2);
      strides.push_back(1);
    }
    const auto type = slot.sum_type();
    const auto size_bytes = static_cast<std::size_t>(slot.real_count()) * c10::elementSize(type);
    void* memory = allocate(std::max<std::size_t>(size_bytes, 1));
    return at::from_blob(memory, sizes, strides, Heap::give_back, at::TensorOptions{}.dtype(type));
  }

  [[nodiscard]] bool lacks_place(const OpenSlots& open) const {
    for (const auto& one : open) {
      for (const Entry* table : tables_) {
        if (table[one.first].place == 0) return true;
      }
    }
    return false;
  }

  // All open gradients one after another, each beginning at a whole cache line, are cut into one part per rank.
  [[nodiscard]] bool add_own_part(const OpenSlots& open) {
    std::vector<std::int64_t> counts;
    for (const auto& one : open) {
      if (one.second->piece.expired()) counts.push_back(one.second->real_count());
    }
    RankPart part{counts, worker_->rank(), worker_->world_size()};
    bool is_finite = true;
    for (const auto& [index, slot] : open) {
      if (const auto piece = slot->piece.lock()) {
        if (!piece->is_empty()) is_finite &= add_piece(index, *slot, *piece);
        continue;
      }
      const auto [begin, end] = part.next(slot->real_count());
      if (begin < end) {
        const bool is_double = slot->sum_type() == at::ScalarType::Double;
        const Range range{static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
        is_finite &= is_double ? add<double>(index, range) : add<float>(index, range);
      }
    }
    return is_finite;
  }

  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  template <class T>
  [[nodiscard]] bool add(std::size_t index, const Range& range) {
    std::vector<T*> targets;
    for (int rank = 0; rank < worker_->world_size(); ++rank) targets.push_back(at<T>(rank, index) + range.begin);
    return add_to<T>(targets, index, range);
  }

  template <class T>
  [[nodiscard]] T* at(int rank, std::size_t index) const noexcept {
    const Entry& entry = tables_[static_cast<std::size_t>(rank)][index];
    return reinterpret_cast<T*>(memory_->at(rank, entry.place != 0 ? entry.place : entry.late_place));
  }

  template <class T>
  [[nodiscard]] bool add_to(std::span<T* const> targets, std::size_t index, const Range& range) {
    std::vector<const T*> sources;
    std::vector<T> weights;
    bool are_all_weighted = true;  // each rank's by its own number of micro-batches
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      if (tables_[static_cast<std::size_t>(rank)][index].gives == 0) continue;  // left out, not multiplied by zero: NaN
      sources.push_back(at<T>(rank, index) + range.begin);
      const PassHeader& header = summary_.headers[static_cast<std::size_t>(rank)];
      weights.push_back(header.is_weighted != 0 ? T{1} : static_cast<T>(header.samples));
      are_all_weighted = are_all_weighted && header.is_weighted != 0;
    }
    SumTask<T> task{.targets = targets, .sources = sources, .count = range.end - range.begin};
    task.divisor = static_cast<T>(summary_.samples);
    const bool is_all_of_it = weights.size() == 1 && weights[0] == task.divisor;
    if (is_all_of_it && !are_all_weighted) {
      task.divisor = T{1};  // n x gradient / n need not be the gradient
    } else if (!are_all_weighted) {
      task.weights = weights.data();
    }
    num_bytes_ += (sources.size() + targets.size()) * task.count * sizeof(T);
    return sum(task);
  }

  // Adds this rank's piece to the gradient of the piece alone.
  [[nodiscard]] bool add_piece(std::size_t index, const GradientSlot& slot, GradientPiece& piece) {
    const at::Tensor total = at::empty({piece.end - piece.begin}, at::TensorOptions{}.dtype(slot.sum_type()));
    const Range range{static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.end)};
    bool is_finite = true;
    if (slot.sum_type() == at::ScalarType::Double) {
      const std::array<double*, 1> target{total.data_ptr<double>()};
      is_finite = add_to<double>(target, index, range);
    } else {
      const std::array<float*, 1> target{total.data_ptr<float>()};
      is_finite = add_to<float>(target, index, range);
    }
    piece.add(total.to(piece.weights.scalar_type()));
    return is_finite;
  }

  Worker* worker_;
  HostMemory* memory_;
  Entry* table_ = nullptr;  // what this rank shows of its gradients, by slot
  std::size_t table_size_ = 0;
  std::uint64_t num_bytes_ = 0;
  std::vector<GradientSlot>* slots_ = nullptr;  // of the pass under way, as all that follows
  PassHeader header_{};
  std::size_t num_buckets_ = 0;
  PassSummary summary_{};
  std::vector<const Entry*> tables_{};  // what all ranks have shown, by rank
};

}  // namespace detail

}  // namespace railyard::inline v0_1
