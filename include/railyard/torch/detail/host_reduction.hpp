// SPDX-License-Identifier: MIT
// Averages gradients where they lie, in memory that all ranks of a host see. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/host_sums.hpp"
#include "railyard/torch/detail/pass_numbers.hpp"
#include "railyard/torch/detail/step_clock.hpp"
#include "railyard/torch/detail/weight_watch.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
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
// Where there are several hosts that is what the ranks of each of them do, and after the step of a bucket a few numbers
// go between the hosts, by which all ranks learn what all have; then each rank's own part does.
//
// Used by one thread at a time.
class HostReduction {
 public:
  HostReduction(Worker& worker, HostMemory& memory) : worker_(&worker), memory_(&memory) {}
  HostReduction(const HostReduction&) = delete;
  HostReduction& operator=(const HostReduction&) = delete;
  ~HostReduction() { memory_->heap()->deallocate(table_); }

  // Takes its steps from here on beside the backend's operations.
  void use_side(const Deadline& deadline) {
    if (HostMemory* side = memory_->side(deadline)) memory_ = side;
  }

  // Begins a pass over slots that outlive it, before anybody is told.
  void begin(std::vector<GradientSlot>& slots, const PassHeader& header, std::size_t num_buckets) {
    reserve_table(slots.size());
    slots_ = &slots;
    header_ = header;
    num_buckets_ = num_buckets;
    summary_ = {};
    shown_.headers.clear();
  }

  // Shows this rank's gradients of the next bucket and waits for all ranks'.
  [[nodiscard]] BucketUse open(const Bucket& bucket, StepClock& clock) {
    for (const std::size_t index : bucket) {
      GradientSlot& slot = (*slots_)[index];
      const bool has_gradient = slot.parameter.grad().defined();
      ShownGradient& entry = table_[index];
      entry = {.place = 0,
               .late_place = 0,
               .count = slot.real_count(),
               .type = static_cast<std::int32_t>(slot.parameter.scalar_type()),
               .used = slot.used ? 1U : 0U,
               .gives = header_.samples > 0 && has_gradient ? 1U : 0U,
               .weighted = slot.is_weighted ? 1U : 0U};
      // What nobody may need is shown only where that costs nothing.
      if (has_gradient && (slot.used || is_in_place(slot))) entry.place = show(slot, entry.gives != 0);
    }
    const bool is_first = shown_.headers.empty();
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
    return memory_->num_hosts() == 1 ? use_of(bucket) : use_on_hosts(bucket, is_first, clock);
  }

