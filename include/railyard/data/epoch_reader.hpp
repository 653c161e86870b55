// SPDX-License-Identifier: MIT
// Goes over one epoch of a dataset in batches, of which each worker reads its part. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/block_op_node.hpp"
#include "railyard/data/detail/ordered_stage.hpp"
#include "railyard/data/detail/permutation.hpp"
#include "railyard/data/detail/row_reader.hpp"
#include "railyard/data/epoch_position.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how an EpochReader goes over a dataset.
struct EpochOptions {
  /// Samples of a batch, all workers together; to be given.
  std::size_t global_batch_size = 0;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  /// In an order that is a function of seed and epoch; otherwise in the dataset's own. Needs an indexed dataset.
  bool shuffle = false;
  std::size_t rank = 0;
  std::size_t world_size = 1;
  /// A batch is given in so many parts, one after another, of which each worker has its share.
  std::size_t micro_batches = 1;
  /// Where to go on; at the begin of the epoch, if it is not set.
  EpochPosition from{};
  /// Threads that read ahead. With none, next() reads by itself.
  std::size_t threads = 2;
  /// Batches that are read ahead at most.
  std::size_t prefetch = 8;
  /// Bytes that all samples under way may take: those read ahead, those operations work on, the window of a shuffle,
  /// and the block that was given last. One batch, and one block for each operation on a stream, are always allowed.
  std::size_t bound_bytes = std::size_t{256} << 20U;
  /// Where a batch has no sample for this worker, its block holds one of another worker's, which does not count.
  bool stands_in = false;
};

/// Is one worker's part of a batch, or of a micro-batch.
struct EpochStep {
  Block block{};
  std::size_t samples = 0;         ///< of the block that count: all, or 0 where one stands in
  std::size_t global_samples = 0;  ///< of all workers together
  bool completes_batch = true;     ///< false while more micro-batches follow
  /// What has been consumed when this batch has: until its last micro-batch, what had been before it.
  EpochPosition after{};
};

namespace detail {

// Returns where the reader begins. Throws: ConfigError if the options cannot be met.
[[nodiscard]] inline EpochPosition check_epoch_options(const Dataset& dataset, const EpochOptions& options) {
  const auto refuse = [&](std::string_view what) {
    throw ConfigError{
        compose("a reader of {} on rank {}/{}: {}", dataset.describe(), options.rank, options.world_size, what)};
  };
  if (options.global_batch_size == 0) refuse("global_batch_size must be given: the learning rate depends on it");
  if (options.rank >= options.world_size) refuse("ranks count from 0 and are below the world size");
  if (options.micro_batches == 0) refuse("micro_batches is 0: a batch is given in at least one part");
  const bool is_indexed = dataset.is_indexed();
  if (options.shuffle && !is_indexed) {
    refuse(
        "shuffle needs a dataset whose samples can be read in any order: use shuffle_window() on the dataset instead, "
        "or cache() where memory holds all samples");
  }
  const EpochPosition begin{options.seed, options.epoch, options.shuffle, is_indexed ? dataset.count() : std::nullopt};
  if (options.from == EpochPosition{}) return begin;
  if (options.from.moved_to(0, {}) != begin || (is_indexed && options.from.consumed() > *begin.count())) {
    refuse(compose(
        "the saved position is one of seed {}, epoch {}, {} samples{}, and the reader has seed {}, epoch {}, {} "
        "samples{}: the order of the samples would be another",
        options.from.seed(), options.from.epoch(), options.from.count().value_or(0),
        options.from.is_shuffled() ? ", shuffled" : "", options.seed, options.epoch, begin.count().value_or(0),
        options.shuffle ? ", shuffled" : ""));
  }
  return options.from;
}

// Cuts an epoch into batches and says what is to be computed for this worker's parts.
class BatchPlan {
 public:
  // What is known of a step before it has been computed.
  struct Outline {
    std::size_t samples = 0;
    std::size_t global_samples = 0;
    bool completes_batch = true;
    EpochPosition after{};
  };

  BatchPlan(const Dataset& dataset, const EpochOptions& options, const Scope& scope, EpochPosition position)
      : options_(options), scope_(scope), chain_{dataset.node()}, position_(std::move(position)) {
    if (dataset.is_indexed()) {
      count_ = *dataset.count();
      if (options.shuffle) order_.emplace(count_, derive_seed(options.seed, options.epoch));
      return;
    }
    chain_ = OperationChain::of(dataset.node(), true);
    PlaceCursor cursor{position_.place()};
    rows_.emplace(chain_.base, scope, cursor);
    cursor.check_all_taken();
  }

