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
    const int first = first_waiting();
    const bool is_late = first >= 0 && queue(rank).empty() && queue(first).front().step < steps;
    return is_late ? first : -1;
  }

  /// Returns a rank that another one waits for so; -1 if there is none. steps(rank): how many it has ended.
  template <class Steps>
  [[nodiscard]] int late_rank(const Steps& steps) const {
    const int first = first_waiting();
    for (int rank = 0; first >= 0 && rank < static_cast<int>(saves_.size()); ++rank) {
      if (queue(rank).empty() && queue(first).front().step < steps(rank)) return rank;
    }
    return -1;
  }

  /// Takes what only some ranks have saved, with the rank: they have ended.
  [[nodiscard]] std::vector<std::pair<int, SavedMessage>> take_rest() {
    std::vector<std::pair<int, SavedMessage>> rest;
    for (std::size_t rank = 0; rank < saves_.size(); ++rank) {
      for (SavedMessage& save : saves_[rank]) rest.emplace_back(static_cast<int>(rank), std::move(save));
      saves_[rank].clear();
    }
    return rest;
  }

 private:
  [[nodiscard]] const std::deque<SavedMessage>& queue(int rank) const { return saves_[static_cast<std::size_t>(rank)]; }

  // The rank that has saved the earliest step that is not whole; -1 if there is none.
  [[nodiscard]] int first_waiting() const {
    int first = -1;
    for (int rank = 0; rank < static_cast<int>(saves_.size()); ++rank) {
      if (queue(rank).empty()) continue;
      if (first < 0 || queue(rank).front().step < queue(first).front().step) first = rank;
    }
    return first;
  }

  std::vector<std::deque<SavedMessage>> saves_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
