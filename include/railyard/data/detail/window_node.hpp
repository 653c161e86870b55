// SPDX-License-Identifier: MIT
// Shuffles a stream within windows of it. Data room.
#pragma once

#include "railyard/data/detail/order_nodes.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

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

// Cuts the stream into windows and gives each in an order of its own. Where the first one ends is drawn for each epoch,
// so that samples which one epoch keeps apart may meet in the next. A buffer out of which samples are drawn one by one
// would mix as well, but holds samples of any age: to go on in the middle, all of the stream would have to be read
// again. Here it is one window.
template <class = void>
class WindowNode final : public OrderNode {
 public:
  WindowNode(NodePtr upstream, std::size_t window, std::uint64_t seed)
      : OrderNode(std::move(upstream), compose("shuffle_window({})", window)), window_(window), seed_(seed) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return upstream()->count(); }
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return std::make_unique<Stream>(*this, scope, from);
  }

 private:
  // Its place: the number of the window, how many samples of it have been given, and where the window begins.
  class Stream final : public ChunkStream {
   public:
    Stream(const WindowNode& node, const Scope& scope, PlaceCursor& from)
        : scope_(scope),
          window_(node.window_),
          seed_(scope.key.order_seed(node.seed_)),
          name_(node.describe()),
          number_(from.next()),
          given_(static_cast<std::size_t>(from.next())),
          rows_(node.upstream(), scope, from) {}

    [[nodiscard]] Chunk next() override {
      while (given_ >= order_.size()) {
        if (!load()) return {};
      }
      Place place{number_, given_};
      place.insert(place.end(), begin_.begin(), begin_.end());
      const std::size_t each = std::max<std::size_t>(bytes_ / order_.size(), 1);
      const std::size_t rows = std::clamp<std::size_t>(scope_.block_bytes() / each, 1, order_.size() - given_);
      Block block = take_rows(std::span{order_}.subspan(given_, rows));
      given_ += rows;
      MemoryShare share{*scope_.budget, bytes_of(block)};
      return {std::move(block), std::move(place), std::move(share)};
    }

   private:
    // Reads the next window, or the one that the place says. False at the end.
    bool load() {
      if (!order_.empty()) {
        given_ -= order_.size();
        ++number_;
      }
      parts_.clear();
      starts_.clear();
      shares_.clear();
      bytes_ = 0;
      begin_.clear();
      rows_.append_place(begin_);
      const std::size_t size = number_ == 0 ? 1 + static_cast<std::size_t>(Draws{seed_}.below(window_)) : window_;
      std::size_t rows = 0;
      while (rows < size) {
        Block part = rows_.some(size - rows);
        if (part.empty()) break;
        starts_.push_back(rows);
        rows += part.rows();
        hold(std::move(part));
      }
      order_ = shuffled_indices(rows, derive_seed(seed_, number_));
      return rows > 0;
    }

    void hold(Block part) {
      const std::size_t bytes = bytes_of(part);
      bytes_ += bytes;
      if (bytes_ > scope_.budget->most_ahead()) {
        throw ConfigError{
            compose("{}: the window takes more than {} bytes, three quarters of what the reader may use: "
                    "make it smaller or EpochOptions::bound_bytes larger",
                    name_, scope_.budget->most_ahead())};
      }
      shares_.emplace_back(*scope_.budget, bytes);
      parts_.push_back(std::move(part));
    }

    // Gathers samples of the window.
    [[nodiscard]] Block take_rows(std::span<const std::size_t> rows) const {
      std::vector<RowOfPart> chosen;
      for (const std::size_t row : rows) {
        const auto part =
            static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), row) - starts_.begin()) - 1;
        chosen.push_back({part, row - starts_[part]});
      }
      return gather(parts_, chosen);
    }

    Scope scope_;
    std::size_t window_;
    std::uint64_t seed_;
    std::string name_;
    std::uint64_t number_;
    std::size_t given_;
    RowReader rows_;
    std::vector<Block> parts_{};
    std::vector<std::size_t> starts_{};  // of the parts in the window
    std::vector<MemoryShare> shares_{};
    std::size_t bytes_ = 0;
    Place begin_{};  // of the window
    std::vector<std::size_t> order_{};
  };

  std::size_t window_;
  std::uint64_t seed_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
