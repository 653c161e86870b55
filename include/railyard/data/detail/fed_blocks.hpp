// SPDX-License-Identifier: MIT
// Blocks of a stream that one worker of a host reads for all of them, where each makes samples of its own of them. Data
// room.
#pragma once

#include "railyard/data/detail/block_op_node.hpp"
#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/fed_batches.hpp"
#include "railyard/data/detail/feed_ends.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/detail/place.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
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

// Says which blocks of what are gone over, from where on: what workers make of them, and in batches of which size, is
// their own.
[[nodiscard]] inline std::uint64_t block_feed_key(const DataNode& node, std::string_view name, const EpochKey& key,
                                                  const Place& from) {
  const std::string text =
      compose("blocks {} {} {} {} {}", name, node.describe(), key.seed, key.epoch, text_of_place(from));
  return std::hash<std::string>{}(text) | 1U;  // 0 is none
}

// Goes through the stream, and gives the other workers of the host each block, with its place.
class LedBlocks final : public ChunkStream {
 public:
  LedBlocks(std::unique_ptr<ChunkStream> own, const Scope& scope, HostFeed& feed, const FeedTaker& taker,
            std::uint64_t key)
      : own_(std::move(own)), feed_(&feed), taker_(&taker), key_(key), share_(*scope.budget, feed.bytes()) {}
  ~LedBlocks() override { feed_->end_session(); }

  [[nodiscard]] Chunk next() override {
    if (!std::exchange(has_begun_, true)) gather();
    try {
      Chunk chunk = own_->next();
      // What has ended because nobody wants it is no end for the others.
      taker_->has_left.load() ? feed_->end_session() : give(chunk);
      return chunk;
    } catch (...) {  // each worker comes to it by itself, and then says what it was
      feed_->end_session();
      throw;
    }
  }

 private:
  void gather() {
    feed_->gather(key_, *taker_);
    sent_.resize(feed_->writers().size());
    for (std::size_t at = 0; at < sent_.size(); ++at) patience_.push_back(feed_->patience_with(at, *taker_));
  }
  void give(const Chunk& chunk) {
    for (std::size_t at = 0; at < sent_.size(); ++at) {
      FeedWriter& writer = feed_->writers()[at];
      if (!writer.is_serving()) continue;
      if (send(writer, chunk, sent_[at], patience_[at])) {
        writer.flush();
      } else {
        feed_->give_up(at, patience_[at]);
      }
    }
  }
  [[nodiscard]] static bool send(FeedWriter& writer, const Chunk& chunk, Place& sent, FeedPatience& patience) {
    const std::size_t rows = chunk.block.rows();
    const FeedMessage message{chunk.before, rows, chunk.place.size()};
    return writer.write(&message, sizeof message, patience) && write_place(writer, chunk.place, sent, patience) &&
           (rows == 0 || write_block(writer, std::span{&chunk.block, 1}, patience));
  }

  std::unique_ptr<ChunkStream> own_;
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  MemoryShare share_;                     // of what is under way to the others
  std::vector<FeedPatience> patience_{};  // with each of them, for the whole epoch
  std::vector<Place> sent_{};             // to each of them
  bool has_begun_ = false;
};

// Has the blocks from the worker that leads, and goes on by itself where that one leaves. A block is given on once it
// is known where the next one begins: there this one could begin, and nowhere within a block.
class FedBlocks final : public ChunkStream {
 public:
  FedBlocks(NodePtr node, const Scope& scope, Place from, HostFeed& feed, const FeedTaker& taker, std::uint64_t key)
      : node_(std::move(node)), scope_(scope), from_(std::move(from)), feed_(&feed), taker_(&taker), key_(key) {}
  ~FedBlocks() override { feed_->leave(line_ != nullptr && own_ == nullptr); }

