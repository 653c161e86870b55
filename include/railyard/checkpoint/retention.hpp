// SPDX-License-Identifier: MIT
// Which checkpoints are worth keeping. Checkpoint room.
#pragma once

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/manifest.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says whether a large or a small score is good.
enum class ScoreOrder { max, min };

/// Says which checkpoints are kept.
struct Retention {
  /// How many of the best are kept, and always the newest; 0 for all.
  int keep = 0;
  /// The metric that tells how good one is; empty: the later, the better.
  std::string score{};
  ScoreOrder order = ScoreOrder::max;
};

namespace detail {

/// Returns the score, larger is better; nothing if there is none, or it is NaN or no number.
[[nodiscard]] inline std::optional<double> score_of(const Manifest& manifest, const Retention& retention) {
  const Value* value = manifest.metrics.find(retention.score);
  if (value == nullptr || value->is<std::string>()) return std::nullopt;
  const double score = value->number();
  // By its bits, so that -ffast-math cannot make a number of it.
  constexpr std::uint64_t infinity = 0x7FF0'0000'0000'0000U;
  if ((std::bit_cast<std::uint64_t>(score) & ~(std::uint64_t{1} << 63U)) > infinity) return std::nullopt;
  return retention.order == ScoreOrder::max ? score : -score;
}

/// Returns the best of the checkpoints, which are given oldest first: the best first, of equals the later first.
[[nodiscard]] inline std::vector<Checkpoint> best_of(std::vector<Checkpoint> checkpoints, const Retention& retention) {
  std::reverse(checkpoints.begin(), checkpoints.end());
  if (!retention.score.empty()) {
    std::stable_sort(checkpoints.begin(), checkpoints.end(), [&retention](const Checkpoint& a, const Checkpoint& b) {
      return score_of(a.manifest(), retention) > score_of(b.manifest(), retention);  // nothing is less than any number
    });
  }
  const auto keep = static_cast<std::size_t>(std::max(retention.keep, 0));
  if (keep != 0 && keep < checkpoints.size())
    checkpoints.erase(checkpoints.begin() + retention.keep, checkpoints.end());
  return checkpoints;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
