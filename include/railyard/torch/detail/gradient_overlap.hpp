// SPDX-License-Identifier: MIT
// Has buckets of gradients exchanged while the backward pass that completes them goes on. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/bucket_schedule.hpp"
#include "railyard/torch/detail/communication_thread.hpp"
#include "railyard/torch/detail/gradient_refusals.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/pass_exchange.hpp"
#include "railyard/torch/detail/step_clock.hpp"
#include "railyard/torch/detail/worker_pool.hpp"
#include "railyard/torch/model_options.hpp"

#include "railyard/core/reduce_op.hpp"
#include "railyard/train/worker.hpp"
#include "railyard/workers/detail/cores.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Where a worker's gradients are exchanged.
struct ExchangePlace {
  bool is_device = false;  // all lie on its GPU
  bool is_on_cpu = false;  // none lies on a GPU
  bool is_host = false;    // none does, and the ranks of each host see each other's memory
};

// Cuts the gradients into buckets when one whole step has shown in which order they come. From then on the buckets of a
// pass that are complete are handed over: on CPUs to a thread that exchanges them meanwhile; on a device they are put
// on its stream at once, for which no thread is needed. The last bucket is complete when the pass is about to end, and
// is left to whoever ends it.
class GradientOverlap {
 public:
  GradientOverlap(Worker& worker, PassExchange& exchange) : worker_(&worker), exchange_(&exchange) {}

  // The models, or how they are exchanged, are others.
  void reset(std::size_t num_slots, const ModelOptions& options, const ExchangePlace& place) {
    place_ = place;
    begins_early_ = options.overlap != Overlap::off;
    is_forced_ = options.overlap == Overlap::on;
    const bool is_of_use = worker_->world_size() > 1 && !options.comm_hook && (begins_early_ || place.is_device);
    state_ = is_of_use ? State::undecided : State::never;
    observed_step_ = 0;
    forget_order(num_slots);
  }
  // Only their number is another one.
  void forget_order(std::size_t num_slots) {
    order_.clear();
    schedule_.reset(num_slots);
  }

  [[nodiscard]] const std::vector<Bucket>& buckets() const noexcept { return schedule_.buckets(); }
  // Whether a pass that begins now is exchanged on the device.
  [[nodiscard]] bool uses_device() const noexcept {
    return place_.is_device && (state_ == State::at_end || state_ == State::active);
  }
  // Whether buckets of the pass under way have been handed over.
  [[nodiscard]] bool has_begun() const noexcept { return num_handed_ > 0; }
  // Seconds that were waited for other ranks meanwhile.
  [[nodiscard]] double waited() const noexcept { return aside_.waited(); }

  // A gradient has come, of a pass that is to be exchanged.
  void arrive(GradientSlot& slot, std::size_t index, std::uint64_t step) {
    if (state_ == State::never) return;
    const bool is_first = !std::exchange(slot.has_arrived, true);
    if (num_handed_ > 0 && schedule_.bucket_of(index) < num_handed_) refuse_repeat(*worker_, slot, step);
    schedule_.arrive(index, is_first);
  }

  // Hands over what is complete; begin() is called before the first bucket of a pass.
  template <class Begin>
  void hand_over(const Begin& begin) {
    if (state_ != State::active) return;
    if (num_handed_ > 0 && !place_.is_device && thread_->has_failed()) settle();
    const std::size_t num_ready = std::min(schedule_.num_ready(), schedule_.buckets().size() - 1);
    if (num_ready <= num_handed_) return;
    if (num_handed_ == 0) begin();
    if (!place_.is_device) thread_->ask(num_ready - num_handed_);
    for (std::size_t bucket = num_handed_; place_.is_device && bucket < num_ready; ++bucket) {
      exchange_->take_bucket(aside_);
    }
    num_handed_ = num_ready;
  }

  // Waits for what was handed over, and throws what has become of it. On a device there is nothing to wait for.
  void settle() {
    num_handed_ = 0;
    if (!place_.is_device) thread_->settle();
  }