  [[nodiscard]] Chunk next() override {
    if (own_ != nullptr) return next_of_own();
    if (!std::exchange(has_begun_, true)) join();
    if (held_ && held_->block.empty()) return {};
    if (held_) {
      if (auto after = receive()) return *std::exchange(held_, std::move(after));
    }
    if (taker_->has_left.load()) return {};  // nobody wants it any more
    feed_->go_alone(num_samples_);
    PlaceCursor from{held_ ? held_->place : from_};
    to_skip_ = held_ ? held_->before : 0;
    held_.reset();
    own_ = node_->open(scope_, from);
    return next_of_own();
  }

 private:
  // What the leader has given from the last place on is not given again.
  [[nodiscard]] Chunk next_of_own() {
    Chunk chunk = own_->next();
    while (to_skip_ > 0 && !chunk.block.empty()) {
      const std::size_t rows = chunk.block.rows();
      const std::size_t past = std::min(static_cast<std::size_t>(to_skip_), rows);
      to_skip_ -= past;
      if (past == rows) {
        chunk = own_->next();
        continue;
      }
      chunk.block = chunk.block.slice(past, rows);
      chunk.before += past;
    }
    return chunk;
  }
  void join() {
    line_ = feed_->join(key_, 0, *taker_);
    patience_ = feed_->patience_with_leader(*taker_);
    if (line_ != nullptr) held_ = receive();
  }
  // Nothing if the leader has left, or has kept this worker waiting.
  [[nodiscard]] std::optional<Chunk> receive() {
    if (held_) num_samples_ += held_->block.rows();
    auto chunk = read_chunk();
    if (chunk) {
      line_->release();
    } else {
      feed_->give_up_leader(*patience_);
    }
    return chunk;
  }
  [[nodiscard]] std::optional<Chunk> read_chunk() {
    FeedMessage message;
    if (!line_->read(&message, sizeof message, *patience_)) return std::nullopt;
    if (!read_place(*line_, static_cast<std::size_t>(message.place), place_, *patience_)) return std::nullopt;
    if (message.rows == 0) return Chunk{};
    auto block = read_block(*line_, node_->schema(), static_cast<std::size_t>(message.rows), *patience_);
    if (!block) return std::nullopt;
    MemoryShare share{*scope_.budget, bytes_of(*block)};
    return Chunk{std::move(*block), place_, std::move(share), message.size};
  }

  NodePtr node_;
  Scope scope_;
  Place from_;
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  bool has_begun_ = false;
  FeedReader* line_ = nullptr;
  std::optional<FeedPatience> patience_{};  // with the leader, for the whole epoch
  Place place_{};                           // that was read last
  std::optional<Chunk> held_{};
  std::uint64_t num_samples_ = 0;  // that have been given on
  std::unique_ptr<ChunkStream> own_{};
  std::uint64_t to_skip_ = 0;  // samples of its own stream
};

// Is what all workers have alike, read by one of them for all. For the time of a reader, to which the feed belongs.
class FedNode final : public OrderNode {
 public:
  FedNode(NodePtr common, std::string name, HostFeed& feed, const FeedTaker& taker)
      : OrderNode(std::move(common), "read together"), name_(std::move(name)), feed_(&feed), taker_(&taker) {}

  // What the operations make of it.
  [[nodiscard]] static NodePtr below(const OperationChain& chain, std::string name, HostFeed& feed,
                                     const FeedTaker& taker) {
    NodePtr node = std::make_shared<const FedNode>(chain.base, std::move(name), feed, taker);
    for (const auto& operation : chain.operations) node = operation->over(std::move(node));
    return node;
  }

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return upstream()->count(); }
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    PlaceCursor own = from;
    Place place = from.rest();
    const std::uint64_t key = block_feed_key(*upstream(), name_, scope.key, place);
    if (feed_->leads()) {
      return std::make_unique<LedBlocks>(upstream()->open(scope, own), scope, *feed_, *taker_, key);
    }
    return std::make_unique<FedBlocks>(upstream(), scope, std::move(place), *feed_, *taker_, key);
  }

 private:
  std::string name_;
  HostFeed* feed_;
  const FeedTaker* taker_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
