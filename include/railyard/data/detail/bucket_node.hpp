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
  // Its place: the number of the window, how many samples of it have been given, its size and that of its groups, and
  // where it begins. The sizes, for a run that goes on with another size of batches must end this window as it was.
  class Stream final : public ChunkStream {
   public:
    Stream(const BucketNode& node, const Scope& scope, PlaceCursor& from)
        : bucketing_(node.bucketing_),
          seed_(scope.key.order_seed(0)),
          number_(from.next()),
          given_(static_cast<std::size_t>(from.next())),
          saved_window_(static_cast<std::size_t>(from.next())),
          saved_group_(static_cast<std::size_t>(from.next())),
          rows_(node.upstream(), scope, from),
          window_(scope, node.describe()) {}

    [[nodiscard]] Chunk next() override {
      while (given_ >= order_.size()) {
        if (!load()) return {};
      }
      Place place{number_, given_, size_, group_};
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
      choose_sizes();
      begin_.clear();
      rows_.append_place(begin_);
      window_.load(rows_, size_);
      order_ = bucketed_indices(window_.sizes(bucketing_.column), group_, derive_seed(seed_, number_));
      return !order_.empty();
    }

    // The first window is of a size drawn for each epoch, so that the borders of windows move.
    void choose_sizes() {
      const std::size_t groups = bucketing_.window / bucketing_.group;
      const std::size_t own = number_ == 0 ? 1 + static_cast<std::size_t>(Draws{seed_}.below(groups)) : groups;
      const std::size_t saved = std::exchange(saved_window_, 0);
      size_ = saved > 0 ? saved : own * bucketing_.group;
      group_ = saved > 0 ? saved_group_ : bucketing_.group;
    }

    Bucketing bucketing_;
    std::uint64_t seed_;
    std::uint64_t number_;
    std::size_t given_;
    std::size_t saved_window_;  // of the window that a place says; 0 where there is none
    std::size_t saved_group_;
    RowReader rows_;
    HeldWindow window_;
    std::size_t size_ = 0;
    std::size_t group_ = 0;
    Place begin_{};  // of the window
    std::vector<std::size_t> order_{};
  };

  Bucketing bucketing_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
