// SPDX-License-Identifier: MIT
// A group for tests of what a supervisor does by itself.
#pragma once

#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Has workers that are not there, and no memory for what they have saved.
class PoorGroup final : public railyard::WorkerGroup {
 public:
  std::set<std::pair<int, int>> held{};

  [[nodiscard]] std::optional<railyard::GroupEvent> next(const railyard::Deadline& /*deadline*/) override {
    return std::nullopt;
  }
  void request_stop() override {}
  void request_leave() override {}
  void request_resize() override {}
  void abort(std::string_view /*reason*/) override {}
  void kill() override {}
  [[nodiscard]] bool can_kill() const noexcept override { return true; }
  [[nodiscard]] const railyard::WorkerPage& page(int /*rank*/) const override { throw std::logic_error{"no page"}; }
  [[nodiscard]] std::vector<std::string> stacks(const railyard::Deadline& /*deadline*/) override { return {}; }
  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int /*slot*/, std::size_t /*begin*/,
                                                    std::size_t /*size_bytes*/) override {
    if (rank == 1) throw railyard::Error{"a snapshot does not fit into memory"};
    return {bytes_};
  }
  void hold_snapshot(int rank, int slot) noexcept override { held.emplace(rank, slot); }
  void release_snapshot(int rank, int slot) noexcept override { held.erase({rank, slot}); }
  [[nodiscard]] bool shares_snapshots() const noexcept override { return true; }
  void restart(int /*num_workers*/, std::string_view /*briefing*/) override {}
  [[nodiscard]] bool forks_to_restart() const override { return false; }

 private:
  std::array<std::byte, 8> bytes_{};
};
