// SPDX-License-Identifier: MIT
// Tells a state that lasts from one that passes. Train room.
#pragma once

#include "railyard/core/version.hpp"

#include <chrono>

namespace railyard::inline v0_1 {
namespace detail {

/// Says when the same rank has been found for longer than a while.
class Patience {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// rank: -1 if none is found. Returns whether it has been found again and again for so long.
  [[nodiscard]] bool is_over(int rank, Time now) {
    if (rank != rank_) since_ = now;
    rank_ = rank;
    constexpr std::chrono::seconds most{5};
    return rank >= 0 && now - since_ > most;
  }

 private:
  int rank_ = -1;
  Time since_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
