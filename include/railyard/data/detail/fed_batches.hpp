// SPDX-License-Identifier: MIT
// Batches of a stream that one worker of a host reads for all of them. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/feed_ends.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/stream_batches.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// What a message begins with; the place, the ids and the columns follow.
struct FeedMessage {
  std::uint64_t size = 0;  // of the batch, all workers together; of a block, how many samples come before it
  std::uint64_t rows = 0;  // of it, for this one
  std::uint64_t place = 0;
};

// What each item of a place begins with; the bytes of its state follow.
struct FeedItem {
  static constexpr std::uint64_t no_state = ~std::uint64_t{0};
  static constexpr std::uint64_t same_state = no_state - 1;  // as that item had in the message before

  std::uint64_t number = 0;
  std::uint64_t state = no_state;  // bytes
};

// before: what was sent last, and becomes this place.
[[nodiscard]] inline bool write_place(FeedWriter& to, Place place, Place& before, FeedPatience& patience) {
  before.resize(place.size());
  for (std::size_t at = 0; at < place.size(); ++at) {
    const ReaderState& state = place[at].state;
    FeedItem item{place[at].number};
    if (state.has_value())
      item.state = state.is_same_as(before[at].state) ? FeedItem::same_state : state.bytes().size();
    if (!to.write(&item, sizeof item, patience)) return false;
    if (item.state >= FeedItem::same_state) continue;
    if (!to.write(state.bytes().data(), state.bytes().size(), patience)) return false;
  }
  before = std::move(place);
  return true;
}

// place: what was read last. False if the leader has left; then it is still that.
[[nodiscard]] inline bool read_place(FeedReader& from, std::size_t size, Place& place, FeedPatience& patience) {
  Place read(size);
  for (std::size_t at = 0; at < size; ++at) {
    FeedItem item;
    if (!from.read(&item, sizeof item, patience)) return false;
    read[at] = item.number;
    if (item.state == FeedItem::no_state) continue;
    if (item.state == FeedItem::same_state) {
      read[at].state = place.at(at).state;
      continue;
    }
    std::string bytes(static_cast<std::size_t>(item.state), '\0');
    if (!from.read(bytes.data(), bytes.size(), patience)) return false;
    read[at] = ReaderState{item.number, std::move(bytes)};
  }
  place = std::move(read);
  return true;
}

[[nodiscard]] inline bool write_block(FeedWriter& to, std::span<const Block> slices, FeedPatience& patience) {
  for (const Block& slice : slices) {
    if (!to.write(slice.ids().data(), slice.ids().size_bytes(), patience)) return false;
  }
  const std::vector<std::uint64_t> siblings = join_siblings(slices);
  const std::uint64_t num_siblings = siblings.size();
  if (!to.write(&num_siblings, sizeof num_siblings, patience)) return false;
  if (!to.write(siblings.data(), siblings.size() * sizeof(std::uint64_t), patience)) return false;
  for (std::size_t column = 0; column < slices.front().columns().size(); ++column) {
    std::vector<std::uint64_t> ends;
    for (const Block& slice : slices) {
      const Column& part = slice[column];
      for (std::size_t row = 0; part.is_ragged() && row < part.rows(); ++row) {
        ends.push_back((ends.empty() ? 0 : ends.back()) + part.sample(row).size());
      }
    }
    if (!to.write(ends.data(), ends.size() * sizeof(std::uint64_t), patience)) return false;
    for (const Block& slice : slices) {
      if (!to.write(slice[column].bytes().data(), slice[column].bytes().size(), patience)) return false;
    }
  }
  return true;
}

