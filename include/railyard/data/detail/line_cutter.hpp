// SPDX-License-Identifier: MIT
// Cuts text into lines. Data room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Finds the lines of a text; they end with LF or CRLF.
class LineCutter {
 public:
  /// has_blank_lines: whether a line with nothing on it is one.
  explicit LineCutter(bool has_blank_lines) noexcept : has_blank_lines_(has_blank_lines) {}

  /// Cuts the text into its whole lines and returns how many characters they take.
  std::size_t cut(const char* text, std::size_t size) {
    text_ = text;
    lines_.clear();
    std::size_t begin = 0;
    while (begin < size) {
      const void* const found = std::memchr(text + begin, '\n', size - begin);
      if (found == nullptr) break;
      const auto end = static_cast<std::size_t>(static_cast<const char*>(found) - text);
      const std::size_t length = end - begin;
      const bool is_blank = length == 0 || (length == 1 && text[begin] == '\r');
      if (has_blank_lines_ || !is_blank) lines_.push_back({begin, end + 1});
      begin = end + 1;
    }
    return begin;
  }

  [[nodiscard]] std::size_t lines() const noexcept { return lines_.size(); }
  [[nodiscard]] std::size_t begin(std::size_t line) const noexcept { return lines_[line].begin; }
  /// Behind the line feed.
  [[nodiscard]] std::size_t end(std::size_t line) const noexcept { return lines_[line].end; }
  /// The line without what ends it.
  [[nodiscard]] std::string_view line(std::size_t line) const noexcept {
    std::string_view text{text_ + lines_[line].begin, lines_[line].end - lines_[line].begin - 1};
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    return text;
  }

 private:
  struct Line {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  bool has_blank_lines_;
  const char* text_ = nullptr;
  std::vector<Line> lines_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
