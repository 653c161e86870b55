// SPDX-License-Identifier: MIT
// Which checkpoints have been read from the first to the last byte, and what was wrong with them. Checkpoint room.
#pragma once

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/input_file.hpp"

#include "railyard/core/error.hpp"

#include <map>
#include <memory>
#include <string>

namespace railyard::inline v0_1 {
namespace detail {

/// Reads each checkpoint once, however often it is asked about: they may be large, and do not change.
class SeenCheckpoints {
 public:
  /// Returns what is wrong with its content; empty if nothing is. Throws: RemovedError if it is gone meanwhile, Error
  /// if it may be whole, but cannot be opened.
  [[nodiscard]] std::string fault_of(const Checkpoint& checkpoint, const std::shared_ptr<Files>& files) {
    const std::string& id = checkpoint.manifest().id;
    const auto known = faults_.find(id);
    return known == faults_.end() ? faults_[id] = look_at(checkpoint, files) : known->second;
  }

 private:
  [[nodiscard]] std::string look_at(const Checkpoint& checkpoint, const std::shared_ptr<Files>& files) {
    try {
      Checkpoint::open(checkpoint.path(), files).verify();  // open, so that nobody removes it meanwhile
      return {};
    } catch (const RemovedError&) {
      throw;
    } catch (const DataError& error) {
      return error.what();
    }
  }

  std::map<std::string, std::string> faults_{};  // by id
};

}  // namespace detail
}  // namespace railyard::inline v0_1
