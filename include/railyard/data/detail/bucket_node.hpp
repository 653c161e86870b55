// SPDX-License-Identifier: MIT
// Brings samples of similar length together within windows of a stream. Data room.
#pragma once

#include "railyard/data/detail/held_window.hpp"
#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Says what bucket_by_length() brings together.
struct Bucketing {
  std::size_t column = 0;
  std::size_t group = 1;   // samples of similar length that follow each other
  std::size_t window = 1;  // samples among which they are looked for: a multiple of group
};

// Returns an order in which samples of similar size stand in groups. The groups come at random, and so do the samples
// of each, so that workers that divide a group have equally much to do. What is left over is the last group.
[[nodiscard]] inline std::vector<std::size_t> bucketed_indices(std::span<const std::size_t> sizes, std::size_t group,
                                                               std::uint64_t seed) {
  const std::size_t count = sizes.size();
  std::vector<std::size_t> sorted = shuffled_indices(count, seed);  // so that equal sizes are not always together
  std::vector<std::size_t> drawn(count);
  for (std::size_t at = 0; at < count; ++at) drawn[sorted[at]] = at;
  std::sort(sorted.begin(), sorted.end(), [&](std::size_t a, std::size_t b) {
    return sizes[a] != sizes[b] ? sizes[a] < sizes[b] : drawn[a] < drawn[b];
  });
  std::vector<std::size_t> order;
  order.reserve(count);
  const auto add = [&](std::size_t begin, std::size_t end) {
    order.insert(order.end(), sorted.begin() + static_cast<std::ptrdiff_t>(begin),
                 sorted.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(order.end() - static_cast<std::ptrdiff_t>(end - begin), order.end(),
              [&](std::size_t a, std::size_t b) { return drawn[a] < drawn[b]; });
  };
  for (const std::size_t whole : shuffled_indices(count / group, derive_seed(seed, count))) {
    add(whole * group, (whole + 1) * group);
  }
  add(count / group * group, count);
  return order;
}

template <class = void>
class BucketNode final : public OrderNode {
 public:
  BucketNode(NodePtr upstream, const Bucketing& bucketing)
      : OrderNode(upstream, compose("bucket_by_length({}, {} of {})", (*upstream->schema())[bucketing.column].name,
                                    bucketing.group, bucketing.window)),
        bucketing_(bucketing) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return upstream()->count(); }
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return std::make_unique<Stream>(*this, scope, from);
  }

 private:
  // Adds to a place the sizes of its window and of the groups: a run that goes on with another size of batches must end
  // this window as it was.
  class Stream final : public WindowStream {
   public:
    Stream(const BucketNode& node, const Scope& scope, PlaceCursor& from)
        : WindowStream(node.upstream(), node.describe(), scope, from, 2),
          bucketing_(node.bucketing_),
          seed_(scope.key.order_seed(0)),
          is_of_place_(added().front() > 0) {}

   private:
    // The first window is of a size drawn for each epoch, so that the borders of windows move.
    [[nodiscard]] std::size_t size_of(std::uint64_t number) override {
      const std::size_t groups = bucketing_.window / bucketing_.group;
      const std::size_t own = number == 0 ? 1 + static_cast<std::size_t>(Draws{seed_}.below(groups)) : groups;
      if (!std::exchange(is_of_place_, false)) added() = {own * bucketing_.group, bucketing_.group};
      return static_cast<std::size_t>(added().front());
    }
    [[nodiscard]] std::vector<std::size_t> order_of(const HeldWindow& window, std::uint64_t number) const override {
      return bucketed_indices(window.sizes(bucketing_.column), static_cast<std::size_t>(added().back()),
                              derive_seed(seed_, number));
    }

    Bucketing bucketing_;
    std::uint64_t seed_;
    bool is_of_place_;  // the window to come is the one that a place says
  };

  Bucketing bucketing_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
