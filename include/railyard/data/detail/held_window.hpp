// SPDX-License-Identifier: MIT
// Holds windows of a stream in memory, to give their samples in another order. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/row_reader.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

class HeldWindow {
 public:
  // name: of the operation, for messages.
  HeldWindow(const Scope& scope, std::string name) : scope_(scope), name_(std::move(name)) {}
  HeldWindow(const HeldWindow&) = delete;
  HeldWindow& operator=(const HeldWindow&) = delete;
  ~HeldWindow() { scope_.budget->take_from_windows(bytes_); }

  // Holds the next samples of the stream instead of what it held, at most so many: fewer only at its end.
  void load(RowReader& rows, std::size_t most) {
    parts_.clear();
    starts_.clear();
    shares_.clear();
    scope_.budget->take_from_windows(std::exchange(bytes_, 0));
    rows_ = 0;
    while (rows_ < most) {
      Block part = rows.some(most - rows_);
      if (part.empty()) break;
      starts_.push_back(rows_);
      rows_ += part.rows();
      hold(std::move(part));
    }
  }

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  // Gives the next samples of an order of the window, as many as a block should have.
  [[nodiscard]] Chunk give(std::span<const std::size_t> order, Place place) const {
    const std::size_t each = std::max<std::size_t>(bytes_ / rows_, 1);
    const std::size_t count = std::clamp<std::size_t>(scope_.block_bytes() / each, 1, order.size());
    std::vector<RowOfPart> chosen;
    for (const std::size_t row : order.first(count)) chosen.push_back(find(row));
    Block block = gather(parts_, chosen);
    MemoryShare share{*scope_.budget, bytes_of(block)};
    return {std::move(block), std::move(place), std::move(share)};
  }

  // The bytes of each sample in one column.
  [[nodiscard]] std::vector<std::size_t> sizes(std::size_t column) const {
    std::vector<std::size_t> all;
    all.reserve(rows_);
    for (const Block& part : parts_) {
      for (std::size_t row = 0; row < part.rows(); ++row) all.push_back(part[column].sample(row).size());
    }
    return all;
  }

 private:
  void hold(Block part) {
    const std::size_t bytes = bytes_of(part);
    bytes_ += bytes;
    const std::size_t all_bytes = scope_.budget->add_to_windows(bytes);
    if (const std::size_t most = most_bytes(); all_bytes > most) {
      throw ConfigError{compose(
          "{}: the window{} more than {} bytes, of {} that the reader may use, some of which are left for "
          "what is read ahead and for batches: make it or the batches smaller, or EpochOptions::bound_bytes "
          "larger",
          name_, bytes_ > most ? " takes" : "s that are held at the same time take", most, scope_.budget->bound())};
    }
    shares_.emplace_back(*scope_.budget, bytes);
    parts_.push_back(std::move(part));
  }

  // Leaves what a batch of such samples takes; where that is more than the bound, the batch is what breaks it.
  [[nodiscard]] std::size_t most_bytes() const noexcept {
    const std::size_t bound = scope_.budget->bound();
    const std::size_t of_sample = bytes_ / rows_;
    if (of_sample > 0 && scope_.batch_rows > bound / of_sample) return scope_.budget->most_ahead();
    const std::size_t of_batch = scope_.batch_rows * of_sample;
    return std::clamp(bound - std::min(bound, of_batch), bound / 8, scope_.budget->most_ahead());
  }

  [[nodiscard]] RowOfPart find(std::size_t row) const {
    const auto part =
        static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), row) - starts_.begin()) - 1;
    return {part, row - starts_[part]};
  }

  Scope scope_;
  std::string name_;
  std::vector<Block> parts_{};
  std::vector<std::size_t> starts_{};  // of the parts in the window
  std::vector<MemoryShare> shares_{};
  std::size_t rows_ = 0;
  std::size_t bytes_ = 0;
};

// Goes through a stream window by window, and gives the samples of each in an order of its own. Its place: the number
// of the window, how many samples of it have been given, what the kind of window adds, and where the window begins.
class WindowStream : public ChunkStream {
 public:
  [[nodiscard]] Chunk next() final {
    while (given_ >= order_.size()) {
      if (!load()) return {};
    }
    Place place{number_, given_};
    place.insert(place.end(), added_.begin(), added_.end());
    place.insert(place.end(), begin_.begin(), begin_.end());
    Chunk chunk = window_.give(std::span{order_}.subspan(given_), std::move(place));
    given_ += chunk.block.rows();
    return chunk;
  }

 protected:
  // name: of the operation, for messages. num_added: how many numbers of a place the kind of window adds.
  WindowStream(const NodePtr& upstream, std::string name, const Scope& scope, PlaceCursor& from,
               std::size_t num_added = 0)
      : number_(from.next()),
        given_(static_cast<std::size_t>(from.next())),
        added_(num_added),
        rows_(upstream, scope, skip(from, added_)),
        window_(scope, std::move(name)) {}

  // Says how many samples the window of that number holds, but for the last one.
  [[nodiscard]] virtual std::size_t size_of(std::uint64_t number) = 0;
  [[nodiscard]] virtual std::vector<std::size_t> order_of(const HeldWindow& window, std::uint64_t number) const = 0;

  [[nodiscard]] std::vector<std::uint64_t>& added() noexcept { return added_; }
  [[nodiscard]] const std::vector<std::uint64_t>& added() const noexcept { return added_; }

 private:
  [[nodiscard]] static PlaceCursor& skip(PlaceCursor& from, std::vector<std::uint64_t>& added) {
    for (std::uint64_t& number : added) number = from.next();
    return from;
  }

  // Reads the next window, or the one that the place says. False at the end.
  bool load() {
    if (!order_.empty()) {
      given_ -= order_.size();
      ++number_;
    }
    const std::size_t size = size_of(number_);
    begin_.clear();
    rows_.append_place(begin_);
    window_.load(rows_, size);
    order_ = order_of(window_, number_);
    return !order_.empty();
  }

  std::uint64_t number_;
  std::size_t given_;
  std::vector<std::uint64_t> added_;
  RowReader rows_;
  HeldWindow window_;
  Place begin_{};  // of the window
  std::vector<std::size_t> order_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