  // Lets nothing of a pass go on. If its exchange has begun and not ended, other ranks may be at this one's gradients,
  // which are about to go: the group is given up.
  void forget_pass() noexcept {
    constexpr std::string_view reason =
        "its backward() ended by an exception after it had begun to exchange gradients; with ModelOptions::overlap set "
        "to off a program can go on after that";
    if (num_handed_ > 0) {
      if (place_.is_device || !thread_->has_failed()) exchange_->abort(reason);
      try {
        settle();
      } catch (...) {  // what this is about has been thrown already
      }
    }
    if ((thread_ || uses_device()) && exchange_->is_under_way()) {
      exchange_->abort(reason);
      exchange_->withdraw();
    }
    schedule_.begin_pass();
  }

  // Called when a pass of the step has been exchanged. The order of rank 0 is everybody's from the next pass on.
  void decide(const std::vector<GradientSlot>& slots, std::uint64_t step, const ModelOptions& options) {
    if (uses_device() && !exchange_->late().empty()) {
      for (const auto& one : exchange_->late()) order_.push_back(static_cast<std::int64_t>(one.first));
      cut(slots, options);
    }
    if (state_ != State::undecided) return;
    if (observed_step_ == 0) observed_step_ = step;
    if (observed_step_ == step) return;
    state_ = State::never;
    std::int64_t allows = can_begin_early() && !schedule_.has_repeats() ? 1 : 0;
    worker_->all_reduce(buffer_of_value(allows), ReduceOp::min);
    if (place_.is_device ? !exchange_->move_to_device() : allows == 0) return;
    order_ = numbers_of_first_rank(*worker_, schedule_.observed());
    if (place_.is_device && order_.empty()) return;
    cut(slots, options);
    if (place_.is_device) {
      worker_->note_environment("bucket_plan", schedule_.plan());
      state_ = allows != 0 ? State::active : State::at_end;
      return;
    }
    if (schedule_.buckets().size() == 1 || !exchange_->move_aside(place_.is_host)) return schedule_.reset(slots.size());
    if (!thread_) {
      const auto& pool = worker_->extension<WorkerPool>().binding;
      thread_ = std::make_unique<CommunicationThread>([this] { exchange_->take_bucket(aside_); },
                                                      pool ? pool->heap() : nullptr);
    }
    worker_->note_environment("bucket_plan", schedule_.plan());
    state_ = State::active;
  }

  void end() noexcept { thread_.reset(); }

 private:
  enum class State : std::uint8_t {
    undecided,  // until a step has shown in which order gradients come
    never,
    at_end,  // on the device, when the pass has ended
    active,
  };

  [[nodiscard]] bool spans_hosts() const { return worker_->local_world_size() < worker_->world_size(); }

  [[nodiscard]] bool can_begin_early() const {
    if (place_.is_device) return begins_early_;
    if (!place_.is_on_cpu) return false;
    return is_forced_ || spans_hosts() || usable_cores() > worker_->local_world_size();
  }

  void cut(const std::vector<GradientSlot>& slots, const ModelOptions& options) {
    using Others = BucketSchedule::Others;
    schedule_.cut(order_, slots, limits_of(options, slots, spans_hosts()),
                  place_.is_device ? Others::in_none : Others::in_last_bucket);
  }

  Worker* worker_;
  PassExchange* exchange_;
  ExchangePlace place_{};
  bool begins_early_ = true;
  bool is_forced_ = false;  // also where there is no core for the thread
  State state_ = State::never;
  std::uint64_t observed_step_ = 0;    // the first one that shows the order
  std::vector<std::int64_t> order_{};  // numbers of slots that are in a bucket
  BucketSchedule schedule_{};
  std::size_t num_handed_ = 0;  // buckets of the pass under way
  StepClock aside_{};           // of the thread
  std::unique_ptr<CommunicationThread> thread_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
