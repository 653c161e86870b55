// SPDX-License-Identifier: MIT
// Exchanges the gradients of one backward pass, bucket after bucket. Torch room.
#pragma once

#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/detail/device_reduction.hpp"
#include "railyard/torch/detail/flat_reduction.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/host_reduction.hpp"
#include "railyard/torch/detail/non_finite.hpp"
#include "railyard/torch/detail/step_clock.hpp"
#include "railyard/torch/detail/update_digest.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// What is told of one pass before its first bucket.
struct PassTerms {
  PassHeader header{};
  bool checks_finite = true;  // somebody wants to know
  bool uses_host = false;     // the ranks of a host sum gradients where they lie
  bool uses_device = false;   // the line that has been taken sums them on the device
};

// Parameters that a rank has not used in a pass, in which others have.
struct UnusedSlots {
  std::string first{};
  std::uint32_t num_using = 0;  // ranks that have used that one
  std::size_t count = 0;

  void add(const std::string& name, std::uint32_t ranks) {
    if (count++ > 0) return;
    first = name;
    num_using = ranks;
  }
};

// Used by one thread at a time: a worker's own, or its communication thread.
class PassExchange {
 public:
  explicit PassExchange(Worker& worker) : worker_(&worker), flat_(worker) {
    HostMemory* memory = worker.host_memory();
    if (memory != nullptr && worker.world_size() > 1) host_.emplace(worker, *memory);
  }

  // Whether the ranks of each host see each other's memory.
  [[nodiscard]] bool has_host() const noexcept { return host_.has_value(); }

  // Exchanges from here on beside the operations of the worker, so that another thread may do it. All ranks call it.
  // Returns whether the backend can.
  [[nodiscard]] bool move_aside(bool uses_host) {
    if (uses_host) {
      host_->use_side(worker_->collective_deadline());
      return true;
    }
    SideLine* side = worker_->side_line();
    if (side != nullptr) flat_.use_side(*side);
    return side != nullptr;
  }

  // Sums gradients on the device from here on, where a pass says so. All ranks call it. Returns whether the backend
  // can.
  [[nodiscard]] bool move_to_device() {
    if (device_) return true;
    DeviceLine* line = worker_->device_line();
    if (line != nullptr) device_.emplace(*worker_, *line);
    return line != nullptr;
  }

  // Begins a pass; all that is given outlives it.
  void begin(std::vector<GradientSlot>& slots, const std::vector<Bucket>& buckets, const PassTerms& terms,
             AnyCommHook& hook) {
    slots_ = &slots;
    buckets_ = &buckets;
    terms_ = terms;
    terms_.header.updates = worker_->extension<UpdateDigest>().value;
    num_taken_ = 0;
    open_.clear();
    late_.clear();
    unused_here_ = {};
    is_finite_ = true;
    is_under_way_ = true;
    if (terms_.uses_host) {
      host_->begin(slots, terms_.header, buckets.size());
    } else {
      if (terms_.uses_device) device_->begin(slots, buckets, terms_.header);
      flat_.begin(slots, terms_.header, hook);
    }
  }

  [[nodiscard]] bool is_under_way() const noexcept { return is_under_way_; }

  // Exchanges the next bucket; on a device, has it exchanged.
  void take_bucket(StepClock& clock) {
    if (terms_.uses_device) return device_->launch(num_taken_++);
    const Bucket& bucket = (*buckets_)[num_taken_];
    clock.enter(StepClock::Part::communication);
    const BucketUse use = terms_.uses_host ? host_->open(bucket, clock) : flat_.open(bucket, clock);
    const bool is_first = num_taken_++ == 0;
    together([this, is_first, &bucket] {
      if (terms_.uses_host) host_->check_alike(bucket);
      if (is_first) check();
    });
    const OpenSlots open = opened(bucket, use);
    if (worker_->world_size() == 1) {
      is_finite_ &= finish_alone(open);
    } else if (terms_.uses_host) {
      is_finite_ &= host_->average(open, clock);
    } else {
      is_finite_ &= flat_.average(open);
    }
    open_.insert(open_.end(), open.begin(), open.end());
  }

