// SPDX-License-Identifier: MIT
// Goes over one epoch of a dataset in batches, of which each worker reads its part. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/batch_plan.hpp"
#include "railyard/data/detail/feed_ends.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/ordered_stage.hpp"
#include "railyard/data/detail/task_pool.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/epoch_position.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {

/// Is one worker's part of a batch, or of a micro-batch.
struct EpochStep {
  Block block{};
  std::size_t samples = 0;         ///< of the block that count: all, or 0 where one stands in
  std::size_t global_samples = 0;  ///< of all workers together
  bool completes_batch = true;     ///< false while more micro-batches follow
  /// What has been consumed when this batch has: until its last micro-batch, what had been before it.
  EpochPosition after{};
  /// What a loader has had made of the block.
  std::shared_ptr<void> made{};
};

namespace detail {

// Is what a loader has made of a block, in memory beside it.
struct MadeOfBlock {
  std::shared_ptr<void> what{};
  std::size_t bytes = 0;
};

// What a loader asks of a reader beyond the options.
struct LoaderWishes {
  // Through which the workers of this host share the reading of a stream.
  std::shared_ptr<HostFeed> feed{};
  // Called for block after block on the thread that reads ahead, or in next() where there is none.
  std::function<MadeOfBlock(const Block&)> make{};
};

// Computes the steps of an epoch, on a thread of its own if there are any. Whoever has it gives it back by leave().
class EpochDriver {
 public:
  struct Ready {
    EpochStep step{};
    MemoryShare share{};
  };

  EpochDriver(const Dataset& dataset, const EpochOptions& options, LoaderWishes wishes);
  EpochDriver(const EpochDriver&) = delete;
  EpochDriver& operator=(const EpochDriver&) = delete;
  ~EpochDriver() {
    ask_to_stop();
    if (thread_.joinable()) thread_.join();
  }

  // Ends it. Where the last deadline has passed, what it waits for may never return: then another thread waits for its
  // end, so that the error reaches whoever can tell of it.
  static void leave(std::unique_ptr<EpochDriver> driver) noexcept {
    driver->ask_to_stop();
    if (!driver->is_late_) return;
    auto* const late = driver.release();
    const BlockSignals no_signals{deferrable_signals()};
    try {
      std::thread{[late] { const std::unique_ptr<EpochDriver> last{late}; }}.detach();
    } catch (...) {  // there is no thread, and it stays as it is
    }
  }

  [[nodiscard]] std::optional<Ready> next(const Deadline& deadline) {
    return thread_.joinable() ? wait_for_ready(deadline) : compute();
  }
  // Whether next() would return a step at once.
  [[nodiscard]] bool is_ready() {
    const std::lock_guard lock{mutex_};
    return !ready_.empty();
  }
  // Where the epoch begins.
  [[nodiscard]] const EpochPosition& begin() const noexcept { return begin_; }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return budget_.used(); }
  // Whether the last deadline has passed, so that another thread will wait for its end.
  [[nodiscard]] bool is_late() const noexcept { return is_late_; }

 private:
  void start();
  void ask_to_stop() noexcept;
  void drive() noexcept;
  void tell(FeedRest rest) const noexcept {
    if (wishes_.feed != nullptr) wishes_.feed->rest(rest);
  }
  [[nodiscard]] FeedRest reason_to_rest() const noexcept {
    return ready_.empty() ? FeedRest::of_memory : FeedRest::of_loop;
  }
  // One step is computed while the caller has another, if there is memory for both; else when the caller waits for it.
  [[nodiscard]] bool has_room_below(std::size_t batches) const noexcept {
    if (ready_.empty()) return taker_.waits.load() || budget_.used() + 2 * largest_ <= budget_.bound();
    return ready_.size() < batches && budget_.has_room(2 * largest_);
  }
  std::optional<Ready> compute();
  std::optional<Ready> wait_for_ready(const Deadline& deadline);

  Dataset dataset_;
  EpochOptions options_;
  LoaderWishes wishes_;
  FeedTaker taker_{};
  EpochPosition begin_;
  MemoryBudget budget_;
  TaskPool pool_;
  std::optional<BatchPlan> plan_{};
  std::deque<BatchPlan::Outline> outlines_{};  // of the steps that are being computed
  std::optional<OrderedStage> stage_{};
  bool is_late_ = false;  // the last deadline has passed

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<Ready> ready_{};
  std::size_t largest_ = 0;  // bytes of a step
  bool is_resting_ = false;  // the thread, until there is room for several steps
  bool is_over_ = false;
  bool is_stopping_ = false;
  std::exception_ptr failure_{};
  std::thread thread_{};
};

