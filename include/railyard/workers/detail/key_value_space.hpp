// SPDX-License-Identifier: MIT
// The texts that a launcher passes between the processes it has started. Workers room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/error.hpp"

#include <optional>
#include <string>

namespace railyard::inline v0_1 {
namespace detail {

/// Says that a launcher's own space of keys and values cannot be had, or is lost.
class SpaceError : public Error {
 public:
  using Error::Error;
};

/// Is what a launcher offers for the processes of a job to find each other: each puts texts there, and after a fence,
/// to which all have to come, each may read what all have put. Only the processes of the job and their launcher see it.
/// Each function throws SpaceError if the launcher is lost, talks nonsense, or does not answer by the deadline.
class KeyValueSpace {
 public:
  KeyValueSpace() = default;
  KeyValueSpace(const KeyValueSpace&) = delete;
  KeyValueSpace& operator=(const KeyValueSpace&) = delete;
  virtual ~KeyValueSpace() = default;

  /// Puts a value, which others see after the next fence. Both are of letters, digits and "-", the key of at most 63
  /// and the value of at most 1000 bytes: so much goes through every launcher.
  virtual void put(const std::string& key, const std::string& value, const Deadline& deadline) = 0;
  /// Says that this process has come to the fence, and does not wait for the others.
  virtual void come_to_fence(const Deadline& deadline) = 0;
  /// Returns false if not all have come by the deadline; then it may be called again.
  [[nodiscard]] virtual bool wait_at_fence(const Deadline& deadline) = 0;
  /// Returns what a process has put; nothing if it has not.
  [[nodiscard]] virtual std::optional<std::string> get(int process, const std::string& key,
                                                       const Deadline& deadline) = 0;
  /// Tells the launcher that the space is not needed any more. Done only once, and nothing else after it: a process
  /// that has left may end as any other.
  virtual void leave() noexcept = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
