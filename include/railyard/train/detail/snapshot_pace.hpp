// SPDX-License-Identifier: MIT
// When rank 0 wants the state to be copied or saved. Train room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace railyard::inline v0_1 {
namespace detail {

/// Spreads copies of the state so that they take a given share of the time, and says when a checkpoint is due.
class SnapshotPace {
 public:
  using Clock = std::chrono::steady_clock;

  /// percent: the share of copies, 0 for none. interval: between checkpoints, 0 for none. has_restarts: failures are
  /// survived. Where none is, copies are for the end of the program alone, and the next one takes seconds to start: a
  /// copy counts as if it took a tenth of a second at least, so that at one percent none is made in the first ten
  /// seconds, nor in any ten after another, and small models pay nothing for them.
  SnapshotPace(double percent, std::chrono::nanoseconds interval, bool has_restarts, Clock::time_point now) noexcept
      : percent_(percent),
        interval_(interval),
        least_cost_(has_restarts ? 0 : 0.1),
        cost_(least_cost_),
        copied_at_(now),
        saved_at_(now) {}

  /// The first copy of a run that survives failures is due at once: only then is known what one costs.
  [[nodiscard]] bool wants_copy(Clock::time_point now) const noexcept {
    return percent_ > 0 && std::chrono::duration<double>(now - copied_at_) >= cost_ * (100 / percent_);
  }
  [[nodiscard]] bool wants_checkpoint(Clock::time_point now) const noexcept {
    return interval_.count() > 0 && now - saved_at_ >= interval_;
  }

  void note_copy(std::chrono::duration<double> cost, Clock::time_point now) noexcept {
    cost_ = std::max(cost, least_cost_);
    copied_at_ = now;
  }
  /// The state is in a checkpoint as well, or will be: what a restart does not read from the disk if it can, but is as
  /// good as a copy for the end of the program.
  void note_save(std::chrono::duration<double> cost, Clock::time_point now) noexcept {
    if (least_cost_.count() > 0) note_copy(cost, now);
  }
  /// What was put back is there still for the next restart. Until it is a few steps old a copy is not worth its price,
  /// which is about that of putting back; from a slow disk it is less.
  void note_put_back(std::chrono::duration<double> cost, Clock::time_point now) noexcept {
    constexpr std::chrono::duration<double> most{0.02};
    note_copy(std::min(cost, most), now);
  }
  /// No copy is wanted any more.
  void end_copies() noexcept { percent_ = 0; }
  void note_checkpoint(Clock::time_point now) noexcept { saved_at_ = now; }

 private:
  double percent_;
  std::chrono::nanoseconds interval_;
  std::chrono::duration<double> least_cost_;
  std::chrono::duration<double> cost_;
  Clock::time_point copied_at_;
  Clock::time_point saved_at_;
};

/// Is the memory of one host that copies of the state take. Units: bytes.
struct CopyMemory {
  std::uint64_t copies = 0;    ///< all of them
  std::uint64_t received = 0;  ///< what a restart takes besides, of parts that ranks of other hosts have: see HeldState
  std::uint64_t there = 0;     ///< of both, already: since the workers before a restart, for one
};

/// Says why copies of the state would not fit into memory beside all else; nothing if they do. Memory that is promised
/// and not there ends programs instead of calls. left: the bytes that are free. has_restarts: the copies are asked for;
/// otherwise half of the memory is left for what may be more urgent.
[[nodiscard]] inline std::string lack_of_room(const CopyMemory& memory, int num_local_workers, bool has_restarts,
                                              std::size_t left) {
  const std::uint64_t all = memory.copies + memory.received;
  const std::uint64_t needed = all - std::min(all, memory.there);
  if (needed <= (has_restarts ? left : left / 2)) return {};
  return compose(
      "{} workers on this host keep {} MiB of copies{}, {} MiB of them are to come, and {} MiB of memory are free{}; "
      "give the job more, or have no copies by FailureConfig::memory_percent = 0",
      num_local_workers, all >> 20U,
      memory.received > 0 ? compose(", {} MiB of what other hosts have at a restart included", memory.received >> 20U)
                          : std::string{},
      needed >> 20U, left >> 20U, has_restarts ? "" : ", half of which they may have where no failure is survived");
}

}  // namespace detail
}  // namespace railyard::inline v0_1
