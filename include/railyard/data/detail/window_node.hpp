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

  class Stream final : public WindowStream {
   public:
    Stream(const WindowNode& node, const Scope& scope, PlaceCursor& from)
        : WindowStream(node.upstream(), node.describe(), scope, from),
          size_(node.window_),
          seed_(scope.key.order_seed(node.seed_)) {}

   private:
    [[nodiscard]] std::size_t size_of(std::uint64_t number) override {
      return number == 0 ? 1 + static_cast<std::size_t>(Draws{seed_}.below(size_)) : size_;
    }
    [[nodiscard]] std::vector<std::size_t> order_of(const HeldWindow& window, std::uint64_t number) const override {
      return shuffled_indices(window.rows(), derive_seed(seed_, number));
    }

    std::size_t size_;
    std::uint64_t seed_;
  };

  std::size_t window_;
  std::uint64_t seed_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
