// SPDX-License-Identifier: MIT
// Cuts an epoch into batches and each of them among the workers. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/block_op_node.hpp"
#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/ordered_stage.hpp"
#include "railyard/data/detail/permutation.hpp"
#include "railyard/data/detail/row_reader.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/epoch_position.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Says what is to be computed for each step of one worker.
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
    Work work = work_for(stands_in ? Range{whole.begin, whole.begin + 1} : mine);
    if (is_last) {
      batch_.clear();
      batch_share_ = {};
    }
    return std::pair{std::move(work), std::move(outline)};
  }

 private:
  // Goes on to the next batch. False at the end of the epoch.
  bool begin_batch() {
    const std::uint64_t consumed = position_.consumed();
    if (rows_) {
      batch_ = rows_->take_parts(options_.global_batch_size);
      size_ = 0;
      batch_share_ = {*scope_.budget, 0};
      for (const Block& part : batch_) {
        size_ += part.rows();
        batch_share_.resize(batch_share_.bytes() + bytes_of(part));
      }
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
  MemoryShare batch_share_{};
  std::size_t size_ = 0;  // of the batch
  std::size_t num_parts_ = 0;
  std::size_t part_ = 0;  // that is planned next
};

}  // namespace detail
}  // namespace railyard::inline v0_1
