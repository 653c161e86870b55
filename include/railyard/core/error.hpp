// SPDX-License-Identifier: MIT
// The one hierarchy of errors, divided by what the caller can do about them. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is the root of everything the library throws. A message says what happened, where, with which values, and what to
/// do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says that a call or a setting is wrong. Thrown before anything is started or sent; the remedy is in the message.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Says that input data is damaged or not what was promised; names file, line and column where there are any.
class DataError : public Error {
 public:
  using Error::Error;
};

/// Says that the group is lost: a collective could not be completed and no later one on this group can be.
class CollectiveError : public Error {
 public:
  /// operation: what was called, such as "all_reduce(sum, 8 x f32)". rank: who throws.
  /// blamed: the ranks that did not take part, empty where nobody can be named.
  CollectiveError(std::string operation, int rank, std::vector<int> blamed, const std::string& message)
      : Error(message), operation_(std::move(operation)), rank_(rank), blamed_(std::move(blamed)) {}

  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// The ranks that are to blame: they died, left, were too late, or called something else.
  [[nodiscard]] const std::vector<int>& blamed() const noexcept { return blamed_; }

 private:
  std::string operation_;
  int rank_;
  std::vector<int> blamed_;
};

/// Says that a process which an engine has started is gone, or the host it ran on: only the engine can bring it back.
class HostLostError : public Error {
 public:
  using Error::Error;
};

/// Carries the first failure of a run to whoever asked for an exception: see Result::value_or_throw().
class WorkerError : public Error {
 public:
  /// rank: the first rank that failed, -1 where the run failed outside of any worker.
  WorkerError(int rank, const std::string& message) : Error(message), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

}  // namespace railyard::inline v0_1
