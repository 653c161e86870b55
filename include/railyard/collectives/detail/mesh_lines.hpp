// SPDX-License-Identifier: MIT
// What messages between any two ranks of a group go through. Collectives room.
#pragma once

#include "railyard/core/deadline.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace railyard::inline v0_1 {
namespace detail {

/// Connects a rank with all others. A message goes from memory to memory under a slot, which both ends name with the
/// same size. One thread at a time uses it, but for close().
class MeshLines {
 public:
  using Time = Deadline::Clock::time_point;

  /// Is messages that are under way together, out of one piece of memory and into one.
  class Transfer {
   public:
    Transfer() = default;
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    virtual ~Transfer() = default;

    /// Post a message, and do not wait for it. Throw: std::exception if the line is lost.
    virtual void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) = 0;
    virtual void receive(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) = 0;

    /// Waits until all that was posted is done: what was to be received has come, and for what was to be sent the other
    /// end has posted its receive. Returns false at `wake`. Throws: std::exception if a line is lost.
    [[nodiscard]] virtual bool wait(Time wake) = 0;
  };

  MeshLines() = default;
  MeshLines(const MeshLines&) = delete;
  MeshLines& operator=(const MeshLines&) = delete;
  virtual ~MeshLines() = default;

  [[nodiscard]] virtual std::unique_ptr<Transfer> start(const void* from, std::size_t from_bytes, void* to,
                                                        std::size_t to_bytes) = 0;
  /// Has the line to a rank ended?
  [[nodiscard]] virtual bool is_closed(int rank) = 0;
  /// Ends all lines, and wakes whoever waits. May be called from any thread.
  virtual void close() noexcept = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