  // Exchanges what is left and ends the pass. Returns whether all averages are finite.
  [[nodiscard]] bool finish(StepClock& clock) {
    while (num_taken_ < buckets_->size()) take_bucket(clock);
    if (terms_.uses_device) finish_on_device(clock);
    if (terms_.uses_host) {
      is_finite_ = host_->close(open_, is_finite_, clock);
    }
    clock.set_waits_of_all(summary().waits);
    clock.count_step(terms_.uses_host ? host_->take_bytes() : flat_.take_bytes());
    is_under_way_ = false;
    return is_finite_;
  }

  // What all ranks have told of the pass.
  [[nodiscard]] const PassSummary& summary() const noexcept {
    if (terms_.uses_device) return device_->summary();
    return terms_.uses_host ? host_->summary() : flat_.summary();
  }
  // Of the last pass; nullptr if that was not exchanged on the device.
  [[nodiscard]] const GradientArena* arena() const noexcept {
    return device_ && terms_.uses_device ? &device_->arena() : nullptr;
  }
  // Slots that are in no bucket of the device, and that somebody has used all the same.
  [[nodiscard]] const OpenSlots& late() const noexcept { return late_; }
  // The slots that have been averaged.
  [[nodiscard]] const OpenSlots& open() const noexcept { return open_; }
  // Those of them that this rank has not used, though it has samples.
  [[nodiscard]] const UnusedSlots& unused_here() const noexcept { return unused_here_; }

  // Ends every wait of this rank in a pass that moved aside, from any thread.
  void abort(std::string_view reason) noexcept {
    if (terms_.uses_device) return device_->abort(reason);
    terms_.uses_host ? host_->abort(reason) : flat_.abort(reason);
  }
  // After that, by the thread that exchanges: returns once nobody is at this rank's gradients.
  void withdraw() noexcept {
    if (terms_.uses_host) host_->withdraw();
    is_under_way_ = false;
  }

 private:
  // Of some slots those that are to be averaged, by what the ranks have of them.
  [[nodiscard]] OpenSlots opened(const Bucket& bucket, const BucketUse& use) {
    OpenSlots open;
    for (std::size_t at = 0; at < bucket.size(); ++at) {
      GradientSlot& slot = (*slots_)[bucket[at]];
      if (use.num_using[at] == 0) continue;  // unused everywhere: stays as it was
      slot.was_trained = true;
      if (terms_.header.samples > 0 && !slot.used) unused_here_.add(slot.name, use.num_using[at]);
      if (use.num_giving[at] == 0) {
        // Used by ranks without samples only, so nothing may remain of it.
        slot.parameter.mutable_grad().reset();
      } else {
        open.emplace_back(bucket[at], &slot);
      }
    }
    return open;
  }

