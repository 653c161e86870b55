// SPDX-License-Identifier: MIT
// Cuts a stream of bytes into whole lines. Workers room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps the beginning of a line until its end comes. A line longer than max_bytes is handed on in pieces of that size,
/// so that output without line feeds cannot fill the memory.
class LineSplitter {
 public:
  static constexpr std::size_t max_bytes = 64U << 10U;

  /// Calls sink with every line that is complete now, without its line feed.
  template <class Sink>
  void append(std::string_view bytes, Sink&& sink) {
    while (!bytes.empty()) {
      const std::size_t room = max_bytes - partial_.size();
      const std::size_t end = bytes.substr(0, room + 1).find('\n');
      const std::size_t taken = end != std::string_view::npos ? end : std::min(room, bytes.size());
      partial_.append(bytes.substr(0, taken));
      bytes.remove_prefix(end != std::string_view::npos ? taken + 1 : taken);
      const bool is_cut = end == std::string_view::npos && !bytes.empty();
      if (end != std::string_view::npos || is_cut) sink(std::exchange(partial_, {}));
    }
  }

  /// Calls sink with the last line if it has no line feed.
  template <class Sink>
  void finish(Sink&& sink) {
    if (!partial_.empty()) sink(std::exchange(partial_, {}));
  }

 private:
  std::string partial_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