  // The next step, or nothing after the last one.
  [[nodiscard]] std::optional<std::pair<Work, Outline>> next() {
    if (part_ == num_parts_ && !begin_batch()) return std::nullopt;
    const Range whole = part_of({0, size_}, part_++, num_parts_);
    const Range mine = part_of(whole, options_.rank, options_.world_size);
    const bool is_last = part_ == num_parts_;
    if (is_last) position_ = end_;
    const bool stands_in = mine.size() == 0 && options_.stands_in;
    Outline outline{mine.size(), whole.size(), is_last, position_};
    return std::pair{work_for(stands_in ? Range{whole.begin, whole.begin + 1} : mine), std::move(outline)};
  }

 private:
  // Goes on to the next batch. False at the end of the epoch.
  bool begin_batch() {
    const std::uint64_t consumed = position_.consumed();
    if (rows_) {
      batch_ = rows_->take_parts(options_.global_batch_size);
      size_ = 0;
      for (const Block& part : batch_) size_ += part.rows();
    } else {
      size_ = static_cast<std::size_t>(std::min<std::uint64_t>(options_.global_batch_size, count_ - consumed));
    }
    if (size_ == 0) return false;
    num_parts_ = std::min(options_.micro_batches, size_);
    part_ = 0;
    Place place;
    if (rows_) rows_->append_place(place);
    end_ = position_.moved_to(consumed + size_, std::move(place));
    return true;
  }

  // The computation of samples of the batch, which count from its begin.
  [[nodiscard]] Work work_for(Range range) const {
    if (rows_) {
      Block input = range.size() == 0 ? no_samples(chain_.base->schema()) : slice_of(batch_, range);
      MemoryShare share{*scope_.budget, bytes_of(input)};
      return {[chain = chain_, key = scope_.key, input = std::move(input)] { return chain.apply(input, key); },
              {},
              std::move(share)};
    }
    const std::uint64_t begin = end_.consumed() - size_;
    std::vector<std::uint64_t> places = places_between(begin + range.begin, begin + range.end);
    return {[node = chain_.base, key = scope_.key, places = std::move(places), order = order_]() mutable {
              if (places.empty()) return no_samples(node->schema());
              if (order) {
                for (std::uint64_t& place : places) place = (*order)(place);
              }
              return node->read(places, key);
            },
            {},
            {}};
  }

  // Samples of the batch; copied where the rest of it is other workers', so that its memory is not kept.
  [[nodiscard]] Block slice_of(const std::vector<Block>& parts, Range range) const {
    std::vector<Block> slices;
    std::size_t begin = 0;
    for (const Block& part : parts) {
      const std::size_t from = std::clamp(range.begin, begin, begin + part.rows()) - begin;
      const std::size_t to = std::clamp(range.end, begin, begin + part.rows()) - begin;
      if (from < to) slices.push_back(part.slice(from, to));
      begin += part.rows();
    }
    return options_.world_size > 1 ? join_copies(slices) : join(slices);
  }

  EpochOptions options_;
  Scope scope_;
  OperationChain chain_;                // the operations that are done for this worker's samples alone
  EpochPosition position_;              // after the last whole batch
  EpochPosition end_{};                 // of the batch
  std::uint64_t count_ = 0;             // if indexed
  std::optional<Permutation> order_{};  // if indexed and shuffled
  std::optional<RowReader> rows_{};     // if not indexed
  std::vector<Block> batch_{};          // if not indexed: of all workers
  std::size_t size_ = 0;                // of the batch
  std::size_t num_parts_ = 0;
  std::size_t part_ = 0;  // that is planned next
};

}  // namespace detail

/// Goes over one epoch of a dataset for one worker. The order of the samples is a function of seed and epoch; the
/// workers divide each batch in parts whose sizes differ by at most one, and the last batch may be smaller, so that
/// each sample comes exactly once. What comes in which order is the same for any number of threads, which end with the
/// reader. Example: for (ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = 64}}) use(step.block);
class EpochReader {
 public:
  /// Throws: ConfigError if the options cannot be met, or go on from another dataset or order. Reading begins here
  /// where there are threads.
  EpochReader(const Dataset& dataset, const EpochOptions& options);
  EpochReader(const EpochReader&) = delete;
  EpochReader& operator=(const EpochReader&) = delete;
  ~EpochReader() { stop(); }