inline EpochDriver::EpochDriver(const Dataset& dataset, const EpochOptions& options, LoaderWishes wishes)
    : dataset_(dataset),
      options_(completed(options, dataset)),
      wishes_(std::move(wishes)),
      begin_(check_epoch_options(dataset, options_)),
      budget_(options.bound_bytes),
      pool_(options.threads > 0 ? options.threads - 1 : 0) {
  if (options.threads == 0) wishes_.feed = nullptr;     // whoever reads only when asked would hold the others up
  const BlockSignals no_signals{deferrable_signals()};  // in the thread, which runs no handler of the user's
  if (options.threads > 0) thread_ = std::thread{[this] { drive(); }};
}

// Opens the dataset: what that throws belongs to the first step.
inline void EpochDriver::start() {
  // All workers' part of a batch as the stream gave it, and this one's in a block of its own.
  const std::size_t own_rows = (options_.global_batch_size + options_.world_size - 1) / options_.world_size;
  const Scope scope{{options_.seed, options_.epoch}, &pool_, &budget_, options_.global_batch_size + own_rows};
  plan_.emplace(dataset_, options_, scope, begin_, wishes_.feed.get(), taker_);
  const auto plan = [this]() -> std::optional<Work> {
    auto next = plan_->next();
    if (!next) return std::nullopt;
    outlines_.push_back(std::move(next->second));
    return std::move(next->first);
  };
  stage_.emplace(scope, plan, true);
}

