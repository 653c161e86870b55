// SPDX-License-Identifier: MIT
// Puts the ranks' parts of a checkpoint together. Train room.
#pragma once

#include "railyard/train/detail/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Collects what ranks have saved: save number i of all ranks is one checkpoint.
class SaveBook {
 public:
  explicit SaveBook(int world_size) : saves_(static_cast<std::size_t>(world_size)) {}

  void add(int rank, SavedMessage save) { saves_[static_cast<std::size_t>(rank)].push_back(std::move(save)); }

  /// Takes the next checkpoint that all ranks have saved, by rank.
  [[nodiscard]] std::optional<std::vector<SavedMessage>> take() {
    for (const auto& queue : saves_) {
      if (queue.empty()) return std::nullopt;
    }
    std::vector<SavedMessage> all;
    for (auto& queue : saves_) {
      all.push_back(std::move(queue.front()));
      queue.pop_front();
    }
    return all;
  }

  /// Returns a rank that has saved a step which this one, which has ended so many, has passed without saving it; -1 if
  /// there is none. Only what has been added counts: what the rank has posted may still be on its way.
  [[nodiscard]] int waits_for(int rank, std::uint64_t steps) const {
    if (!saves_[static_cast<std::size_t>(rank)].empty()) return -1;
    for (std::size_t other = 0; other < saves_.size(); ++other) {
      if (!saves_[other].empty() && saves_[other].front().step < steps) return static_cast<int>(other);
    }
    return -1;
  }

  /// Forgets what only some ranks have saved: they have ended.
  void clear() {
    for (auto& queue : saves_) queue.clear();
  }

 private:
  std::vector<std::deque<SavedMessage>> saves_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