  /// Returns the next step, or nothing after the last. Throws: what the source threw, or a DataError that names the
  /// operation and the sample where a user's function did.
  [[nodiscard]] std::optional<EpochStep> next() {
    given_ = {};
    auto ready = driver_.joinable() ? wait_for_ready() : compute();
    if (!ready) return std::nullopt;
    given_ = std::move(ready->share);
    position_ = ready->step.after;
    return std::move(ready->step);
  }

  /// What has been consumed when the steps given so far have.
  [[nodiscard]] const EpochPosition& position() const noexcept { return position_; }
  /// Bytes of all samples under way, as they are counted against the bound.
  [[nodiscard]] std::size_t used_bytes() const noexcept { return budget_.used(); }

 private:
  struct Ready {
    EpochStep step{};
    detail::MemoryShare share{};
  };

  void start();
  void stop() noexcept;
  void drive() noexcept;
  std::optional<Ready> compute();
  std::optional<Ready> wait_for_ready();

  Dataset dataset_;
  EpochOptions options_;
  EpochPosition position_;
  detail::MemoryBudget budget_;
  detail::TaskPool pool_;
  std::optional<detail::BatchPlan> plan_{};
  std::deque<detail::BatchPlan::Outline> outlines_{};  // of the steps that are being computed
  std::optional<detail::OrderedStage> stage_{};
  detail::MemoryShare given_{};  // of the block that the caller has

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<Ready> ready_{};
  bool is_over_ = false;
  bool is_stopping_ = false;
  std::exception_ptr failure_{};
  std::thread driver_{};
};

inline EpochReader::EpochReader(const Dataset& dataset, const EpochOptions& options)
    : dataset_(dataset),
      options_(options),
      position_(detail::check_epoch_options(dataset, options)),
      budget_(options.bound_bytes),
      pool_(options.threads > 0 ? options.threads - 1 : 0) {
  if (options.threads > 0) driver_ = std::thread{[this] { drive(); }};
}

// Opens the dataset: what that throws belongs to the first step.
inline void EpochReader::start() {
  const detail::Scope scope{{options_.seed, options_.epoch}, &pool_, &budget_};
  plan_.emplace(dataset_, options_, scope, position_);
  const auto plan = [this]() -> std::optional<detail::Work> {
    auto next = plan_->next();
    if (!next) return std::nullopt;
    outlines_.push_back(std::move(next->second));
    return std::move(next->first);
  };
  stage_.emplace(scope, plan, true);
}

inline std::optional<EpochReader::Ready> EpochReader::compute() {
  if (!stage_) start();
  detail::Chunk chunk = stage_->next();
  if (outlines_.empty()) return std::nullopt;
  detail::BatchPlan::Outline outline = std::move(outlines_.front());
  outlines_.pop_front();
  return Ready{{std::move(chunk.block), outline.samples, outline.global_samples, outline.completes_batch,
                std::move(outline.after)},
               std::move(chunk.share)};
}

// Fills the queue of what is ready, on a thread of its own that helps the pool while it waits.
inline void EpochReader::drive() noexcept {
  std::size_t largest = 0;
  while (true) {
    {
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [&] {
        return is_stopping_ || ready_.empty() || (ready_.size() < options_.prefetch && budget_.has_room(2 * largest));
      });
      if (is_stopping_) return;
    }
    std::optional<Ready> ready;
    std::exception_ptr failure;
    try {
      ready = compute();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock{mutex_};
    if (ready) {
      largest = std::max(largest, ready->share.bytes());
      ready_.push_back(std::move(*ready));
    } else {
      is_over_ = true;
      failure_ = failure;
    }
    changed_.notify_all();
    if (is_over_) return;
  }
}

inline std::optional<EpochReader::Ready> EpochReader::wait_for_ready() {
  std::unique_lock lock{mutex_};
  changed_.notify_all();  // the memory of the last block has been given back
  changed_.wait(lock, [this] { return is_over_ || !ready_.empty(); });
  if (ready_.empty()) {
    if (failure_) std::rethrow_exception(failure_);
    return std::nullopt;
  }
  Ready first = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return first;
}

inline void EpochReader::stop() noexcept {
  {
    const std::lock_guard lock{mutex_};
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (driver_.joinable()) driver_.join();
}

}  // namespace railyard::inline v0_1
