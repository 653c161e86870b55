// SPDX-License-Identifier: MIT
// Decides whether a run that has failed starts again. Train room.
#pragma once

#include "railyard/train/controller.hpp"
#include "railyard/train/failure_config.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Counts failures. Knows no clock and no workers.
class FailureBudget {
 public:
  struct Verdict {
    bool restarts = false;
    std::chrono::nanoseconds delay{0};
    std::string reason{};  ///< why it does not restart although failures are allowed; else empty
  };

  /// Is what has been counted so far.
  struct Counts {
    std::int32_t failures = 0;  ///< since the budget was whole
    std::int32_t in_all = 0;
    std::int32_t in_a_row = 0;  ///< without progress between them
    std::int32_t at_step = 0;
    std::uint64_t last_step = 0;
  };

  /// is_elastic: the run goes on without hosts that are lost, which is a change of its size and no failure.
  explicit FailureBudget(const FailureConfig& config, bool is_elastic = false)
      : config_(config), is_elastic_(is_elastic) {}

  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  /// Goes on from what somebody else has counted.
  void go_on_from(const Counts& counts) noexcept { counts_ = counts; }

  /// Whether a failure can be followed by another start at all.
  [[nodiscard]] bool allows_any() const noexcept { return config_.max_failures != 0; }
  /// Whether this one can, by the numbers.
  [[nodiscard]] bool allows(const Failure& failure) const noexcept { return allows_any() || is_resize(failure); }

  /// Whether failures of this kind are followed by another start while the budget lasts.
  [[nodiscard]] bool retries(const Failure& failure) const noexcept {
    return allows(failure) && failure.kind != Failure::Kind::final && refusal(failure).empty();
  }

  /// step: how far the attempt had come. has_progressed: a checkpoint was made in it.
  [[nodiscard]] Verdict judge(const Failure& failure, std::uint64_t step, bool has_progressed) {
    if (is_resize(failure)) return {.restarts = true};
    if (has_progressed && config_.renew_after_progress) counts_.failures = 0;
    counts_.at_step = counts_.in_all++ > 0 && step == counts_.last_step ? counts_.at_step + 1 : 1;
    counts_.last_step = step;
    counts_.in_a_row = has_progressed ? 1 : counts_.in_a_row + 1;
    if (config_.max_failures == 0 || failure.kind == Failure::Kind::final) return {};
    if (const auto reason = refusal(failure); !reason.empty()) return {.reason = std::string{reason}};
    if (counts_.at_step >= config_.max_failures_at_same_step) {
      return {.reason = compose("it has failed {} times in a row at step {}, so the program itself seems to be the "
                                "cause (FailureConfig::max_failures_at_same_step)",
                                counts_.at_step, step)};
    }
    if (config_.max_failures > 0 && counts_.failures >= config_.max_failures) {
      return {.reason =
                  compose("the budget of {} failures is spent (FailureConfig::max_failures)", config_.max_failures)};
    }
    ++counts_.failures;
    return {.restarts = true, .delay = delay()};
  }

 private:
  // Why failures of its kind are not retried whatever the budget; empty if they are, or nothing has to be said.
  [[nodiscard]] std::string_view refusal(const Failure& failure) const noexcept {
    if (failure.kind == Failure::Kind::setting) {
      return "a ConfigError is not retried, as another start would throw it again (FailureConfig)";
    }
    if (failure.kind == Failure::Kind::exception && !config_.retry_exceptions) {
      return "exceptions are not retried (FailureConfig::retry_exceptions)";
    }
    return {};
  }

  // Where another start has failed as well, there are not enough left.
  [[nodiscard]] bool is_resize(const Failure& failure) const noexcept {
    return is_elastic_ && failure.is_host && failure.kind != Failure::Kind::final;
  }

  [[nodiscard]] std::chrono::nanoseconds delay() const {
    std::chrono::nanoseconds delay = config_.backoff;
    for (int at = 1; at < counts_.in_a_row && delay < config_.max_backoff; ++at) delay *= 2;
    return std::min(delay, config_.max_backoff);
  }

  FailureConfig config_;
  bool is_elastic_;
  Counts counts_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