// Returns nothing if the leader has left. Of no rows, nothing was written.
[[nodiscard]] inline std::optional<Block> read_block(FeedReader& from, const std::shared_ptr<const Schema>& schema,
                                                     std::size_t rows, FeedPatience& patience) {
  if (rows == 0) return no_samples(schema);
  std::vector<std::uint64_t> ids(rows);
  if (!from.read(ids.data(), rows * sizeof(std::uint64_t), patience)) return std::nullopt;
  std::uint64_t num_siblings = 0;
  if (!from.read(&num_siblings, sizeof num_siblings, patience)) return std::nullopt;
  std::vector<std::uint64_t> siblings(num_siblings == 0 ? 0 : rows);
  if (!from.read(siblings.data(), siblings.size() * sizeof(std::uint64_t), patience)) return std::nullopt;
  std::vector<Column> columns;
  for (const Field& field : *schema) {
    const std::size_t each = field.width() * size_of(field.dtype);
    const auto ends = std::make_shared<std::vector<std::uint64_t>>(field.is_ragged() ? rows : 0);
    if (!from.read(ends->data(), ends->size() * sizeof(std::uint64_t), patience)) return std::nullopt;
    const std::size_t size = !field.is_ragged() ? rows * each : ends->back();
    const std::shared_ptr<std::byte[]> bytes{new std::byte[size]};
    if (!from.read(bytes.get(), size, patience)) return std::nullopt;
    const std::shared_ptr<const std::byte> shared{bytes, bytes.get()};
    columns.push_back(field.is_ragged() ? Column{shared, ends} : Column{shared, rows, each});
  }
  return Block{schema, std::move(columns), std::move(ids), std::move(siblings)};
}

// Goes through the stream, and gives the other workers of the host their parts of each batch, or all of it where each
// gets the whole.
class LedBatches final : public StreamBatches {
 public:
  LedBatches(std::unique_ptr<OwnBatches> own, const Scope& scope, const EpochOptions& options, HostFeed& feed,
             const FeedTaker& taker, std::uint64_t key)
      : own_(std::move(own)),
        options_(options),
        feed_(&feed),
        taker_(&taker),
        key_(key),
        share_(*scope.budget, feed.bytes()) {}
  ~LedBatches() override { feed_->end_session(); }

  [[nodiscard]] std::size_t begin() override {
    if (!std::exchange(has_begun_, true)) gather();
    try {
      return read_for_all();
    } catch (...) {  // each worker comes to it by itself, and then says what it was
      feed_->end_session();
      throw;
    }
  }
  [[nodiscard]] Place place() const override { return own_->place(); }
  [[nodiscard]] Block take(Range range) override { return own_->take(range); }
  void end() noexcept override { own_->end(); }

 private:
  [[nodiscard]] std::size_t read_for_all() {
    const std::size_t size = own_->begin();
    if (taker_->has_left.load()) {  // then the stream may have ended before its time, which is no end for the others
      feed_->end_session();
      return 0;
    }
    for (std::size_t at = 0; at < feed_->writers().size(); ++at) {
      FeedWriter& writer = feed_->writers()[at];
      if (!writer.is_serving()) continue;
      if (!of_epoch_.empty()) {
        serve(at, size, of_epoch_[at]);
      } else {
        FeedPatience of_message = feed_->patience(*taker_);
        serve(at, size, of_message);
      }
    }
    return size;
  }

  void gather() {
    feed_->gather(key_, *taker_);
    sent_.resize(feed_->writers().size());
    if (options_.world_size > 1) return;
    for (std::size_t at = 0; at < feed_->writers().size(); ++at) {
      of_epoch_.push_back(feed_->patience_with(at, *taker_));
    }
  }

  void serve(std::size_t at, std::size_t size, FeedPatience& patience) {
    if (send(feed_->writers()[at], size, sent_[at], patience)) {
      feed_->writers()[at].flush();
    } else {
      feed_->give_up(at, patience);
    }
  }

