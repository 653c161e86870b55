// SPDX-License-Identifier: MIT
// Which checkpoints are worth keeping. Checkpoint room.
#pragma once

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/manifest.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  if (retention.score.empty()) return std::nullopt;
  const Value* value = manifest.metrics.find(retention.score);
  if (value == nullptr || value->is<std::string>()) return std::nullopt;
  const double score = value->number();
  // By its bits, so that -ffast-math cannot make a number of it.
  constexpr std::uint64_t infinity = 0x7FF0'0000'0000'0000U;
  if ((std::bit_cast<std::uint64_t>(score) & ~(std::uint64_t{1} << 63U)) > infinity) return std::nullopt;
  return retention.order == ScoreOrder::max ? score : -score;
}

/// Returns the checkpoints, which are given oldest first, in the order of their worth: the best first, of equals the
/// later first.
[[nodiscard]] inline std::vector<Checkpoint> ranked(const std::vector<Checkpoint>& checkpoints,
                                                    const Retention& retention) {
  std::vector<std::pair<std::optional<double>, std::size_t>> ranking;  // no score is less than any
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    ranking.emplace_back(score_of(checkpoints[i].manifest(), retention), i);
  }
  std::sort(ranking.begin(), ranking.end(), std::greater<>{});
  std::vector<Checkpoint> in_order;
  for (const auto& [score, i] : ranking) in_order.push_back(checkpoints[i]);
  return in_order;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
