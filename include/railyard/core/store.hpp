// SPDX-License-Identifier: MIT
// The place where workers leave small values for each other before they are connected. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {

/// Says that a key has been set before.
class KeyTakenError : public Error {
 public:
  using Error::Error;
};

/// Holds small values by key for all workers of one group. A key is set once and then never changes.
///
/// Laws: a value is complete as soon as it can be seen; whoever dies in the middle of a call leaves the store usable;
/// all members may be called from any thread of any worker.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// Leaves value, arbitrary bytes, under key. Throws: KeyTakenError; Error if the store is full.
  virtual void set(std::string_view key, std::string_view value) = 0;

  /// Waits until the key is there and returns its value, or nothing at the deadline.
  [[nodiscard]] virtual std::optional<std::string> get(std::string_view key, const Deadline& deadline) = 0;

  /// Says which keys will be asked for, so that a store far away sends their values as soon as they are there.
  virtual void expect(const std::vector<std::string>& keys) { static_cast<void>(keys); }

  /// Takes a file in memory that serves the same rank of a later start as well, which then finds its pages there: what
  /// it holds means nothing, and nobody else has it mapped. No descriptor if there is none, or it was taken before.
  [[nodiscard]] virtual detail::Descriptor take_memory() { return {}; }

  /// Whether all who use it are threads of one process: then what one leaves for the others may be an address.
  [[nodiscard]] virtual bool joins_threads() const noexcept { return false; }
};

}  // namespace railyard::inline v0_1
