// SPDX-License-Identifier: MIT
// Tells what announces that the machine of a run will be taken away. Train room.
#pragma once

#include "railyard/train/detail/heartbeat.hpp"
#include "railyard/train/preemption_config.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Knows the settings, and whether the file has been seen.
class PreemptionNotice {
 public:
  explicit PreemptionNotice(PreemptionConfig config)
      : config_(std::move(config)), file_(std::make_shared<File>(config_.file)) {}

  [[nodiscard]] bool is_announced_by(int signal) const {
    return std::find(config_.signals.begin(), config_.signals.end(), signal) != config_.signals.end();
  }
  /// Whether a signal is about the run: SIGUSR1 and SIGUSR2 are the program's own where they announce nothing.
  [[nodiscard]] bool concerns_run(int signal) const { return !is_users_own(signal) || is_announced_by(signal); }

  /// How often to ask for the file.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return config_.file.empty() ? std::chrono::nanoseconds{std::chrono::hours{1}} : look_interval;
  }
  /// Whether the file has come to be since the last call. Storage that does not answer holds up nobody, once look_out()
  /// has been called.
  [[nodiscard]] bool take_file() {
    if (config_.file.empty() || is_file_taken_) return false;
    if (!lookout_) file_->look();
    is_file_taken_ = file_->is_there.load(std::memory_order_relaxed);
    return is_file_taken_;
  }

  /// Looks for the file on a thread of its own from now on. Returns what there is to be said if there is no thread for
  /// it.
  [[nodiscard]] std::string look_out() {
    if (config_.file.empty() || lookout_) return {};
    try {
      lookout_ = std::make_unique<Heartbeat>([file = file_] { file->look(); }, look_interval);
      lookout_->beat_now(Deadline::after(std::chrono::nanoseconds{0}));
      return {};
    } catch (const std::system_error& error) {
      return compose("{} is looked for between other work, which waits where its storage does not answer: {}",
                     config_.file.string(), error.what());
    }
  }
  /// Does so no more until it is asked to again: see RunLease.
  void pause() { lookout_.reset(); }

 private:
  static constexpr std::chrono::nanoseconds look_interval = std::chrono::milliseconds{500};

  // May be looked for when all else is over: see Heartbeat.
  struct File {
    explicit File(std::filesystem::path its_path) : path(std::move(its_path)) {}

    void look() {
      std::error_code ignored;
      if (std::filesystem::exists(path, ignored)) is_there.store(true, std::memory_order_relaxed);
    }

    std::filesystem::path path;
    std::atomic<bool> is_there{false};
  };

  PreemptionConfig config_;
  std::shared_ptr<File> file_;
  bool is_file_taken_ = false;
  std::unique_ptr<Heartbeat> lookout_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
