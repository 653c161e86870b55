// SPDX-License-Identifier: MIT
// Cuts an epoch into batches and each of them among the workers. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/block_op_node.hpp"
#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/fed_batches.hpp"
#include "railyard/data/detail/fed_blocks.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/ordered_stage.hpp"
#include "railyard/data/detail/permutation.hpp"
#include "railyard/data/detail/stream_batches.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/epoch_position.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
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

  // feed: where a worker of this host reads for all; nullptr if each reads for itself, as what is indexed is also where
  // the workers divide it.
  BatchPlan(const Dataset& dataset, const EpochOptions& options, const Scope& scope, EpochPosition position,
            HostFeed* feed, const FeedTaker& taker)
      : options_(options),
        scope_(scope),
        chain_{dataset.node()},
        position_(std::move(position)),
        is_indexed_(dataset.is_indexed()) {
    auto of_whole = own_operations(dataset);
    if (!of_whole && (is_indexed_ || !dataset.is_divided())) feed = nullptr;
    if (is_indexed_) {
      count_ = *dataset.count();
      if (options.shuffle) order_.emplace(count_, derive_seed(options.seed, options.epoch));
      if (feed == nullptr) return;
    }
    if (feed != nullptr && of_whole && of_whole->keeps_count()) {
      chain_ = std::move(*of_whole);
      open_stream(feed, feed_key(*chain_.base, dataset.common()->name, options, position_), taker);
    } else if (feed != nullptr && of_whole) {
      chain_ = OperationChain::of(FedNode::below(*of_whole, dataset.common()->name, *feed, taker), true);
      open_stream(nullptr, 0, taker);
    } else {
      chain_ = OperationChain::of(dataset.node(), true);
      open_stream(feed, feed == nullptr ? 0 : feed_key(*dataset.node(), "", options, position_), taker);
    }
  }

  // The next step, or nothing after the last one.
  [[nodiscard]] std::optional<std::pair<Work, Outline>> next() {
    if (part_ == num_parts_ && !begin_batch()) return std::nullopt;
    const Range whole = part_of({0, size_}, part_++, num_parts_);
    const bool is_last = part_ == num_parts_;
    if (is_last) position_ = end_;
    Outline outline{part_of(whole, options_.rank, options_.world_size).size(), whole.size(), is_last, position_};
    Work work = work_for(given_range(options_, whole));
    if (is_last && stream_) stream_->end();
    return std::pair{std::move(work), std::move(outline)};
  }

 private:
  void open_stream(HostFeed* feed, std::uint64_t key, const FeedTaker& taker) {
    NodePtr node = chain_.base;
    Place from = position_.place();
    if (is_indexed_) {
      node = std::make_shared<const EpochNode>(std::move(node), order_);
      from = EpochNode::place_of(position_.consumed());
    }
    if (feed != nullptr && !feed->leads()) {
      stream_ = std::make_unique<FedBatches>(node, scope_, options_, std::move(from), *feed, taker, key);
      return;
    }
    auto own = std::make_unique<OwnBatches>(node, scope_, options_, std::move(from));
    if (feed == nullptr) {
      stream_ = std::move(own);
    } else {
      stream_ = std::make_unique<LedBatches>(std::move(own), scope_, options_, *feed, taker, key);
    }
  }

  // Goes on to the next batch. False at the end of the epoch.
  bool begin_batch() {
    const std::uint64_t consumed = position_.consumed();
    size_ = stream_ ? stream_->begin()
                    : static_cast<std::size_t>(std::min<std::uint64_t>(options_.global_batch_size, count_ - consumed));
    if (size_ == 0 || (options_.drop_last && size_ < options_.global_batch_size)) return false;
    num_parts_ = std::min(options_.micro_batches, size_);
    part_ = 0;
    end_ = position_.moved_to(consumed + size_, is_indexed_ ? Place{} : stream_->place());
    return true;
  }

  // The computation of samples of the batch, which count from its begin.
  [[nodiscard]] Work work_for(Range range) const {
    if (stream_) {
      Block input = stream_->take(range);
      MemoryShare share{*scope_.budget, bytes_of(input)};
      return {[chain = chain_, key = scope_.key, input = std::move(input)]() mutable {
                return chain.apply(std::move(input), key);  // so that it is gone when the second operation begins
              },
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

  EpochOptions options_;
  Scope scope_;
  OperationChain chain_;    // the operations that are done for this worker's samples alone
  EpochPosition position_;  // after the last whole batch
  EpochPosition end_{};     // of the batch
  bool is_indexed_;
  std::uint64_t count_ = 0;                  // if indexed
  std::optional<Permutation> order_{};       // if indexed and shuffled
  std::unique_ptr<StreamBatches> stream_{};  // if not indexed, or read with others
  std::size_t size_ = 0;                     // of the batch
  std::size_t num_parts_ = 0;
  std::size_t part_ = 0;  // that is planned next
};

}  // namespace detail
}  // namespace railyard::inline v0_1
