// SPDX-License-Identifier: MIT
// What a process manager says by PMI, version 1: lines of fields. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one line, such as "cmd=get_result rc=0 msg=success value=0a1b": names and values, with blanks between them.
class PmiLine {
 public:
  explicit PmiLine(std::string text) : text_(std::move(text)) {}

  /// Returns the value of the first field of that name; nothing if there is none.
  [[nodiscard]] std::optional<std::string_view> field(std::string_view name) const noexcept {
    for (std::string_view rest = text_; !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find(' '));
      if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=') {
        return one.substr(name.size() + 1);
      }
      rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    }
    return {};
  }
  [[nodiscard]] bool is(std::string_view command) const noexcept { return field("cmd") == command; }
  /// Did what was asked for succeed, as far as the line says?
  [[nodiscard]] bool succeeded() const noexcept { return field("rc").value_or("0") == "0"; }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  /// The text as messages show it.
  [[nodiscard]] std::string_view beginning() const noexcept { return std::string_view{text_}.substr(0, 100); }

 private:
  std::string text_;
};

/// Puts lines together out of what is received in pieces. What comes is not trusted: a line is of printable characters
/// of ASCII, and of a bounded size.
class PmiLineReader {
 public:
  static constexpr std::size_t most_bytes = 4096;  ///< of a line with its end

  /// Where the next bytes go; never empty.
  [[nodiscard]] std::span<std::byte> room() noexcept {
    return std::as_writable_bytes(std::span{buffer_}).subspan(filled_);
  }
  /// Takes so many bytes of the room, and returns a line if one is complete; next() has those behind it.
  /// Throws: DataError if this is no line.
  [[nodiscard]] std::optional<PmiLine> take(std::size_t count) {
    filled_ += count;
    return next();
  }
  [[nodiscard]] std::optional<PmiLine> next() {
    const std::string_view received{buffer_, filled_};
    const std::size_t end = received.find('\n');
    const std::string_view line = received.substr(0, end);
    for (const char letter : line) {
      if (letter < ' ' || letter > '~') {
        throw DataError{compose("a line of PMI has a byte of value {}, and is of printable characters only",
                                static_cast<int>(static_cast<unsigned char>(letter)))};
      }
    }
    if (end == std::string_view::npos) {
      if (filled_ < most_bytes) return {};
      throw DataError{compose("a line of PMI is longer than {} bytes", most_bytes)};
    }
    PmiLine one{std::string{line}};
    std::copy(buffer_ + end + 1, buffer_ + filled_, buffer_);
    filled_ -= end + 1;
    return one;
  }

 private:
  char buffer_[most_bytes] = {};
  std::size_t filled_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
