// SPDX-License-Identifier: MIT
// Which records of a piece of text are damaged, and why one of them is. Data room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Collects the damaged records of one piece of text.
class RecordFaults {
 public:
  RecordFaults() = default;
  /// Keeps the text of the first damaged record that is not before this one.
  explicit RecordFaults(std::size_t from) : from_(from) {}

  /// make_message is asked for a text only where it may be needed.
  template <class MakeMessage>
  void add(std::size_t record, MakeMessage&& make_message) {
    if (record >= from_ && (!has_message_ || record < first_)) {
      first_ = record;
      message_ = make_message();
      has_message_ = true;
    }
    records_.push_back(record);
  }

  /// Returns one without records that keeps a text of the same ones.
  [[nodiscard]] RecordFaults alike() const { return RecordFaults{from_}; }
  [[nodiscard]] bool empty() const noexcept { return records_.empty(); }
  /// Ascending, each once.
  [[nodiscard]] const std::vector<std::size_t>& records() {
    std::sort(records_.begin(), records_.end());
    records_.erase(std::unique(records_.begin(), records_.end()), records_.end());
    return records_;
  }
  /// The one that message() is of.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

 private:
  std::vector<std::size_t> records_{};
  std::size_t from_ = 0;
  std::size_t first_ = 0;
  bool has_message_ = false;
  std::string message_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
