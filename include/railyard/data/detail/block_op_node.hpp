// SPDX-License-Identifier: MIT
// Operations that make samples of samples without looking at others: map, filter, flat_map, columns. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/ordered_stage.hpp"
#include "railyard/data/detail/source_node.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// How much a block may be made of a block, by a function that can stop between two samples.
struct PartLimit {
  std::size_t most_bytes = ~std::size_t{0};
  std::size_t rows = ~std::size_t{0};  // that it has stopped after, of those it was given

  // Whether a function that has gone through so many samples, and made so many bytes of them, is to stop.
  [[nodiscard]] bool stops(std::size_t rows_done, std::size_t bytes) noexcept {
    if (rows_done == 0 || bytes < most_bytes) return false;
    rows = rows_done;
    return true;
  }
};

// Makes a block of a block.
using BlockFunction = std::function<Block(const Block&, const EpochKey&, PartLimit&)>;

class BlockOpNode final : public DataNode {
 public:
  struct Operation {
    std::string name{};  // as messages show it: "map"
    BlockFunction apply{};
    bool keeps_count = true;                                   // one sample comes out for each that goes in
    std::function<void(Fingerprint&)> identify = {};           // adds what it does, where that is known
    bool only_chooses = false;                                 // columns, of which it computes none
    std::shared_ptr<const AnyPreprocessor> preprocessor = {};  // that does it
  };

  BlockOpNode(NodePtr upstream, std::shared_ptr<const Schema> schema, Operation operation)
      : DataNode(std::move(schema)), upstream_(std::move(upstream)), operation_(std::move(operation)) {}

  [[nodiscard]] const NodePtr& upstream() const noexcept { return upstream_; }
  // The same operation over another node.
  [[nodiscard]] NodePtr over(NodePtr other) const {
    return std::make_shared<const BlockOpNode>(std::move(other), schema(), operation_);
  }
  [[nodiscard]] bool keeps_count() const noexcept { return operation_.keeps_count; }
  [[nodiscard]] Block apply(const Block& block, const EpochKey& key, PartLimit& limit) const {
    return operation_.apply(block, key, limit);
  }
  [[nodiscard]] Block apply(const Block& block, const EpochKey& key) const {
    PartLimit none;
    return apply(block, key, none);
  }

  [[nodiscard]] std::optional<std::uint64_t> count() const override {
    return keeps_count() ? upstream_->count() : std::nullopt;
  }
  [[nodiscard]] std::string describe() const override { return upstream_->describe() + " -> " + operation_.name; }
  [[nodiscard]] bool is_indexed() const override { return keeps_count() && upstream_->is_indexed(); }
  [[nodiscard]] Ending ending() const override { return upstream_->ending(); }
  [[nodiscard]] bool costs_a_copy() const override { return operation_.only_chooses && upstream_->costs_a_copy(); }
  [[nodiscard]] bool is_reordered() const override { return upstream_->is_reordered(); }
  [[nodiscard]] std::uint64_t id_span() const override { return upstream_->id_span(); }
  [[nodiscard]] std::uint64_t depth() const override { return upstream_->depth() + 1; }

  void count_skipped(SkipCounts& counts) const override { upstream_->count_skipped(counts); }
  void visit_shelves(const ShelfVisit& visit) const override { upstream_->visit_shelves(visit); }
  void take_stock(DataStock& stock) const override {
    upstream_->take_stock(stock);
    if (keeps_count()) {
      stock.making().add(std::string_view{operation_.name});
    } else {
      stock.add_operation(operation_.name);
    }
    if (operation_.identify) operation_.identify(stock.making());
    if (operation_.preprocessor != nullptr) stock.add_preprocessor(operation_.preprocessor);
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    return apply(upstream_->read(places, key), key);
  }
  // Said to be inline here already: else each file that includes this one compiles all of it for the table of virtual
  // functions, used or not.
  [[nodiscard]] inline std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  NodePtr upstream_;
  Operation operation_;
};

// Operations one after another, over a node that is none.
struct OperationChain {
  NodePtr base{};
  std::vector<std::shared_ptr<const BlockOpNode>> operations{};  // the first is applied first

  // Takes the last operations of a node off it; only those that keep the number of samples, if that is asked.
  [[nodiscard]] static OperationChain of(NodePtr node, bool only_keeping_count) {
    OperationChain chain{std::move(node)};
    while (auto operation = std::dynamic_pointer_cast<const BlockOpNode>(chain.base)) {
      if (only_keeping_count && !operation->keeps_count()) break;
      chain.base = operation->upstream();
      chain.operations.push_back(std::move(operation));
    }
    std::reverse(chain.operations.begin(), chain.operations.end());
    return chain;
  }

  // Takes those off a node that come after another one; nothing if something else comes after it.
  [[nodiscard]] static std::optional<OperationChain> after(const NodePtr& begin, NodePtr node) {
    OperationChain chain{std::move(node)};
    while (chain.base != begin) {
      auto operation = std::dynamic_pointer_cast<const BlockOpNode>(chain.base);
      if (operation == nullptr) return std::nullopt;
      chain.base = operation->upstream();
      chain.operations.push_back(std::move(operation));
    }
    std::reverse(chain.operations.begin(), chain.operations.end());
    return chain;
  }

  [[nodiscard]] bool keeps_count() const noexcept {
    return std::all_of(operations.begin(), operations.end(), [](const auto& one) { return one->keeps_count(); });
  }
  [[nodiscard]] Block apply(Block block, const EpochKey& key) const {
    for (const auto& operation : operations) block = operation->apply(block, key);
    return block;
  }
};

