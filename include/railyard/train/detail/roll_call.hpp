// SPDX-License-Identifier: MIT
// What the ranks of an attempt have told of themselves. Train room.
#pragma once

#include "railyard/train/step_times.hpp"

#include "railyard/core/detail/system.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Knows where each rank is, which ones have started and left in order, and where the time of their steps has gone.
class RollCall {
 public:
  explicit RollCall(int num_workers) { begin_attempt(num_workers); }

  /// So many workers begin. They are where those before were, or here, until they tell.
  void begin_attempt(int num_workers) {
    hosts_.resize(static_cast<std::size_t>(num_workers), host_name());
    step_times_.assign(static_cast<std::size_t>(num_workers), {});
    num_started_ = num_left_ = 0;
  }

  /// Returns whether all have started by that.
  bool note_start(int rank, std::string host) {
    hosts_[static_cast<std::size_t>(rank)] = std::move(host);
    return ++num_started_ == static_cast<int>(hosts_.size());
  }
  void note_left() noexcept { ++num_left_; }
  void note_step_times(int rank, const StepTimes& times) { step_times_[static_cast<std::size_t>(rank)] = times; }

  [[nodiscard]] const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool has_any_left() const noexcept { return num_left_ > 0; }
  [[nodiscard]] bool have_all_left() const noexcept { return num_left_ == static_cast<int>(hosts_.size()); }
  [[nodiscard]] std::vector<StepTimes> take_step_times() noexcept { return std::move(step_times_); }

 private:
  std::vector<std::string> hosts_{};
  std::vector<StepTimes> step_times_{};
  int num_started_ = 0;
  int num_left_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
