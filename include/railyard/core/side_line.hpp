// SPDX-License-Identifier: MIT
// What a backend offers that can sum values beside its operations. Core room.
#pragma once

#include "railyard/core/backend.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/core/reduce_op.hpp"

#include <string_view>

namespace railyard::inline v0_1 {

/// Is a second line of operations of a group, for one other thread of each rank: they are matched among themselves, in
/// whatever order they come among the backend's own.
class SideLine {
 public:
  SideLine() = default;
  SideLine(const SideLine&) = delete;
  SideLine& operator=(const SideLine&) = delete;
  virtual ~SideLine() = default;

  /// See Backend. Throws: CollectiveError as every collective does.
  virtual void all_reduce(Buffer data, ReduceOp op, const Call& call) = 0;
  /// Ends the waits of this rank, and tells the others. From any thread.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace railyard::inline v0_1
