// SPDX-License-Identifier: MIT
// Takes the samples of one batch after another from a stream. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/detail/permutation.hpp"
#include "railyard/data/detail/row_reader.hpp"
#include "railyard/data/detail/source_node.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Which samples of a part of a batch a worker is given, counted from the batch's begin: where there is none for it, one
// of another worker's if it asks for that.
[[nodiscard]] inline Range given_range(const EpochOptions& options, Range part) noexcept {
  const Range mine = part_of(part, options.rank, options.world_size);
  return mine.size() == 0 && options.stands_in ? Range{part.begin, part.begin + 1} : mine;
}

// Is an indexed node as a stream, in the order that an epoch has.
class EpochNode final : public OrderNode {
 public:
  EpochNode(NodePtr upstream, std::optional<Permutation> order)
      : OrderNode(std::move(upstream), "an epoch"), order_(std::move(order)) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return upstream()->count(); }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    if (!order_) return upstream()->read(places, key);
    std::vector<std::uint64_t> inner(places.begin(), places.end());
    for (std::uint64_t& place : inner) place = (*order_)(place);
    return upstream()->read(inner, key);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return open_indexed(shared_from_this(), scope, from);
  }
  // Where an OwnBatches of it begins.
  [[nodiscard]] static Place place_of(std::uint64_t consumed) { return {0, consumed}; }

 private:
  std::optional<Permutation> order_;
};

// Gives what one worker has of the batches of a stream.
class StreamBatches {
 public:
  StreamBatches() = default;
  StreamBatches(const StreamBatches&) = delete;
  StreamBatches& operator=(const StreamBatches&) = delete;
  virtual ~StreamBatches() = default;

  // Goes on to the next batch, of all workers, and returns how many samples it has; none at the end.
  [[nodiscard]] virtual std::size_t begin() = 0;
  // Where a stream begins that gives what comes after the batch.
  [[nodiscard]] virtual Place place() const = 0;
  // This worker's samples of a part of the batch, which are these of the whole. Asked for part after part.
  [[nodiscard]] virtual Block take(Range range) = 0;
  // Gives the memory of the batch back.
  virtual void end() noexcept = 0;
};

// Goes through the stream itself.
class OwnBatches final : public StreamBatches {
 public:
  OwnBatches(const NodePtr& node, const Scope& scope, const EpochOptions& options, Place from)
      : node_(node), scope_(scope), options_(options), rows_(open(node, scope, std::move(from))) {}

  [[nodiscard]] std::size_t begin() override {
    share_ = {*scope_.budget, 0};
    batch_ = rows_.take_parts(options_.global_batch_size, share_);
    std::size_t size = 0;
    for (const Block& part : batch_) size += part.rows();
    return size;
  }
  [[nodiscard]] Place place() const override {
    Place place;
    rows_.append_place(place);
    return place;
  }
  // Copied where the rest of the batch is other workers', so that its memory is not kept.
  [[nodiscard]] Block take(Range range) override {
    if (range.size() == 0) return no_samples(node_->schema());
    const std::vector<Block> slices = slices_of(range);
    return options_.world_size > 1 ? join_copies(slices) : join(slices);
  }
  void end() noexcept override {
    batch_.clear();
    share_ = {};
  }

  // Samples of the batch, as they lie in memory.
  [[nodiscard]] std::vector<Block> slices_of(Range range) const {
    std::vector<Block> slices;
    std::size_t begin = 0;
    for (const Block& part : batch_) {
      const std::size_t from = std::clamp(range.begin, begin, begin + part.rows()) - begin;
      const std::size_t to = std::clamp(range.end, begin, begin + part.rows()) - begin;
      if (from < to) slices.push_back(part.slice(from, to));
      begin += part.rows();
    }
    return slices;
  }

 private:
  [[nodiscard]] static RowReader open(const NodePtr& node, const Scope& scope, Place from) {
    PlaceCursor cursor{std::move(from)};
    RowReader rows{node, scope, cursor};
    cursor.check_all_taken();
    return rows;
  }

  NodePtr node_;
  Scope scope_;
  EpochOptions options_;
  RowReader rows_;
  std::vector<Block> batch_{};  // of all workers
  MemoryShare share_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
