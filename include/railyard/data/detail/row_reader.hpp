// SPDX-License-Identifier: MIT
// Takes any number of samples at a time from a stream, and knows to the sample where it stands. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/memory_budget.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

class RowReader {
 public:
  // A stream goes on only at the begin of one of its blocks; the samples of that block which were taken already are
  // read again and skipped.
  RowReader(const NodePtr& node, const Scope& scope, PlaceCursor& from)
      : node_(node), scope_(scope), used_(static_cast<std::size_t>(from.next())) {
    const std::size_t begin = from.at();
    stream_ = node->open(scope, from);
    chunk_.place = from.since(begin);
  }

  // Where a reader begins that gives what this one gives next.
  void append_place(Place& place) const {
    place.push_back(chunk_.before + used_);
    place.insert(place.end(), chunk_.place.begin(), chunk_.place.end());
  }

  // Takes the next samples, at most so many and at least one, as they lie in the stream's blocks; none at the end.
  [[nodiscard]] Block some(std::size_t most) {
    if (!advance()) return no_samples(node_->schema());
    const std::size_t end = used_ + std::min(chunk_.block.rows() - used_, most);
    Block part = chunk_.block.slice(used_, end);
    used_ = end;
    return part;
  }

  // How many samples some() can give at once: none only at the end.
  [[nodiscard]] std::size_t available() { return advance() ? chunk_.block.rows() - used_ : 0; }

  // Takes so many samples, fewer only at the end, as they lie in the stream's blocks. share: gets what they take, at
  // once, so that the stream reads less far ahead while more of them are taken.
  [[nodiscard]] std::vector<Block> take_parts(std::size_t count, MemoryShare& share) {
    std::vector<Block> parts;
    std::size_t rows = 0;
    while (rows < count && available() > 0) {
      parts.push_back(some(count - rows));
      rows += parts.back().rows();
      share.resize(share.bytes() + bytes_of(parts.back()));
    }
    return parts;
  }
  // Takes so many samples, fewer only at the end.
  [[nodiscard]] Block take(std::size_t count) {
    MemoryShare share{*scope_.budget, 0};
    const std::vector<Block> parts = take_parts(count, share);
    return parts.empty() ? no_samples(node_->schema()) : join(parts);
  }

  // Goes past samples, as many of them as there are.
  void skip(std::uint64_t count) {
    while (count > 0 && advance()) {
      const std::size_t past = std::min<std::size_t>(static_cast<std::size_t>(count), chunk_.block.rows() - used_);
      used_ += past;
      count -= past;
    }
  }

 private:
  // Goes on to a block that has samples left. False at the end.
  [[nodiscard]] bool advance() {
    while (!is_over_ && used_ >= chunk_.block.rows()) {
      if (scope_.pool->has_ended()) return false;
      Chunk next = stream_->next();
      if (!next.block.empty()) {
        used_ -= chunk_.block.rows();
        chunk_ = std::move(next);
        continue;
      }
      if (used_ > chunk_.block.rows()) {
        throw DataError{compose("{} ends before the position that was saved: it has changed since", node_->describe())};
      }
      is_over_ = true;
      chunk_.block = {};
      chunk_.share = {};
    }
    return !is_over_;
  }

  NodePtr node_;
  Scope scope_;
  std::unique_ptr<ChunkStream> stream_{};
  Chunk chunk_{};
  std::size_t used_;  // of the chunk's samples, or more, where some are yet to be skipped
  bool is_over_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
