// SPDX-License-Identifier: MIT
// How a process that leads a run after another goes on with it, and what it leaves to the next one. Train room.
#pragma once

#include "railyard/train/detail/failure_budget.hpp"
#include "railyard/train/detail/resume_point.hpp"
#include "railyard/train/detail/run_ledger.hpp"
#include "railyard/train/detail/run_log.hpp"
#include "railyard/train/result.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/joining.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a process begins with that leads a run after another.
struct Inheritance {
  RunLedger ledger{};
  std::string why{};           ///< it does: who is lost, and who leads now
  double seconds = 0;          ///< since fit() was called
  std::uint64_t end_step = 0;  ///< that workers had ended by then, as far as is known here

  /// Adds the attempt that has ended with who led, where the run goes on at next_step.
  [[nodiscard]] std::vector<Attempt> attempts(std::uint64_t next_step) const {
    std::vector<Attempt> all = ledger.attempts;
    const std::uint64_t end = std::max({end_step, ledger.begin_step, next_step});
    all.push_back({.error = why,
                   .begin_step = ledger.begin_step,
                   .end_step = end,
                   .lost_steps = end - next_step,
                   .seconds = seconds,
                   .world_size = ledger.world_size});
    return all;
  }
};

/// why: how the loss was found out.
[[nodiscard]] inline std::string text_of_succession(const LostLead& lost, std::string_view why) {
  return compose("process {}, which led the run, is lost ({}); process {} on {} leads now", lost.process, why,
                 lost.own_process, host_name());
}

[[nodiscard]] inline Inheritance inherit(const LostLead& lost, std::string why, Deadline::Clock::time_point called_at) {
  return {.ledger = lost.note.empty() ? RunLedger{} : RunLedger::decode(lost.note),
          .why = std::move(why),
          .seconds = std::chrono::duration<double>(Deadline::Clock::now() - called_at).count(),
          .end_step = lost.num_steps};
}

/// Says how a process has come to lead, and how it lets others know what they have to if it is lost.
struct Leadership {
  std::function<void(std::string_view note)> note{};
  std::optional<Inheritance> inherited{};
  bool may_be_replaced = false;  ///< by one of those that follow, when they have lost this process

  void tell(const RunLedger& ledger) const {
    if (note) note(ledger.encode());
  }
};

/// Goes on at a point as whoever led before would have after a failure; it is not counted as one.
inline void take_over(const Inheritance& inherited, ResumePoint& point, FailureBudget& budget,
                      std::vector<Attempt>& attempts, RunLog& log) {
  point.go_on_as(inherited.ledger.attempt + 1);
  budget.go_on_from(inherited.ledger.failures);
  attempts = inherited.attempts(point.step());
  log.tell_of_leader(inherited.why, inherited.ledger.attempts.size());
  log.tell_of(attempts);
  log.tell_of_restart(point.attempt(), attempts.back(), point.briefing().checkpoint, point.step());
}

}  // namespace detail
}  // namespace railyard::inline v0_1
