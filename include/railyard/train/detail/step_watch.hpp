// SPDX-License-Identifier: MIT
// Notices that a rank ends no step any more. Train room.
#pragma once

#include "railyard/train/run_config.hpp"

#include "railyard/core/detail/compose.hpp"

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

  /// limit: 0 to watch nothing. first_limit: for the first step, before which a program may prepare much; as limit if
  /// that is longer.
  StepWatch(int world_size, std::chrono::nanoseconds limit, std::chrono::nanoseconds first_limit)
      : ranks_(static_cast<std::size_t>(world_size)), limit_(limit), first_limit_(std::max(limit, first_limit)) {}

  /// How often to look.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return limit_.count() == 0 ? std::chrono::nanoseconds{std::chrono::hours{1}} : limit_ / 4;
  }

  /// steps(rank) returns how many the rank has ended, more than `begin` if any in this attempt; nothing for one that is
  /// not watched. Returns a
  /// rank that has stood still for longer than its limit: if there is one, one that does not wait for others. Who waits
  /// has begun to do so a little before the one it waits for is found out, and is not taken for it meanwhile.
  template <class Steps, class Waits>
  [[nodiscard]] std::optional<Standstill> look(Time now, std::uint64_t begin, const Steps& steps, const Waits& waits) {
    if (limit_.count() == 0) return std::nullopt;
    const std::chrono::nanoseconds most = 2 * interval();
    const auto passed =
        looked_ == Time{} ? std::chrono::nanoseconds{0} : std::min<std::chrono::nanoseconds>(now - looked_, most);
    looked_ = now;
    std::optional<Standstill> found;
    bool is_waiting = false;
    bool may_be_another = false;
    bool is_preparing = false;            // one for whom others may wait
    std::chrono::nanoseconds longest{0};  // beyond the limit
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Seen& seen = ranks_[rank];
      const std::optional<std::uint64_t> count = steps(static_cast<int>(rank));
      seen.still = count && count == seen.steps ? seen.still + passed : std::chrono::nanoseconds{0};
      seen.steps = count;
      const bool waits_too = waits(static_cast<int>(rank));
      may_be_another = may_be_another || (seen.still.count() > 0 && !waits_too);
      const bool is_first = count && *count <= begin;
      const auto excess = seen.still - (is_first ? first_limit_ : limit_);
      is_preparing = is_preparing || (is_first && !waits_too && excess.count() <= 0);
      if (excess.count() <= 0) continue;
      longest = std::max(longest, excess);
      if (!found || (is_waiting && !waits_too)) {
        found = {.rank = static_cast<int>(rank), .what = text(seen.still, is_first)};
        is_waiting = waits_too;
      }
    }
    if (is_waiting && (is_preparing || (may_be_another && longest <= most))) return std::nullopt;
    return found;
  }

 private:
  [[nodiscard]] std::string text(std::chrono::nanoseconds still, bool is_first) const {
    using Seconds = std::chrono::duration<double>;
    if (!is_first) {
      return compose("has ended no step for {:.1f} s (RunConfig::step_timeout is {} s)", Seconds(still).count(),
                     Seconds(limit_).count());
    }
    return compose(
        "has not ended its first step after {:.1f} s (which may take {} s: the longest of "
        "RunConfig::step_timeout and setup_timeout, or collective_timeout where that is 0)",
        Seconds(still).count(), Seconds(first_limit_).count());
  }

  struct Seen {
    std::optional<std::uint64_t> steps{};
    std::chrono::nanoseconds still{0};
  };
  std::vector<Seen> ranks_;
  std::chrono::nanoseconds limit_;
  std::chrono::nanoseconds first_limit_;
  Time looked_{};
};

/// Returns the one that a run's settings ask for.
[[nodiscard]] inline StepWatch step_watch_of(const RunConfig& config, int world_size) {
  const bool has_setup = config.setup_timeout.count() > 0;
  return {world_size, config.step_timeout, has_setup ? config.setup_timeout : config.collective_timeout};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
