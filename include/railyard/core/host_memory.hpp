// SPDX-License-Identifier: MIT
// What a backend offers whose ranks see each other's memory. Core room.
#pragma once

#include "railyard/core/buffer.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/heap.hpp"

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {

/// Says what an exchange is for, which all ranks must say alike before one reads what another has shown.
enum class Purpose : std::uint8_t {
  gradients,  ///< of a backward pass
  weights,    ///< are shared by an optimizer
  update,     ///< of shared weights
};

/// Is the memory that the ranks of one host share, for whoever can do more with it than a backend's operations: read
/// the others' values where they lie, and write to them. Used by one thread at a time, and counted among the operations
/// of the backend: all ranks do the same in the same order. Where the group spans several hosts, each of them has such
/// memory, with equally many ranks, which count from 0 on each host, and one line to those that have their number on
/// the other hosts.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  virtual ~HostMemory() = default;

  /// This rank among those of its host, and how many they are.
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// This host among those of the group, and how many they are. The group's ranks are those of host 0, then of host 1.
  [[nodiscard]] virtual int host() const noexcept = 0;
  [[nodiscard]] virtual int num_hosts() const noexcept = 0;
  /// Adds up, in the order of hosts, what this rank and those with its number on the other hosts have; all of them get
  /// the same bits. Not for memory that another rank of this host may write to meanwhile.
  /// Throws: CollectiveError as every collective does.
  virtual void add_between_hosts(const Buffer& data, const Deadline& deadline) = 0;
  /// Begins to do so, while the caller may do what is no exchange and no operation; the future ends it.
  [[nodiscard]] virtual std::future<void> begin_between_hosts(const Buffer& data, const Deadline& deadline) = 0;

  /// The most bytes that one record may have.
  static constexpr std::size_t max_record_bytes = std::size_t{16} << 10U;

  /// Begins an exchange of num_steps steps: shows a record and waits until all ranks have shown theirs. From here to
  /// the last step all ranks may read and write what the others have shown the places of. Each step has the deadline's
  /// whole budget.
  /// Throws: CollectiveError as every collective does, also where ranks differ in the purpose.
  virtual void begin(Purpose purpose, std::span<const std::byte> record, int num_steps, const Deadline& deadline) = 0;
  /// Says that the exchange has one more step than begin() was told. All ranks say so between the same two steps.
  virtual void add_step() noexcept = 0;
  /// Takes one more step of the exchange: shows another record, which may be empty, and waits for all. What a rank has
  /// written before, all see after.
  virtual void step(std::span<const std::byte> record) = 0;
  /// Says that this rank leaves the others' memory alone until its next step: whoever gives up meanwhile need not wait
  /// for it.
  virtual void rest() noexcept = 0;
  /// What a rank has shown in the last step; valid until the next one.
  [[nodiscard]] virtual std::span<const std::byte> record_of(int rank) const = 0;

  /// Names memory of this rank to the others; 0 if they cannot see it.
  [[nodiscard]] virtual std::uint64_t place_of(const void* memory) const noexcept = 0;
  /// Where this rank sees memory that another one has named, which is not 0.
  [[nodiscard]] virtual std::byte* at(int rank, std::uint64_t place) const noexcept = 0;

  /// Gives out memory that all ranks see.
  [[nodiscard]] virtual const std::shared_ptr<detail::Heap>& heap() const noexcept = 0;

  /// A second line of exchanges through the same memory, for one other thread of each rank: its steps are counted apart
  /// from the backend's operations. nullptr if this is it. All ranks call it: the first call connects the line to other
  /// hosts, which costs some milliseconds, and one thread from then on. Throws: CollectiveError if that fails.
  [[nodiscard]] virtual HostMemory* side(const Deadline& deadline) = 0;
  /// Gives up, from any thread: ends every wait of this rank in any line, and of those who wait for it.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// After abort(): returns once no other rank is at what this one has shown in the exchange under way.
  virtual void withdraw() noexcept = 0;
};

}  // namespace railyard::inline v0_1
