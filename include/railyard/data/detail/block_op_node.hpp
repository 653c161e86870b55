// SPDX-License-Identifier: MIT
// Operations that make samples of samples without looking at others: map, filter, flat_map, columns. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/ordered_stage.hpp"
#include "railyard/data/detail/source_node.hpp"

#include <algorithm>
#include <cstdint>
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

// Makes a block of a block.
using BlockFunction = std::function<Block(const Block&, const EpochKey&)>;

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
  [[nodiscard]] bool keeps_count() const noexcept { return operation_.keeps_count; }
  [[nodiscard]] Block apply(const Block& block, const EpochKey& key) const { return operation_.apply(block, key); }

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

  // Takes those off a node that come after another one; nothing if something else comes after it than operations that
  // keep the number of samples.
  [[nodiscard]] static std::optional<OperationChain> after(const NodePtr& begin, NodePtr node) {
    OperationChain chain{std::move(node)};
    while (chain.base != begin) {
      auto operation = std::dynamic_pointer_cast<const BlockOpNode>(chain.base);
      if (operation == nullptr || !operation->keeps_count()) return std::nullopt;
      chain.base = operation->upstream();
      chain.operations.push_back(std::move(operation));
    }
    std::reverse(chain.operations.begin(), chain.operations.end());
    return chain;
  }

  [[nodiscard]] Block apply(Block block, const EpochKey& key) const {
    for (const auto& operation : operations) block = operation->apply(block, key);
    return block;
  }
};

inline std::unique_ptr<ChunkStream> BlockOpNode::open(const Scope& scope, PlaceCursor& from) const {
  auto chain = std::make_shared<const OperationChain>(OperationChain::of(shared_from_this(), false));
  const std::shared_ptr<ChunkStream> input = chain->base->open(scope, from);
  return std::make_unique<OrderedStage>(scope, [chain, input, key = scope.key]() -> std::optional<Work> {
    Chunk chunk = input->next();
    if (chunk.block.empty()) return std::nullopt;
    return Work{[chain, key, block = std::move(chunk.block)]() mutable { return chain->apply(std::move(block), key); },
                std::move(chunk.place), std::move(chunk.share)};
  });
}

}  // namespace detail
}  // namespace railyard::inline v0_1
