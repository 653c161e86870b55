// SPDX-License-Identifier: MIT
// Operations that change which samples come and in which order: take, skip, selection, shuffle. Data room.
#pragma once

#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/permutation.hpp"
#include "railyard/data/detail/row_reader.hpp"
#include "railyard/data/detail/source_node.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Is a node with one other under it, whose columns it has.
class OrderNode : public DataNode {
 public:
  OrderNode(NodePtr upstream, std::string operation)
      : DataNode(upstream->schema()), upstream_(std::move(upstream)), operation_(std::move(operation)) {}

  [[nodiscard]] std::string describe() const override { return upstream_->describe() + " -> " + operation_; }
  [[nodiscard]] bool is_indexed() const override { return upstream_->is_indexed(); }
  [[nodiscard]] Ending ending() const override { return upstream_->ending(); }
  [[nodiscard]] bool costs_a_copy() const override { return upstream_->costs_a_copy(); }
  [[nodiscard]] bool is_reordered() const override { return upstream_->is_reordered(); }
  [[nodiscard]] std::uint64_t id_span() const override { return upstream_->id_span(); }
  [[nodiscard]] std::uint64_t depth() const override { return upstream_->depth() + 1; }
  void count_skipped(SkipCounts& counts) const override { upstream_->count_skipped(counts); }
  void visit_shelves(const ShelfVisit& visit) const override { upstream_->visit_shelves(visit); }
  void take_stock(DataStock& stock) const override {
    upstream_->take_stock(stock);
    stock.add_operation(operation_, settings());
  }

 protected:
  // Tells it from others of its name.
  [[nodiscard]] virtual std::uint64_t settings() const { return 0; }
  [[nodiscard]] const NodePtr& upstream() const noexcept { return upstream_; }

 private:
  NodePtr upstream_;
  std::string operation_;
};

// The samples [begin, end) of a node.
template <class = void>
class RangeNode final : public OrderNode {
 public:
  static constexpr std::uint64_t to_the_end = ~std::uint64_t{0};

  RangeNode(NodePtr upstream, std::string operation, std::uint64_t begin, std::uint64_t end)
      : OrderNode(std::move(upstream), std::move(operation)), begin_(begin), end_(end) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override {
    const auto all = upstream()->count();
    if (!all) return std::nullopt;
    return std::min(*all, end_) - std::min(*all, begin_);
  }
  [[nodiscard]] Ending ending() const override { return end_ == to_the_end ? OrderNode::ending() : Ending::certain; }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    std::vector<std::uint64_t> inner(places.begin(), places.end());
    for (std::uint64_t& place : inner) place += begin_;
    return upstream()->read(inner, key);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    if (is_indexed()) return open_indexed(shared_from_this(), scope, from);
    return std::make_unique<Stream>(*this, scope, from);
  }

 private:
  class Stream final : public ChunkStream {
   public:
    Stream(const RangeNode& node, const Scope& scope, PlaceCursor& from)
        : scope_(scope), at_(from.next()), end_(node.end_), rows_(node.upstream(), scope, from) {
      if (at_ >= node.begin_) return;
      rows_.skip(node.begin_ - at_);
      at_ = node.begin_;
    }
    [[nodiscard]] Chunk next() override {
      if (at_ >= end_) return {};
      Place place{at_};
      rows_.append_place(place);
      Block block = rows_.some(static_cast<std::size_t>(std::min<std::uint64_t>(end_ - at_, most_rows)));
      at_ += block.rows();
      MemoryShare share{*scope_.budget, bytes_of(block)};
      return {std::move(block), std::move(place), std::move(share)};
    }

   private:
    static constexpr std::uint64_t most_rows = 1U << 30U;

    Scope scope_;
    std::uint64_t at_;
    std::uint64_t end_;
    RowReader rows_;
  };

  std::uint64_t begin_;
  std::uint64_t end_;
};

// Samples of an indexed node by their places.
template <class = void>
class SelectionNode final : public OrderNode {
 public:
  SelectionNode(NodePtr upstream, std::string operation, std::vector<std::uint64_t> places)
      : OrderNode(std::move(upstream), std::move(operation)), places_(std::move(places)) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return places_.size(); }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    std::vector<std::uint64_t> inner;
    inner.reserve(places.size());
    for (const std::uint64_t place : places) inner.push_back(places_[static_cast<std::size_t>(place)]);
    return upstream()->read(inner, key);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return open_indexed(shared_from_this(), scope, from);
  }

 protected:
  [[nodiscard]] std::uint64_t settings() const override { return digest_of(std::as_bytes(std::span{places_})); }

 private:
  std::vector<std::uint64_t> places_;
};

// An indexed node in another order each epoch.
template <class = void>
class ShuffleNode final : public OrderNode {
 public:
  ShuffleNode(NodePtr upstream, std::uint64_t seed) : OrderNode(std::move(upstream), "shuffle"), seed_(seed) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return upstream()->count(); }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override {
    const auto order = order_of(key);
    std::vector<std::uint64_t> inner;
    inner.reserve(places.size());
    for (const std::uint64_t place : places) inner.push_back((*order)(place));
    return upstream()->read(inner, key);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return open_indexed(shared_from_this(), scope, from);
  }

 protected:
  [[nodiscard]] std::uint64_t settings() const override { return seed_; }

 private:
  // The order that was asked for last is kept, for every block of an epoch asks for it.
  [[nodiscard]] std::shared_ptr<const Permutation> order_of(const EpochKey& key) const {
    const std::uint64_t seed = key.order_seed(seed_);
    const std::lock_guard lock{mutex_};
    if (order_ == nullptr || order_seed_ != seed) {
      order_ = std::make_shared<const Permutation>(*count(), seed);
      order_seed_ = seed;
    }
    return order_;
  }

  std::uint64_t seed_;
  mutable std::mutex mutex_{};
  mutable std::uint64_t order_seed_ = 0;
  mutable std::shared_ptr<const Permutation> order_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