  // Throws on all ranks, which share the memory that they write to: ConfigError if a parameter of a bucket that is open
  // is another one on one of them.
  void check_alike(const Bucket& bucket) const {
    const std::size_t num_ranks = memory_->num_hosts() == 1 ? shown_.tables.size() : shapes_.size() / bucket.size();
    const auto shape_of = [&](std::size_t rank, std::size_t at) {
      return memory_->num_hosts() == 1 ? shape_in(rank, bucket[at]) : shapes_[rank * bucket.size() + at];
    };
    for (std::size_t at = 0; at < bucket.size(); ++at) {
      const std::size_t index = bucket[at];
      for (std::size_t rank = 1; rank < num_ranks; ++rank) {
        const Shape first = shape_of(0, at);
        const Shape other = shape_of(rank, at);
        if (first.count < 0 || other.count < 0 || first == other) continue;
        const auto text = [](const Shape& shape) {
          return compose("{} elements of {}", shape.count, c10::toString(static_cast<at::ScalarType>(shape.type)));
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

  // Leaves the mean in the gradients of the given slots, which somebody gives, or beside them until close(). Returns
  // whether all results of this rank's part are finite.
  [[nodiscard]] bool average(const OpenSlots& open, StepClock& clock) {
    if (lacks_place(open)) {
      for (const auto& [index, slot] : open) {
        if (table_[index].place == 0) table_[index].late_place = show(*slot, table_[index].gives != 0);
      }
      memory_->add_step();
      take_step({}, clock);
    }
    HostSums sums{*worker_, *memory_, shown_, summary_.samples};
    const bool is_finite = sums.add(open);
    num_bytes_ += sums.num_bytes();
    memory_->rest();
    return is_finite;
  }

  // Ends the pass: all that was open has its mean. Returns whether all ranks have found their results finite: those of
  // one host, which have all results among them, as those of the others have.
  [[nodiscard]] bool close(const OpenSlots& open, bool is_finite, StepClock& clock) {
    std::uint8_t is_bad = is_finite ? 0 : 1;
    take_step(std::as_bytes(std::span{&is_bad, 1}), clock);
    for (int rank = 0; rank < memory_->size(); ++rank) {
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

  // Returns what all ranks say in a step of its own, after the first one.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine) {
    memory_->add_step();
    const std::vector<std::string> here = show_texts(*memory_, mine);
    if (memory_->num_hosts() == 1) return here;
    return PassNumbers{worker_->world_size()}.gather_texts(here, first_rank(), [this](std::vector<std::int64_t>& all) {
      memory_->add_between_hosts(buffer_of(all), worker_->collective_deadline());
    });
  }

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

  // Of a parameter on one rank.
  struct Shape {
    std::int64_t count = -1;  // -1: the rank has not so many parameters
    std::int64_t type = 0;

    friend bool operator==(const Shape&, const Shape&) noexcept = default;
  };
  struct Record {
    PassHeader header{};
    std::uint64_t table = 0;
  };

  void reserve_table(std::size_t size) {
    if (size <= table_size_) return;
    memory_->heap()->deallocate(std::exchange(table_, nullptr));
    table_size_ = 0;
    table_ = static_cast<ShownGradient*>(allocate(size * sizeof(ShownGradient)));
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
    shown_.tables.clear();
    double cosines = 0;
    double sines = 0;
    for (int rank = 0; rank < memory_->size(); ++rank) {
      Record record;
      const auto shown = memory_->record_of(rank);
      if (shown.size() != sizeof record) {
        throw Error{compose("rank {} shows {} bytes of its gradients to rank {}, not {}: do all ranks run one program?",
                            first_rank() + rank, shown.size(), worker_->rank(), sizeof record)};
      }
      std::memcpy(&record, shown.data(), sizeof record);
      shown_.tables.push_back(reinterpret_cast<const ShownGradient*>(memory_->at(rank, record.table)));
      shown_.headers.push_back(record.header);
      summary_.samples += record.header.samples;
      summary_.num_silent += record.header.silent;
      summary_.wishes.add(record.header.wishes);
      summary_.num_ended += record.header.has_ended;
      summary_.num_replaced += record.header.has_replaced;
      summary_.waits.push_back(record.header.waited);
      cosines += std::cos(record.header.weights_seen);
      sines += std::sin(record.header.weights_seen);
    }
    summary_.are_weights_apart = WeightWatch::are_apart(cosines, sines, shown_.headers.size());
    summary_.headers = shown_.headers;
  }

  // The number that this host's first rank has in the group.
  [[nodiscard]] int first_rank() const noexcept { return memory_->host() * memory_->size(); }

  // Every rank tells the same of its host, for all ranks of it: a line between hosts has all of what they tell.
  [[nodiscard]] BucketUse use_on_hosts(const Bucket& bucket, bool is_first, StepClock& clock) {
    const PassNumbers told{worker_->world_size()};
    std::vector<double> numbers(is_first ? told.count() : 0);
    for (int rank = 0; rank < memory_->size() && is_first; ++rank) {
      told.add(shown_.headers[static_cast<std::size_t>(rank)], first_rank() + rank, numbers);
    }
    const std::size_t first_slot = numbers.size();
    const BucketUse here = use_of(bucket);
    for (std::size_t at = 0; at < bucket.size(); ++at) {
      numbers.insert(numbers.end(),
                     {static_cast<double>(here.num_using[at]), static_cast<double>(here.num_giving[at])});
    }
    const std::size_t digests = numbers.size();
    const double digest = digest_of_shapes(bucket);
    numbers.insert(numbers.end(), {digest, digest * digest + (are_shapes_alike(bucket) ? 0 : 1)});
    clock.enter(StepClock::Part::wait);
    memory_->add_between_hosts(buffer_of(numbers), worker_->collective_deadline());
    clock.enter(StepClock::Part::communication);
    if (is_first) summarise_hosts(told, numbers);
    shapes_.clear();
    // The sum of squares over the hosts is least when all are equal.
    const bool are_alike = numbers[digests + 1] * memory_->num_hosts() == numbers[digests] * numbers[digests];
    if (!are_alike) gather_shapes(bucket);
    BucketUse use;
    for (std::size_t at = first_slot; at < digests; at += 2) {
      use.num_using.push_back(static_cast<std::uint32_t>(numbers[at]));
      use.num_giving.push_back(static_cast<std::uint32_t>(numbers[at + 1]));
    }
    return use;
  }

  void summarise_hosts(const PassNumbers& told, std::span<const double> numbers) {
    summary_ = told.summary_of(numbers);
    summary_.headers = {header_};
    if (told.are_together(numbers)) return;
    summary_.headers = told.gather(shown_.headers, first_rank(), [this](std::vector<std::int64_t>& all) {
      memory_->add_between_hosts(buffer_of(all), worker_->collective_deadline());
    });
  }

  // rank: among those of this host.
  [[nodiscard]] Shape shape_in(std::size_t rank, std::size_t index) const {
    if (index >= shown_.headers[rank].num_slots) return {};
    const ShownGradient& entry = shown_.tables[rank][index];
    return {.count = entry.count, .type = entry.type};
  }
  // Those of this host's first rank stand for all of its ranks, which are compared where they see each other.
  [[nodiscard]] double digest_of_shapes(const Bucket& bucket) const {
    std::uint64_t digest = 0;
    for (const std::size_t index : bucket) {
      const Shape shape = shape_in(0, index);
      digest = digest_of(std::as_bytes(std::span{&shape, 1}), digest);
    }
    return static_cast<double>(short_digest(digest));
  }
  [[nodiscard]] bool are_shapes_alike(const Bucket& bucket) const {
    for (std::size_t rank = 1; rank < shown_.tables.size(); ++rank) {
      for (const std::size_t index : bucket) {
        if (shape_in(rank, index) != shape_in(0, index)) return false;
      }
    }
    return true;
  }
  void gather_shapes(const Bucket& bucket) {
    std::vector<std::int64_t> all;
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      const int here = rank - first_rank();
      for (const std::size_t index : bucket) {
        const bool is_here = here >= 0 && here < memory_->size();
        const Shape shape = is_here ? shape_in(static_cast<std::size_t>(here), index) : Shape{.count = 0};
        all.insert(all.end(), {shape.count, shape.type});
      }
    }
    memory_->add_between_hosts(buffer_of(all), worker_->collective_deadline());
    for (std::size_t at = 0; at < all.size(); at += 2) shapes_.push_back({.count = all[at], .type = all[at + 1]});
  }

  [[nodiscard]] BucketUse use_of(const Bucket& bucket) const {
    BucketUse use;
    for (const std::size_t index : bucket) {
      std::uint32_t num_using = 0;
      std::uint32_t num_giving = 0;
      for (std::size_t rank = 0; rank < shown_.tables.size(); ++rank) {
        if (index >= shown_.headers[rank].num_slots) continue;
        num_using += shown_.tables[rank][index].used;
        num_giving += shown_.tables[rank][index].gives;
      }
      use.num_using.push_back(num_using);
      use.num_giving.push_back(num_giving);
    }
    return use;
  }

  // Whether the other ranks of the host can read and write the gradient itself, as elements of the sum in the
  // parameter's order.
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
      for (const ShownGradient* table : shown_.tables) {
        if (table[one.first].place == 0) return true;
      }
    }
    return false;
  }

  Worker* worker_;
  HostMemory* memory_;
  ShownGradient* table_ = nullptr;  // what this rank shows of its gradients, by slot
  std::size_t table_size_ = 0;
  std::uint64_t num_bytes_ = 0;
  std::vector<GradientSlot>* slots_ = nullptr;  // of the pass under way, as all that follows
  PassHeader header_{};
  std::size_t num_buckets_ = 0;
  PassSummary summary_{};
  ShownGradients shown_{};
  std::vector<Shape> shapes_{};  // on all ranks, of a bucket of which one has others
};

}  // namespace detail

}  // namespace railyard::inline v0_1
