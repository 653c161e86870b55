// SPDX-License-Identifier: MIT
// Tells what announces that the machine of a run will be taken away. Train room.
#pragma once

#include "railyard/train/preemption_config.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Knows the settings, and whether the file has been seen.
class PreemptionNotice {
 public:
  explicit PreemptionNotice(PreemptionConfig config) : config_(std::move(config)) {}

  [[nodiscard]] bool is_announced_by(int signal) const {
    return std::find(config_.signals.begin(), config_.signals.end(), signal) != config_.signals.end();
  }
  /// Whether a signal is about the run: SIGUSR1 is the program's own where it announces nothing.
  [[nodiscard]] bool concerns_run(int signal) const { return signal != SIGUSR1 || is_announced_by(SIGUSR1); }

  /// How often to look for the file.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return config_.file.empty() ? std::chrono::hours{1} : std::chrono::seconds{1};
  }
  /// Whether the file has come to be since the last call.
  [[nodiscard]] bool take_file() {
    std::error_code ignored;
    if (config_.file.empty() || is_file_seen_) return false;
    is_file_seen_ = std::filesystem::exists(config_.file, ignored);
    return is_file_seen_;
  }

 private:
  PreemptionConfig config_;
  bool is_file_seen_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