  void finish_on_device(StepClock& clock) {
    const BucketUse use = device_->meet(clock);
    together([this] { check(); });
    Bucket all(slots_->size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    open_ = opened(all, use);
    device_->average(use);
    for (const auto& one : open_) {
      if (!device_->arena().has(one.first)) late_.push_back(one);
    }
    if (!late_.empty()) {
      flat_.go_by(device_->summary());
      is_finite_ &= flat_.average(late_);
    }
    if (terms_.checks_finite) is_finite_ &= device_->is_finite();
    clock.count_bytes(device_->take_bytes());
  }

  // A single worker's gradients are what they are, but for the weights of micro-batches.
  [[nodiscard]] bool finish_alone(const OpenSlots& open) const {
    bool is_finite = true;
    std::vector<at::Tensor> on_device;
    for (const auto& one : open) {
      at::Tensor& gradient = one.second->parameter.mutable_grad();
      if (gradient.is_sparse()) gradient = gradient.to_dense();  // as on any number of ranks
      if (one.second->is_weighted) gradient.div_(terms_.header.samples);
      if (!terms_.checks_finite || gradient.numel() == 0) continue;
      if (gradient.is_cpu()) {
        is_finite &= is_all_finite(gradient);
      } else {
        on_device.push_back(gradient);
      }
    }
    return is_finite && are_all_finite(on_device);
  }

  // What fails here does so on all ranks alike; nobody may go on while another still reads what it has shown.
  template <class Check>
  void together(const Check& check) {
    try {
      check();
    } catch (...) {
      is_under_way_ = false;
      if (terms_.uses_host) host_->cancel();
      throw;
    }
  }

  void check() {
    check_silence();
    check_together();
    check_samples();
  }

  void check_silence() const {
    if (summary().num_silent == 0) return;
    throw ConfigError{
        compose("backward() on rank {}/{}: {} of the ranks did not say how many samples are behind their gradients, "
                "which is what they are weighted with. Set .drives_step = true on the training loader, or call "
                "worker.samples(n) before backward()",
                worker_->rank(), worker_->world_size(), summary().num_silent)};
  }

  void check_samples() const {
    if (summary().samples > 0) return;
    throw ConfigError{
        compose("backward() on rank {}/{}: worker.samples(0) was called on every rank, so there is nothing to average; "
                "leave the step out on all ranks instead",
                worker_->rank(), worker_->world_size())};
  }

  // Ranks that are at different steps would average what does not belong together.
  void check_together() {
    const std::vector<PassHeader>& headers = summary().headers;
    const PassHeader& first = headers.front();
    for (std::size_t rank = 1; rank < headers.size(); ++rank) {
      const PassHeader& other = headers[rank];
      if (first.is_together_with(other)) continue;
      if (first.num_slots != other.num_slots) {
        throw ConfigError{
            compose("backward() on rank {}/{}: rank {} has prepared {} parameters and rank 0 {}: all ranks must call "
                    "prepare_model() for the same models",
                    worker_->rank(), worker_->world_size(), rank, other.num_slots, first.num_slots)};
      }
      if (first.loop != other.loop) {
        throw ConfigError{compose(
            "backward() on rank {}/{}: in its step {} rank {} goes over the training data for the {}. time, rank 0 in "
            "its step {} for the {}. A rank has left its loop earlier than the others (by break, or an exception that "
            "was caught); all ranks must leave it at the same step: decide by worker.should_stop()",
            worker_->rank(), worker_->world_size(), other.step, rank, other.loop, first.step, first.loop)};
      }
      if (first.data != other.data) {
        throw ConfigError{compose(
            "backward() on rank {}/{}: rank {} goes over the training data in another way than rank 0: {}. Give "
            "prepare_loader() the same dataset and LoaderOptions on every rank, and the loader the same epoch",
            worker_->rank(), worker_->world_size(), rank,
            difference_of_settings(gather_texts(worker_->control().data())))};
      }
      if (first.step == other.step && first.pass == other.pass && first.updates == other.updates) {
        throw ConfigError{compose(
            "backward() on rank {}/{}: in its first step after prepare_model() rank {} has other weights than rank 0. "
            "Something has written to them since, at random or on one rank alone: initialise and load weights in the "
            "factory or before prepare_model()",
            worker_->rank(), worker_->world_size(), rank)};
      }
      if (first.step == other.step && first.pass == other.pass) {
        throw ConfigError{compose(
            "backward() on rank {}/{}: before its step {}, rank {} has not updated its weights as rank 0 has, so they "
            "differ{}: call clip_grad_norm_() and optimizer.step() equally often on all ranks, with the same settings",
            worker_->rank(), worker_->world_size(), other.step, rank, difference_of_updates())};
      }
      throw ConfigError{compose(
          "backward() on rank {}/{}: rank {} is in backward pass {} of its step {}, rank 0 in pass {} of its step {}. "
          "A rank has left out a backward() (by continue, or a loss that uses no prepared parameter) or has called one "
          "more; all ranks must call it equally often in every step",
          worker_->rank(), worker_->world_size(), rank, other.pass + 1, other.step, first.pass + 1, first.step)};
    }
  }

  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine) {
    if (terms_.uses_device) return device_->gather_texts(mine);
    return terms_.uses_host ? host_->gather_texts(mine) : flat_.gather_texts(mine);
  }

  // Of the last ones; there may be none in these.
  [[nodiscard]] std::string difference_of_updates() {
    const std::string text = difference_of_settings(gather_texts(worker_->extension<UpdateDigest>().text()));
    return text.empty() ? text : compose(" ({})", text);
  }

  Worker* worker_;
  FlatReduction flat_;
  std::optional<HostReduction> host_{};      // where the ranks of a host share memory
  std::optional<DeviceReduction> device_{};  // where the backend has a line on the device
  std::vector<GradientSlot>* slots_ = nullptr;
  const std::vector<Bucket>* buckets_ = nullptr;
  PassTerms terms_{};
  std::size_t num_taken_ = 0;
  OpenSlots open_{};
  OpenSlots late_{};
  UnusedSlots unused_here_{};
  bool is_finite_ = true;
  bool is_under_way_ = false;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
