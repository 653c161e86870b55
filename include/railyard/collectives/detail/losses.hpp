// SPDX-License-Identifier: MIT
// Why a group that is made of several parts was lost: what its ranks tell each other of it. Collectives room.
#pragma once

#include "railyard/collectives/detail/notices.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/store.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one rank's access to what the ranks of a group say of its end. Where a rank waits for one that waits for another,
/// all see the group end; each says at once for whom it has waited, and the culprit is found by going from one to the
/// next.
class Losses {
 public:
  Losses(Store& store, std::string prefix, int rank) : store_(&store), prefix_(std::move(prefix)), rank_(rank) {}

  /// Leaves what this rank knows by itself, before it ends the parts of the group.
  void post(const Verdict& verdict) noexcept {
    try {
      store_->set(key(rank_), compose("{}\n{}", joined(verdict.blamed, " "), verdict.text));
    } catch (const std::exception&) {  // a full or a lost store: the others name this rank instead
    }
  }

  /// Returns the verdict of the rank at the end of the row that begins with those whom this rank's own one blames.
  [[nodiscard]] Verdict follow(Verdict verdict) {
    const Deadline deadline = Deadline::after(patience);
    std::set<int> asked{rank_};
    while (auto next = ask_any(verdict.blamed, asked, deadline)) verdict = std::move(*next);
    return verdict;
  }

 private:
  // Longer than the parts take to be sure of their own reasons.
  static constexpr std::chrono::milliseconds patience{600};

  // A rank that blames this one in its turn knows no more.
  [[nodiscard]] std::optional<Verdict> ask_any(const std::vector<int>& ranks, std::set<int>& asked,
                                               const Deadline& deadline) {
    for (const int rank : ranks) {
      if (!asked.insert(rank).second) continue;
      auto told = ask(rank, deadline);
      if (told && std::find(told->blamed.begin(), told->blamed.end(), rank_) == told->blamed.end()) return told;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Verdict> ask(int rank, const Deadline& deadline) {
    std::optional<std::string> bytes;
    try {
      bytes = store_->get(key(rank), deadline);
    } catch (const std::exception&) {  // a lost store: what is known here has to do
    }
    if (!bytes) return std::nullopt;
    const auto end = bytes->find('\n');
    Verdict verdict{.text = bytes->substr(end + 1)};
    const char* at = bytes->data();
    for (int blamed = 0; at < bytes->data() + end; ++at) {
      at = std::from_chars(at, bytes->data() + end, blamed).ptr;
      verdict.blamed.push_back(blamed);
    }
    return verdict;
  }

  [[nodiscard]] std::string key(int rank) const { return stage_key(prefix_, "lost", rank); }

  Store* store_;
  std::string prefix_;
  int rank_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
