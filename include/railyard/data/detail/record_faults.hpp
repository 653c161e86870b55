// SPDX-License-Identifier: MIT
// Which records of a piece of text are damaged, and why the first one is. Data room.
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
  /// make_message is asked for a text only where it may be needed.
  template <class MakeMessage>
  void add(std::size_t record, MakeMessage&& make_message) {
    if (records_.empty() || record < first_) {
      first_ = record;
      message_ = make_message();
    }
    records_.push_back(record);
  }

  [[nodiscard]] bool empty() const noexcept { return records_.empty(); }
  /// Ascending, each once.
  [[nodiscard]] const std::vector<std::size_t>& records() {
    std::sort(records_.begin(), records_.end());
    records_.erase(std::unique(records_.begin(), records_.end()), records_.end());
    return records_;
  }
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

 private:
  std::vector<std::size_t> records_{};
  std::size_t first_ = 0;
  std::string message_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