// Computes the next step. What was thrown once is thrown again: nothing goes on after it.
inline std::optional<EpochDriver::Ready> EpochDriver::compute() {
  if (failure_) std::rethrow_exception(failure_);
  try {
    if (!stage_) start();
    Chunk chunk = stage_->next();
    if (outlines_.empty() || pool_.has_ended()) return std::nullopt;
    BatchPlan::Outline outline = std::move(outlines_.front());
    outlines_.pop_front();
    MadeOfBlock made;
    if (wishes_.make) made = wishes_.make(chunk.block);
    chunk.share.resize(chunk.share.bytes() + made.bytes);
    return Ready{{std::move(chunk.block), outline.samples, outline.global_samples, outline.completes_batch,
                  std::move(outline.after), std::move(made.what)},
                 std::move(chunk.share)};
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

// Fills the queue of what is ready, on a thread of its own that helps the pool while it waits. When there is no room,
// it rests until half of it has been taken: to be woken for each step would cost the loop more than the step is worth.
inline void EpochDriver::drive() noexcept {
  have_time();
  const WatchedThread watched{pool_.watch()};
  while (true) {
    {
      std::unique_lock lock{mutex_};
      if (!has_room_below(options_.prefetch)) {
        is_resting_ = true;
        tell(reason_to_rest());
        changed_.wait(lock, [this] { return is_stopping_ || !is_resting_; });
      }
      if (is_stopping_) return;
    }
    tell(FeedRest::none);
    std::optional<Ready> ready;
    try {
      ready = compute();
    } catch (...) {  // which failure_ keeps for the caller
    }
    const std::lock_guard lock{mutex_};
    is_over_ = !ready;
    if (ready) {
      largest_ = std::max(largest_, ready->share.bytes());
      ready_.push_back(std::move(*ready));
    }
    changed_.notify_all();
    if (is_over_) return tell(FeedRest::of_loop);
  }
}

inline std::optional<EpochDriver::Ready> EpochDriver::wait_for_ready(const Deadline& deadline) {
  std::unique_lock lock{mutex_};
  const auto is_ready = [this] { return is_over_ || !ready_.empty(); };
  taker_.waits.store(!is_ready());
  if (is_resting_ && taker_.waits.load()) {  // there was no room for a step while the caller had the last one
    is_resting_ = false;
    changed_.notify_all();
  }
  detail::AwakeTime time;
  while (!is_ready() && !time.is_over(deadline)) changed_.wait_for(lock, time.until_next_look(deadline));
  if (!is_ready()) {
    is_late_ = true;
    const std::string noted = pool_.watch().noted();
    throw DataError{
        compose("{} on rank {}/{} gave no batch in {}: {}: look where it waits, or give it more time (of a loader "
                "RunConfig::collective_timeout)",
                dataset_.describe(), options_.rank, options_.world_size, deadline.budget_text(),
                noted.empty() ? "a source or a function that it calls is slow or does not return" : noted)};
  }
  is_late_ = false;
  taker_.waits.store(false);
  if (!ready_.empty()) {
    Ready first = std::move(ready_.front());
    ready_.pop_front();
    const bool wakes = is_resting_ && has_room_below(options_.prefetch / 2 + 1);
    if (wakes) is_resting_ = false;
    if (is_resting_) tell(reason_to_rest());
    lock.unlock();
    if (wakes) changed_.notify_all();
    return first;
  }
  if (failure_) std::rethrow_exception(failure_);
  return std::nullopt;
}

inline void EpochDriver::ask_to_stop() noexcept {
  taker_.has_left.store(true);
  pool_.end_streams();
  {
    const std::lock_guard lock{mutex_};
    is_stopping_ = true;
  }
  changed_.notify_all();
}

}  // namespace detail

/// Goes over one epoch of a dataset for one worker. The order of the samples is a function of seed and epoch; the
/// workers divide each batch in parts whose sizes differ by at most one, and the last batch may be smaller, so that
/// each sample comes exactly once. What comes in which order is the same for any number of threads, which end with the
/// reader. Example: for (ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = 64}}) use(step.block);
class EpochReader {
 public:
  /// Throws: ConfigError if the options cannot be met, or go on from another dataset or order. Reading begins here
  /// where there are threads, which are none that the scheduler hurries: they do not push the loop off its core.
  EpochReader(const Dataset& dataset, const EpochOptions& options, detail::LoaderWishes wishes = {})
      : driver_(std::make_unique<detail::EpochDriver>(dataset, options, std::move(wishes))),
        position_(driver_->begin()) {}
  EpochReader(const EpochReader&) = delete;
  EpochReader& operator=(const EpochReader&) = delete;
  ~EpochReader() {
    given_ = {};
    detail::EpochDriver::leave(std::move(driver_));
  }

  /// Returns the next step, or nothing after the last. Throws: what the source threw, or a DataError that names the
  /// operation and the sample where a user's function did, or one when the deadline passes; without threads, whose work
  /// is done here, there is none. A function that has not returned by then is left behind when the reader ends: it may
  /// use what it has, and nothing that ends with the caller.
  [[nodiscard]] std::optional<EpochStep> next(const Deadline& deadline = Deadline::never()) {
    given_ = {};
    auto ready = driver_->next(deadline);
    if (!ready) return std::nullopt;
    given_ = std::move(ready->share);
    position_ = ready->step.after;
    return std::move(ready->step);
  }

  /// Goes over the steps that are left.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = EpochStep;
    using pointer = EpochStep*;
    using reference = EpochStep&;

    explicit Iterator(EpochReader& reader) : reader_(&reader), step_(reader.next()) {}
    [[nodiscard]] EpochStep& operator*() noexcept { return *step_; }
    [[nodiscard]] EpochStep* operator->() noexcept { return &*step_; }
    Iterator& operator++() {
      step_ = reader_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) noexcept {
      return !iterator.step_;
    }

   private:
    EpochReader* reader_;
    std::optional<EpochStep> step_;
  };
  [[nodiscard]] Iterator begin() { return Iterator{*this}; }
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

  /// Whether a step has been read ahead, which next() returns at once.
  [[nodiscard]] bool is_ready() { return driver_->is_ready(); }
  /// What has been consumed when the steps given so far have.
  [[nodiscard]] const EpochPosition& position() const noexcept { return position_; }
  /// Bytes of all samples under way, as they are counted against the bound.
  [[nodiscard]] std::size_t used_bytes() const noexcept { return driver_->used_bytes(); }
  /// Whether the last step did not come before its deadline: what reads may then live on after the reader.
  [[nodiscard]] bool is_late() const noexcept { return driver_->is_late(); }

 private:
  std::unique_ptr<detail::EpochDriver> driver_;
  EpochPosition position_;
  detail::MemoryShare given_{};  // of the block that the caller has
};

}  // namespace railyard::inline v0_1
