// SPDX-License-Identifier: MIT
// Operations that put datasets together: concat, zip, repeat. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/detail/row_reader.hpp"
#include "railyard/data/detail/source_node.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Is a node with several others under it.
class JoiningNode : public DataNode {
 public:
  JoiningNode(std::shared_ptr<const Schema> schema, std::string operation, std::vector<NodePtr> parts)
      : DataNode(std::move(schema)), operation_(std::move(operation)), parts_(std::move(parts)) {}

  [[nodiscard]] std::string describe() const override {
    std::string all;
    for (const NodePtr& part : parts_) all += (all.empty() ? "" : ", ") + part->describe();
    return operation_ + "(" + all + ")";
  }
  [[nodiscard]] bool is_indexed() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const NodePtr& part) { return part->is_indexed(); });
  }
  [[nodiscard]] Ending ending() const override {
    Ending ending = Ending::certain;
    for (const NodePtr& part : parts_) ending = std::max(ending, part->ending());
    return ending;
  }
  [[nodiscard]] bool costs_a_copy() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const NodePtr& part) { return part->costs_a_copy(); });
  }
  [[nodiscard]] bool is_reordered() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const NodePtr& part) { return part->is_reordered(); });
  }
  [[nodiscard]] std::uint64_t id_span() const override { return first_id(parts_.size()); }
  [[nodiscard]] std::uint64_t depth() const override {
    std::uint64_t deepest = 0;
    for (const NodePtr& part : parts_) deepest = std::max(deepest, part->depth());
    return deepest + 1;
  }
  void count_skipped(SkipCounts& counts) const override {
    for (const NodePtr& part : parts_) part->count_skipped(counts);
  }
  void visit_shelves(const ShelfVisit& visit) const override {
    for (const NodePtr& part : parts_) part->visit_shelves(visit);
  }
  void take_stock(DataStock& stock) const override {
    for (const NodePtr& part : parts_) part->take_stock(stock);
    Fingerprint settings;
    settings.add(std::uint64_t{parts_.size()});
    add_settings(settings);
    stock.add_operation(operation_, settings.value());
  }

 protected:
  // Adds what tells it from others of its name, beyond the parts.
  virtual void add_settings(Fingerprint& /*settings*/) const {}
  [[nodiscard]] const std::vector<NodePtr>& parts() const noexcept { return parts_; }
  // Samples of a part get ids that no other part has.
  [[nodiscard]] std::uint64_t first_id(std::size_t part) const {
    std::uint64_t first = 0;
    for (std::size_t before = 0; before < part; ++before) first += parts_[before]->id_span();
    return first;
  }
  [[nodiscard]] std::optional<std::uint64_t> sum_of_counts() const {
    std::uint64_t sum = 0;
    for (const NodePtr& part : parts_) {
      const auto count = part->count();
      if (!count) return std::nullopt;
      if (__builtin_add_overflow(sum, *count, &sum)) {
        throw ConfigError{
            compose("{}: its datasets have more samples together than can be counted: take() as many of each as there "
                    "are to be",
                    describe())};
      }
    }
    return sum;
  }

 private:
  std::string operation_;
  std::vector<NodePtr> parts_;
};

