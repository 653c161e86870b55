// SPDX-License-Identifier: MIT
// What a backend offers that can combine values on a device while the device computes. Core room.
#pragma once

#include "railyard/core/backend.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/reduce_op.hpp"

#include <cstddef>
#include <string_view>

namespace railyard::inline v0_1 {

/// Is a second line of operations of a group, on a stream of its own of each rank's device, which the host puts there
/// and does not wait for. They are matched among themselves, in whatever order they come among the backend's own. Used
/// by one thread at a time, but for abort().
///
/// Each of them begins when the device has done what was on Call::stream before. Whatever goes on with the buffers
/// comes after join().
class DeviceLine {
 public:
  static constexpr std::size_t most_ahead = 4;

  DeviceLine() = default;
  DeviceLine(const DeviceLine&) = delete;
  DeviceLine& operator=(const DeviceLine&) = delete;
  virtual ~DeviceLine() = default;

  /// See Backend. Throws: CollectiveError if the group is lost.
  virtual void all_reduce(Buffer data, ReduceOp op, const Call& call) = 0;
  virtual void reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) = 0;
  virtual void all_gather(ConstBuffer in, Buffer out, const Call& call) = 0;
  /// Makes what is put on a stream from here on wait for all operations so far. The host waits for none of them, but
  /// where it is most_ahead joins ahead of the device: that it never is, and so learns if the device stands still.
  /// Throws: CollectiveError if an operation never will be done.
  virtual void join(const Call& call) = 0;
  /// The host waits for all operations so far. Throws: CollectiveError if one of them never will be done.
  virtual void wait(const Deadline& deadline) = 0;

  /// Adds up numbers of the host, beside all that is on the device: where the ranks are of one host nothing waits for a
  /// device, or is put on it. Returns when it is done. Throws: CollectiveError as every collective does.
  virtual void add_on_host(Buffer numbers, const Call& call) = 0;

  /// Ends the waits of this rank and what is on its device, and tells the others. From any thread.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace railyard::inline v0_1
