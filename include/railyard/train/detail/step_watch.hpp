// SPDX-License-Identifier: MIT
// Notices that a rank ends no step any more. Train room.
#pragma once

#include "railyard/core/detail/compose.hpp"

#include "railyard/core/version.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Counts for how long each rank has stood still. Time in which nobody looked does not count: the whole group may have
/// been suspended.
class StepWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Standstill {
    int rank = -1;
    std::string what{};
  };

  /// limit: 0 to watch nothing.
  StepWatch(int world_size, std::chrono::nanoseconds limit)
      : ranks_(static_cast<std::size_t>(world_size)), limit_(limit) {}

  /// How often to look.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return limit_.count() == 0 ? std::chrono::nanoseconds{std::chrono::hours{1}} : limit_ / 4;
  }

  /// steps(rank) returns how many the rank has ended; it is watched from its first one on. Returns a rank that has
  /// stood still for longer than the limit: if there is one, one that does not wait for others. Who waits has begun to
  /// do so a little before the one it waits for is found out, and is not taken for it meanwhile.
  template <class Steps, class Waits>
  [[nodiscard]] std::optional<Standstill> look(Time now, const Steps& steps, const Waits& waits) {
    if (limit_.count() == 0) return std::nullopt;
    const std::chrono::nanoseconds most = 2 * interval();
    const auto passed =
        looked_ == Time{} ? std::chrono::nanoseconds{0} : std::min<std::chrono::nanoseconds>(now - looked_, most);
    looked_ = now;
    std::optional<Standstill> found;
    bool is_waiting = false;
    bool may_be_another = false;
    std::chrono::nanoseconds longest{0};
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Seen& seen = ranks_[rank];
      const std::uint64_t count = steps(static_cast<int>(rank));
      seen.still = count == seen.steps && count > 0 ? seen.still + passed : std::chrono::nanoseconds{0};
      seen.steps = count;
      const bool waits_too = waits(static_cast<int>(rank));
      may_be_another = may_be_another || (seen.still.count() > 0 && !waits_too);
      if (seen.still <= limit_) continue;
      longest = std::max(longest, seen.still);
      if (!found || (is_waiting && !waits_too)) {
        found = {.rank = static_cast<int>(rank), .what = text(seen.still)};
        is_waiting = waits_too;
      }
    }
    if (is_waiting && may_be_another && longest <= limit_ + most) return std::nullopt;
    return found;
  }

 private:
  [[nodiscard]] std::string text(std::chrono::nanoseconds still) const {
    using Seconds = std::chrono::duration<double>;
    return compose("has ended no step for {:.1f} s (RunConfig::step_timeout is {} s)", Seconds(still).count(),
                   Seconds(limit_).count());
  }

  struct Seen {
    std::uint64_t steps = 0;
    std::chrono::nanoseconds still{0};
  };
  std::vector<Seen> ranks_;
  std::chrono::nanoseconds limit_;
  Time looked_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
