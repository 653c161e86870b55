// SPDX-License-Identifier: MIT
// Shuffles a stream within windows of it. Data room.
#pragma once

#include "railyard/data/detail/held_window.hpp"
#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/detail/compose.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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
      : OrderNode(std::move(upstream), operation_of(window, seed)), window_(window), seed_(seed) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return upstream()->count(); }
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return std::make_unique<Stream>(*this, scope, from);
  }

 private:
  [[nodiscard]] static std::string operation_of(std::size_t window, std::uint64_t seed) {
    return seed == 0 ? compose("shuffle_window({})", window) : compose("shuffle_window({}, seed {})", window, seed);
  }

  // Its place: the number of the window, how many samples of it have been given, and where the window begins.
  class Stream final : public ChunkStream {
   public:
    Stream(const WindowNode& node, const Scope& scope, PlaceCursor& from)
        : size_(node.window_),
          seed_(scope.key.order_seed(node.seed_)),
          number_(from.next()),
          given_(static_cast<std::size_t>(from.next())),
          rows_(node.upstream(), scope, from),
          window_(scope, node.describe()) {}

    [[nodiscard]] Chunk next() override {
      while (given_ >= order_.size()) {
        if (!load()) return {};
      }
      Place place{number_, given_};
      place.insert(place.end(), begin_.begin(), begin_.end());
      Chunk chunk = window_.give(std::span{order_}.subspan(given_), std::move(place));
      given_ += chunk.block.rows();
      return chunk;
    }

   private:
    // Reads the next window, or the one that the place says. False at the end.
    bool load() {
      if (!order_.empty()) {
        given_ -= order_.size();
        ++number_;
      }
      begin_.clear();
      rows_.append_place(begin_);
      window_.load(rows_, number_ == 0 ? 1 + static_cast<std::size_t>(Draws{seed_}.below(size_)) : size_);
      order_ = shuffled_indices(window_.rows(), derive_seed(seed_, number_));
      return !order_.empty();
    }

    std::size_t size_;
    std::uint64_t seed_;
    std::uint64_t number_;
    std::size_t given_;
    RowReader rows_;
    HeldWindow window_;
    Place begin_{};  // of the window
    std::vector<std::size_t> order_{};
  };

  std::size_t window_;
  std::uint64_t seed_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
