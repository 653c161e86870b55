// SPDX-License-Identifier: MIT
// Where the next start of a run's workers goes on: a checkpoint, the state in memory, or the beginning. Train room.
#pragma once

#include "railyard/train/detail/briefing.hpp"
#include "railyard/train/detail/run_checkpoints.hpp"
#include "railyard/train/detail/run_history.hpp"
#include "railyard/train/detail/run_lease.hpp"
#include "railyard/train/detail/run_log.hpp"
#include "railyard/train/detail/wire.hpp"
#include "railyard/train/run_config.hpp"

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Knows it, and takes the run's history back to there: what was reported after it will be reported anew.
class ResumePoint {
 public:
  /// The history must outlive it.
  explicit ResumePoint(RunHistory& history) noexcept : history_(&history) {}

  /// What workers are told of it.
  [[nodiscard]] const Briefing& briefing() const noexcept { return briefing_; }
  [[nodiscard]] std::string encode() const { return encode_briefing(briefing_); }
  [[nodiscard]] int attempt() const noexcept { return briefing_.attempt; }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

  void begin_attempt() noexcept { ++briefing_.attempt; }
  /// The next attempt has that number: others have come before this program's.
  void go_on_as(int attempt) noexcept { briefing_.attempt = attempt; }

  /// Goes on from the newest checkpoint that an earlier program has left in run; see find_checkpoint(), also for what
  /// it throws.
  void find(const std::filesystem::path& run, const RunLease& lease, const RunConfig& config, RunLog& log) {
    for (const std::string& problem : history_->problems()) log.warn(problem);
    std::vector<std::string> problems;
    const auto newest = find_checkpoint(run, lease, config, history_->last_checkpoint(), problems);
    if (!newest && !history_->last_checkpoint().empty()) log.tell_of_beginning_anew(history_->last_checkpoint());
    has_found_ = newest.has_value();
    go_to(newest);
    for (const std::string& problem : problems) log.warn(problem);
  }

  /// Goes on from the newest state, when no worker is left: in memory, where the next ones find it there, or else a
  /// checkpoint. can_exchange: see RunCheckpoints::kept(). must_write: what is in memory does not last until then.
  /// settle(): waits until all checkpoints are written. patiently(read): calls read(), which waits for storage. Throws:
  /// Error if the run cannot go on.
  template <class Settle, class Patiently>
  void go_to_newest(RunCheckpoints& checkpoints, bool can_exchange, bool must_write, const Settle& settle,
                    const Patiently& patiently) {
    auto copy = checkpoints.kept(checkpoints.newest_in_memory(), can_exchange);
    if (copy.empty() || must_write) {
      if (copy.empty()) checkpoints.write_newest_copy(attempt());
      settle();
      copy = checkpoints.kept(checkpoints.newest_copy(), can_exchange);  // a newer checkpoint may have failed
    }
    if (!copy.empty()) return go_to(copy);
    std::optional<Checkpoint> newest;
    patiently([&] { newest = checkpoints.go_back(has_found_); });
    go_to(newest);
  }
  /// Whether so many workers find there what they are to go on from: a process may have been lost, or have come back.
  [[nodiscard]] bool is_there(RunCheckpoints& checkpoints, int world_size) const {
    return briefing_.slots.empty() || checkpoints.still_keeps(briefing_.slots, world_size);
  }

 private:
  void go_to(const std::optional<Checkpoint>& checkpoint) {
    briefing_.checkpoint = checkpoint ? checkpoint->path().string() : std::string{};
    briefing_.slots.clear();
    step_ = checkpoint ? checkpoint->manifest().step : 0;
    history_->go_back(checkpoint ? checkpoint->manifest().report + 1 : 0);
  }

  void go_to(const std::vector<SavedMessage>& copy) {
    briefing_.checkpoint = "memory";
    briefing_.slots = slots_of(copy);
    step_ = copy.front().step;
    history_->go_back(copy.front().report + 1);
  }

  RunHistory* history_;
  Briefing briefing_{};
  std::uint64_t step_ = 0;
  bool has_found_ = false;  // a checkpoint of an earlier program
};

}  // namespace detail
}  // namespace railyard::inline v0_1
