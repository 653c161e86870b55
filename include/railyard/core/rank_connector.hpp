// SPDX-License-Identifier: MIT
// Connections between ranks that trust each other and nobody else, for backends to move values by. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Is a connection to another rank. Both ends have proven that they belong to the run. One thread at a time uses it,
/// but for hang_up(). What goes wrong is an Error that names the peer's address.
class RankLine {
 public:
  RankLine() = default;
  RankLine(const RankLine&) = delete;
  RankLine& operator=(const RankLine&) = delete;
  virtual ~RankLine() = default;

  /// Sends what the network takes at once, and returns how many bytes that were; 0 if it takes nothing now. Who was
  /// told so offers the same bytes again. Throws: Error if the line is lost.
  [[nodiscard]] virtual std::size_t send(const std::byte* bytes, std::size_t size) = 0;
  /// Takes what has come, and returns how many bytes that were; 0 if nothing is there now. Throws: Error if the line is
  /// lost or the other end has closed it.
  [[nodiscard]] virtual std::size_t receive(std::byte* bytes, std::size_t size) = 0;

  /// Can be waited for where send() or receive() has returned 0: for room to write, or for bytes to read.
  [[nodiscard]] virtual int fd() const noexcept = 0;
  /// Ends it: both ends see it as closed. May be called from any thread, and wakes whoever waits for fd().
  virtual void hang_up() noexcept = 0;
  [[nodiscard]] virtual const std::string& peer() const noexcept = 0;
};

/// Connects ranks.
class RankConnector {
 public:
  RankConnector() = default;
  RankConnector(const RankConnector&) = delete;
  RankConnector& operator=(const RankConnector&) = delete;
  virtual ~RankConnector() = default;

  /// Connects every rank of the world with every other one. Returns the lines by rank, nullptr for this rank. All of
  /// them call it, with the same group, which names no other group of theirs on this store.
  /// host: name or address of this host by which the others reach it.
  /// Throws: Error that says who cannot be reached, by which address, and why.
  [[nodiscard]] virtual std::vector<std::unique_ptr<RankLine>> connect(const World& world, Store& store,
                                                                       const std::string& group,
                                                                       const std::string& host,
                                                                       const Deadline& deadline) = 0;
  /// Is what goes between hosts to be encrypted? Then a backend with connections of its own is refused.
  [[nodiscard]] virtual bool encrypts() const noexcept { return false; }
};

}  // namespace railyard::inline v0_1
