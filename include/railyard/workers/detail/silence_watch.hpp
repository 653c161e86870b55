// SPDX-License-Identifier: MIT
// Notices workers whose heartbeat has stopped. Workers room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Counts for every rank for how long its heartbeat has stood still while somebody was looking. Time in which nobody
/// looked, because this process was stopped or the machine asleep, does not count: the workers slept as well.
class SilenceWatch {
 public:
  SilenceWatch(int num_workers, std::chrono::nanoseconds limit, std::int64_t now_ns)
      : ranks_(static_cast<std::size_t>(num_workers)), limit_ns_(limit.count()), looked_ns_(now_ns) {}

  /// How often to look: often enough to be late by an eighth of the limit at most.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return std::clamp(std::chrono::nanoseconds{limit_ns_ / 8}, std::chrono::nanoseconds{std::chrono::milliseconds{1}},
                      std::chrono::nanoseconds{std::chrono::seconds{1}});
  }
  /// How long until it is time to look.
  [[nodiscard]] std::chrono::nanoseconds until_look(std::int64_t now_ns) const noexcept {
    return std::max(std::chrono::nanoseconds{0}, interval() - std::chrono::nanoseconds{now_ns - looked_ns_});
  }

  /// Looks at all heartbeats. heartbeat(rank) returns the count. silent(rank, quiet) is called once for each rank that
  /// has been quiet for longer than the limit.
  template <class Heartbeat, class Silent>
  void look(std::int64_t now_ns, Heartbeat&& heartbeat, Silent&& silent) {
    const std::int64_t watched_ns = std::min(now_ns - looked_ns_, 2 * interval().count());
    looked_ns_ = now_ns;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Seen& seen = ranks_[rank];
      const std::uint64_t count = heartbeat(static_cast<int>(rank));
      if (count != seen.heartbeat) {
        seen.heartbeat = count;
        seen.quiet_ns = 0;
        continue;
      }
      seen.quiet_ns += watched_ns;
      if (seen.quiet_ns <= limit_ns_ || seen.is_reported) continue;
      seen.is_reported = true;
      silent(static_cast<int>(rank), std::chrono::nanoseconds{seen.quiet_ns});
    }
  }

 private:
  struct Seen {
    std::uint64_t heartbeat = 0;
    std::int64_t quiet_ns = 0;
    bool is_reported = false;
  };
  std::vector<Seen> ranks_;
  std::int64_t limit_ns_;
  std::int64_t looked_ns_;
};

/// How often a worker moves its heartbeat: several times within the limit.
[[nodiscard]] inline std::chrono::nanoseconds heartbeat_interval(std::chrono::nanoseconds silence_limit) {
  return std::clamp(silence_limit / 8, std::chrono::nanoseconds{std::chrono::milliseconds{1}},
                    std::chrono::nanoseconds{std::chrono::seconds{1}});
}

}  // namespace detail
}  // namespace railyard::inline v0_1