// Knows how much operations make of what they are given. Used by many threads.
class OperationGauges {
 public:
  // Each of them may hold a block while the last one gives its own.
  OperationGauges(std::size_t operations, std::size_t block_bytes)
      : block_bytes_(std::max<std::size_t>(2 * block_bytes / (operations + 1), 1)), whole_(block_bytes) {
    for (std::size_t one = 0; one < operations; ++one) each_.emplace_back(block_bytes_);
  }
  // More than what comes out where the gauges are right.
  [[nodiscard]] PartLimit limit() const noexcept { return {2 * block_bytes_}; }
  [[nodiscard]] SharedRowGauge& whole() noexcept { return whole_; }
  [[nodiscard]] SharedRowGauge& operator[](std::size_t operation) noexcept { return each_[operation]; }

 private:
  std::size_t block_bytes_;  // of each
  SharedRowGauge whole_;
  std::deque<SharedRowGauge> each_{};
};

// Puts a block through operations, in parts of which each makes about as much as a block should have: of how many
// samples is known from those before, and one that makes more of them stops. Of one sample, whatever becomes of it.
class OperationRun {
 public:
  OperationRun(std::shared_ptr<const OperationChain> chain, std::shared_ptr<OperationGauges> gauges,
               const EpochKey& key, Block input)
      : chain_(std::move(chain)),
        gauges_(std::move(gauges)),
        key_(key),
        num_rows_(input.rows()),
        inputs_(chain_->operations.size()),
        made_(inputs_.size()) {
    inputs_.front() = std::move(input);
  }

  // The next samples that come out: it may be none, while there is a rest.
  [[nodiscard]] Block next() {
    while (const std::size_t with_input = last_with_input()) {
      const std::size_t at = with_input - 1;
      Block out = apply(at);
      if (with_input == inputs_.size()) {
        if (last_with_input() == 0) note_end();
        return out;
      }
      inputs_[with_input] = std::move(out);
    }
    note_end();
    return {};
  }
  // The bytes that have not gone through all of them yet.
  [[nodiscard]] std::optional<std::size_t> rest() const {
    if (last_with_input() == 0) return std::nullopt;
    std::size_t bytes = 0;
    for (const Block& input : inputs_) bytes += bytes_of(input);
    return bytes;
  }

 private:
  // How many operations there are up to the last one that has samples to go on with.
  [[nodiscard]] std::size_t last_with_input() const noexcept {
    std::size_t count = inputs_.size();
    while (count > 0 && inputs_[count - 1].empty()) --count;
    return count;
  }
  [[nodiscard]] Block apply(std::size_t at) {
    Block& input = inputs_[at];
    std::size_t rows = (*gauges_)[at].part_of(input.rows());
    PartLimit limit = gauges_->limit();
    Block out = chain_->operations[at]->apply(input.slice(0, rows), key_, limit);
    rows = std::min(rows, limit.rows);
    input = rows == input.rows() ? Block{} : input.slice(rows, input.rows());
    const std::size_t bytes = bytes_of(out);
    (*gauges_)[at].saw(rows, bytes);
    made_[at] += bytes;
    return out;
  }
  void note_end() { gauges_->whole().saw(num_rows_, *std::max_element(made_.begin(), made_.end())); }

  std::shared_ptr<const OperationChain> chain_;
  std::shared_ptr<OperationGauges> gauges_;
  EpochKey key_;
  std::size_t num_rows_;
  std::vector<Block> inputs_;      // of each operation, what it has yet to be given
  std::vector<std::size_t> made_;  // bytes, by each operation
};

// Cuts the blocks of a stream into parts that threads put through operations.
class OperationPlan {
 public:
  OperationPlan(std::shared_ptr<const OperationChain> chain, const Scope& scope, PlaceCursor& from)
      : input_(chain->base->open(scope, from)),
        gauges_(std::make_shared<OperationGauges>(chain->operations.size(), scope.block_bytes())),
        chain_(std::move(chain)),
        scope_(scope) {}

  [[nodiscard]] std::optional<Work> next() {
    if (chunk_.block.empty()) {
      chunk_ = input_->next();
      if (chunk_.block.empty()) return std::nullopt;
      continues_ = chunk_.before > 0;
    }
    const std::size_t rows = gauges_->whole().part_of(chunk_.block.rows());
    const bool is_last = rows == chunk_.block.rows();
    Block part = is_last ? std::exchange(chunk_.block, {}) : chunk_.block.slice(0, rows);
    if (!is_last) chunk_.block = chunk_.block.slice(rows, chunk_.block.rows());
    MemoryShare share = is_last ? std::move(chunk_.share) : MemoryShare{*scope_.budget, bytes_of(part)};
    const auto run = std::make_shared<OperationRun>(chain_, gauges_, scope_.key, std::move(part));
    return Work{[run] { return run->next(); }, chunk_.place, std::move(share), [run] { return run->rest(); },
                std::exchange(continues_, true)};
  }

 private:
  std::unique_ptr<ChunkStream> input_;
  std::shared_ptr<OperationGauges> gauges_;
  std::shared_ptr<const OperationChain> chain_;
  Scope scope_;
  Chunk chunk_{};           // of which there are samples left
  bool continues_ = false;  // those come after others from the same place
};

inline std::unique_ptr<ChunkStream> BlockOpNode::open(const Scope& scope, PlaceCursor& from) const {
  auto chain = std::make_shared<const OperationChain>(OperationChain::of(shared_from_this(), false));
  const auto plan = std::make_shared<OperationPlan>(std::move(chain), scope, from);
  return std::make_unique<OrderedStage>(scope, [plan] { return plan->next(); });
}

}  // namespace detail
}  // namespace railyard::inline v0_1