  [[nodiscard]] bool send(FeedWriter& writer, std::size_t size, Place& sent, FeedPatience& patience) const {
    EpochOptions theirs = options_;
    theirs.rank = writer.rank();
    std::vector<Block> slices;
    std::size_t rows = 0;
    const std::size_t num_parts = std::min(options_.micro_batches, size);
    for (std::size_t part = 0; part < num_parts; ++part) {
      for (Block& slice : own_->slices_of(given_range(theirs, part_of({0, size}, part, num_parts)))) {
        rows += slice.rows();
        slices.push_back(std::move(slice));
      }
    }
    Place place = own_->place();
    const FeedMessage message{size, rows, place.size()};
    return writer.write(&message, sizeof message, patience) && write_place(writer, std::move(place), sent, patience) &&
           (rows == 0 || write_block(writer, slices, patience));
  }

  std::unique_ptr<OwnBatches> own_;
  EpochOptions options_;
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  MemoryShare share_;                     // of what is under way to the others
  std::vector<FeedPatience> of_epoch_{};  // with each of them, where they need not keep step
  std::vector<Place> sent_{};             // to each of them
  bool has_begun_ = false;
};

// Has its parts of the batches from the worker that leads, and goes on by itself where that one leaves.
class FedBatches final : public StreamBatches {
 public:
  FedBatches(const NodePtr& node, const Scope& scope, const EpochOptions& options, Place from, HostFeed& feed,
             const FeedTaker& taker, std::uint64_t key)
      : node_(node),
        scope_(scope),
        options_(options),
        place_(std::move(from)),
        feed_(&feed),
        taker_(&taker),
        key_(key),
        consumed_(options_.from.consumed()) {}
  ~FedBatches() override { feed_->leave(line_ != nullptr && !own_); }

  [[nodiscard]] std::size_t begin() override {
    if (!own_) {
      if (!std::exchange(has_begun_, true)) join();
      if (line_ != nullptr) {
        if (const auto size = receive()) return *size;
      }
      if (taker_->has_left.load()) return 0;  // nobody wants the batch any more
      feed_->go_alone(consumed_);
      own_ = std::make_unique<OwnBatches>(node_, scope_, options_, place_);
    }
    return own_->begin();
  }
  [[nodiscard]] Place place() const override { return own_ ? own_->place() : place_; }
  [[nodiscard]] Block take(Range range) override {
    if (own_) return own_->take(range);
    const std::size_t first = std::exchange(given_, given_ + range.size());
    return block_.slice(first, given_);
  }
  void end() noexcept override {
    if (own_) own_->end();
    block_ = {};
  }

 private:
  void join() {
    line_ = feed_->join(key_, options_.rank, *taker_);
    if (options_.world_size == 1) of_epoch_ = feed_->patience_with_leader(*taker_);
  }

  // The size of the batch, which is then there; nothing if the leader has left, or has kept this worker waiting.
  [[nodiscard]] std::optional<std::size_t> receive() {
    if (of_epoch_) {
      const auto size = receive(*of_epoch_);
      if (!size) feed_->give_up_leader(*of_epoch_);
      return size;
    }
    FeedPatience of_message = feed_->patience(*taker_);
    return receive(of_message);
  }
  [[nodiscard]] std::optional<std::size_t> receive(FeedPatience& patience) {
    FeedMessage message;
    if (!line_->read(&message, sizeof message, patience)) return std::nullopt;
    Place place = place_;
    if (!read_place(*line_, static_cast<std::size_t>(message.place), place, patience)) return std::nullopt;
    auto block = read_block(*line_, node_->schema(), static_cast<std::size_t>(message.rows), patience);
    if (!block) return std::nullopt;
    line_->release();
    block_ = std::move(*block);
    place_ = std::move(place);
    given_ = 0;
    consumed_ += message.size;
    return static_cast<std::size_t>(message.size);
  }

  NodePtr node_;
  Scope scope_;
  EpochOptions options_;
  Place place_;  // after the last batch
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  std::uint64_t consumed_;  // samples of the epoch, all workers together
  bool has_begun_ = false;
  FeedReader* line_ = nullptr;
  std::optional<FeedPatience> of_epoch_{};  // with the leader, where workers need not keep step
  Block block_{};                           // of the batch, what is for this worker
  std::size_t given_ = 0;
  std::unique_ptr<OwnBatches> own_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
