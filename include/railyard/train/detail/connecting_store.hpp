// SPDX-License-Identifier: MIT
// A store whose waits end when the group does: it serves while a backend connects and cannot be aborted yet. Train
// room.
#pragma once

#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Passes everything on to another store, and waits there in slices.
class ConnectingStore final : public Store {
 public:
  ConnectingStore(Store& store, int rank) noexcept : store_(store), rank_(rank) {}

  void set(std::string_view key, std::string_view value) override { store_.set(key, value); }
  void expect(const std::vector<std::string>& keys) override { store_.expect(keys); }
  [[nodiscard]] Descriptor take_memory() override { return store_.take_memory(); }
  [[nodiscard]] bool joins_threads() const noexcept override { return store_.joins_threads(); }

  /// Throws: CollectiveError once the group is ending.
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override {
    for (;;) {
      if (is_aborted_.load(std::memory_order_acquire)) {
        throw CollectiveError{
            "connect",
            rank_,
            {},
            compose("connect on rank {}: the group was ended while it came to be: {}", rank_, reason_)};
      }
      constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{50};
      const auto look = times_.look(deadline);
      if (auto value = store_.get(key, Deadline::after(std::min(look.until_next, slice)))) return value;
      if (look.is_over) return std::nullopt;
    }
  }

  void abort(std::string_view reason) {
    reason_ = reason;
    is_aborted_.store(true, std::memory_order_release);
  }

 private:
  Store& store_;
  int rank_;
  CommonAwakeTime times_{};
  std::string reason_{};  // written once, before is_aborted_
  std::atomic<bool> is_aborted_{false};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