// One dataset after the other.
template <class = void>
class ConcatNode final : public JoiningNode {
 public:
  explicit ConcatNode(const std::vector<NodePtr>& parts) : JoiningNode(parts.front()->schema(), "concat", parts) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return sum_of_counts(); }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    std::vector<std::uint64_t> ends;
    for (const NodePtr& part : parts()) ends.push_back((ends.empty() ? 0 : ends.back()) + *part->count());
    std::vector<std::vector<std::uint64_t>> inner(parts().size());
    std::vector<RowOfPart> rows;
    for (const std::uint64_t place : places) {
      const auto part = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), place) - ends.begin());
      rows.push_back({part, inner[part].size()});
      inner[part].push_back(part == 0 ? place : place - ends[part - 1]);
    }
    std::vector<Block> blocks;
    for (std::size_t part = 0; part < parts().size(); ++part) {
      blocks.push_back(inner[part].empty() ? no_samples(schema())
                                           : with_ids_from(parts()[part]->read(inner[part], key), first_id(part)));
    }
    return gather(blocks, rows);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    if (is_indexed()) return open_indexed(shared_from_this(), scope, from);
    return std::make_unique<Stream>(*this, scope, from);
  }

 private:
  // Its place: the number of the part, and where that stands.
  class Stream final : public ChunkStream {
   public:
    Stream(const ConcatNode& node, const Scope& scope, PlaceCursor& from)
        : node_(std::static_pointer_cast<const ConcatNode>(node.shared_from_this())),
          scope_(scope),
          part_(from.next()) {
      if (part_ >= node.parts().size()) return;
      stream_ = node.parts()[part_]->open(scope, from);
    }
    [[nodiscard]] Chunk next() override {
      while (part_ < node_->parts().size()) {
        Chunk chunk = stream_->next();
        if (!chunk.block.empty()) {
          chunk.place.insert(chunk.place.begin(), part_);
          chunk.block = with_ids_from(chunk.block, node_->first_id(part_));
          return chunk;
        }
        if (++part_ == node_->parts().size()) break;
        PlaceCursor begin;
        stream_ = node_->parts()[part_]->open(scope_, begin);
      }
      return {};
    }

   private:
    std::shared_ptr<const ConcatNode> node_;
    Scope scope_;
    std::size_t part_;
    std::unique_ptr<ChunkStream> stream_{};
  };
};

// Datasets side by side: the columns of each, for the samples at equal places. The ids are those of the first.
template <class = void>
class ZipNode final : public JoiningNode {
 public:
  ZipNode(std::shared_ptr<const Schema> schema, std::vector<NodePtr> parts)
      : JoiningNode(std::move(schema), "zip", std::move(parts)) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override {
    for (const NodePtr& part : parts()) {
      if (const auto count = part->count()) return count;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::uint64_t id_span() const override { return parts().front()->id_span(); }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    std::vector<Block> blocks;
    for (const NodePtr& part : parts()) blocks.push_back(part->read(places, key));
    return side_by_side(blocks);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    if (is_indexed()) return open_indexed(shared_from_this(), scope, from);
    return std::make_unique<Stream>(*this, scope, from);
  }

 private:
  [[nodiscard]] Block side_by_side(std::span<const Block> blocks) const {
    std::vector<Column> columns;
    for (const Block& block : blocks) columns.insert(columns.end(), block.columns().begin(), block.columns().end());
    return blocks.front().with(schema(), std::move(columns));
  }

  class Stream final : public ChunkStream {
   public:
    Stream(const ZipNode& node, const Scope& scope, PlaceCursor& from)
        : node_(std::static_pointer_cast<const ZipNode>(node.shared_from_this())), scope_(scope) {
      const Scope each = scope.divided(node.parts().size());
      for (const NodePtr& part : node.parts()) readers_.push_back(std::make_unique<RowReader>(part, each, from));
    }
    // As many as each has at hand: so none holds more than a block.
    [[nodiscard]] Chunk next() override {
      Chunk chunk;
      for (const auto& reader : readers_) reader->append_place(chunk.place);
      std::size_t rows = readers_.front()->available();
      for (std::size_t at = 1; at < readers_.size(); ++at) {
        const std::size_t available = readers_[at]->available();
        if (scope_.pool->has_ended()) return {};
        if ((available == 0) != (rows == 0)) {
          throw DataError{
              compose("{}: dataset {} of the zip ends before or after the first: all must have equally many "
                      "samples, so cut them with take()",
                      node_->describe(), at + 1)};
        }
        rows = std::min(rows, available);
      }
      std::vector<Block> blocks;
      for (const auto& reader : readers_) blocks.push_back(reader->some(rows));
      chunk.block = node_->side_by_side(blocks);
      chunk.share = MemoryShare{*scope_.budget, bytes_of(chunk.block)};
      return chunk;
    }

   private:
    std::shared_ptr<const ZipNode> node_;
    Scope scope_;
    std::vector<std::unique_ptr<RowReader>> readers_{};
  };
};

// A dataset several times over, each time as another epoch of it; without end if no number of times is given.
template <class = void>
class RepeatNode final : public OrderNode {
 public:
  RepeatNode(NodePtr upstream, std::optional<std::uint64_t> times)
      : OrderNode(std::move(upstream), times ? compose("repeat({})", *times) : "repeat"), times_(times) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override {
    const auto once = upstream()->count();
    if (!once || !times_) return std::nullopt;
    if (*once > 0 && *times_ > ~std::uint64_t{0} / *once) {
      throw ConfigError{compose(
          "{}: {} samples so many times over are more than can be counted: repeat() without a number has no end",
          describe(), *once)};
    }
    return *once * *times_;
  }
  [[nodiscard]] bool is_indexed() const override { return times_ && upstream()->is_indexed(); }
  [[nodiscard]] Ending ending() const override {
    if (!times_) return Ending::never;
    return *times_ > 0 ? OrderNode::ending() : Ending::certain;
  }
  [[nodiscard]] std::uint64_t id_span() const override { return upstream()->id_span() * times_.value_or(1); }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    const std::uint64_t once = *upstream()->count();
    std::vector<Block> blocks;
    std::vector<RowOfPart> rows;
    std::vector<std::uint64_t> passes;  // of the blocks
    std::vector<std::vector<std::uint64_t>> inner;
    for (const std::uint64_t place : places) {
      const auto known = std::find(passes.begin(), passes.end(), place / once);
      const auto part = static_cast<std::size_t>(known - passes.begin());
      if (known == passes.end()) {
        passes.push_back(place / once);
        inner.emplace_back();
      }
      rows.push_back({part, inner[part].size()});
      inner[part].push_back(place % once);
    }
    for (std::size_t part = 0; part < passes.size(); ++part) {
      blocks.push_back(mark(upstream()->read(inner[part], key_of(key, passes[part])), passes[part]));
    }
    return blocks.empty() ? no_samples(schema()) : gather(blocks, rows);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    if (is_indexed()) return open_indexed(shared_from_this(), scope, from);
    return std::make_unique<Stream>(*this, scope, from);
  }

 private:
  [[nodiscard]] static EpochKey key_of(const EpochKey& key, std::uint64_t pass) noexcept {
    return {key.seed, derive_seed(key.epoch, pass)};
  }
  // The samples of each pass get ids of their own, so that what is random above differs from pass to pass.
  [[nodiscard]] Block mark(const Block& block, std::uint64_t pass) const {
    return with_ids_from(block, pass * upstream()->id_span());
  }

  // Its place: the number of the pass, and where that stands.
  class Stream final : public ChunkStream {
   public:
    Stream(const RepeatNode& node, const Scope& scope, PlaceCursor& from)
        : node_(std::static_pointer_cast<const RepeatNode>(node.shared_from_this())),
          scope_(scope),
          pass_(from.next()) {
      open(from);
    }
    [[nodiscard]] Chunk next() override {
      while (!node_->times_ || pass_ < *node_->times_) {
        Chunk chunk = stream_->next();
        if (!chunk.block.empty()) {
          num_empty_ = 0;
          chunk.place.insert(chunk.place.begin(), pass_);
          chunk.block = node_->mark(chunk.block, pass_);
          return chunk;
        }
        if (scope_.pool->has_ended()) return {};
        if (++num_empty_ > most_empty && !node_->times_) refuse();  // which else would not end
        ++pass_;
        PlaceCursor begin;
        open(begin);
      }
      return {};
    }

   private:
    static constexpr std::uint64_t most_empty = 1000;

    [[noreturn]] void refuse() const {
      throw DataError{
          compose("{}: it was empty {} times one after another, and may be so for ever: what it repeats must give a "
                  "sample now and then",
                  node_->describe(), most_empty)};
    }
    void open(PlaceCursor& from) {
      Scope scope = scope_;
      scope.key = key_of(scope.key, pass_);
      stream_ = node_->upstream()->open(scope, from);
    }

    std::shared_ptr<const RepeatNode> node_;
    Scope scope_;
    std::uint64_t pass_;
    std::unique_ptr<ChunkStream> stream_{};
    std::uint64_t num_empty_ = 0;  // times up to now that gave nothing, one after another; a part of one is one
  };

  std::optional<std::uint64_t> times_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
