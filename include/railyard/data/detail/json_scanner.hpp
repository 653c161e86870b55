// SPDX-License-Identifier: MIT
// Steps through JSON text (RFC 8259) without a tree of it. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/json_text.hpp"
#include "railyard/core/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Says what is wrong with a line of JSON.
class JsonFault : public DataError {
 public:
  using DataError::DataError;
};

/// Names what a value of JSON is by how it begins.
enum class JsonKind : std::uint8_t { object, array, text, number, boolean, null };
/// As messages show it.
[[nodiscard]] constexpr std::string_view shown_kind(JsonKind kind) noexcept {
  constexpr std::array<std::string_view, 6> names{"an object", "an array", "a text", "a number", "a truth", "null"};
  return names[static_cast<std::size_t>(kind)];
}

/// Is at a place of a text and reads what comes next. Throws: JsonFault that names the byte of the text.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) noexcept : text_(text) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw JsonFault{compose("byte {} of the line: {}", at_ + 1, what)};
  }

  /// Returns the next character that is no blank, or NUL at the end.
  char peek() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  /// Steps over the character if it is next.
  bool take(char wanted) noexcept {
    if (peek() != wanted || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) fail(compose("\"{}\" is missing", std::string_view{&wanted, 1}));
  }
  void expect_end() {
    peek();
    if (at_ < text_.size()) fail("more text follows the object");
  }

  [[nodiscard]] JsonKind kind() {
    switch (peek()) {
      case '{':
        return JsonKind::object;
      case '[':
        return JsonKind::array;
      case '"':
        return JsonKind::text;
      case 't':
      case 'f':
        return JsonKind::boolean;
      case 'n':
        return JsonKind::null;
      default:
        return JsonKind::number;
    }
  }

  void read_text(std::string& out) {
    out.clear();
    expect('"');
    while (true) {
      if (at_ == text_.size()) fail("a text does not end");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a text: escape it");
      ++at_;
      if (c == '"') return;
      if (c == '\\')
        read_escape(out);
      else
        out += c;
    }
  }
  [[nodiscard]] bool read_boolean() {
    const bool value = peek() == 't';
    read_word(value ? "true" : "false");
    return value;
  }
  void read_null() { read_word("null"); }

  /// Returns the characters of a number. NaN and infinities are no JSON, and yet what many programs write.
  [[nodiscard]] std::string_view read_number() {
    peek();
    const std::size_t begin = at_;
    take_char('-');
    for (const std::string_view word : {"NaN", "Infinity"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return text_.substr(begin, at_ - begin);
    }
    const bool is_zero = take_char('0');
    if (!is_zero && take_digits() == 0) fail("there is no value");
    if (take_char('.') && take_digits() == 0) fail("a number ends with its point");
    if (take_char('e') || take_char('E')) {
      if (!take_char('-')) take_char('+');
      if (take_digits() == 0) fail("a number has no exponent behind its e");
    }
    return text_.substr(begin, at_ - begin);
  }

  /// Steps over a value of any kind.
  void skip_value(std::size_t depth = 0) {
    check_depth(depth);
    std::string unused;
    switch (kind()) {
      case JsonKind::object:
        read_object([&](const std::string&) { skip_value(depth + 1); });
        break;
      case JsonKind::array:
        read_array([&] { skip_value(depth + 1); });
        break;
      case JsonKind::text:
        read_text(unused);
        break;
      case JsonKind::boolean:
        (void)read_boolean();
        break;
      case JsonKind::null:
        read_null();
        break;
      case JsonKind::number:
        (void)read_number();
        break;
    }
  }
  void check_depth(std::size_t depth) const {
    constexpr std::size_t most = 64;
    if (depth > most) fail(compose("values lie more than {} deep in each other", most));
  }

  /// Calls read_value for each key; it reads the value that follows.
  template <class ReadValue>
  void read_object(ReadValue&& read_value) {
    expect('{');
    if (take('}')) return;
    std::string key;
    do {
      peek();
      read_text(key);
      expect(':');
      read_value(key);
    } while (take(','));
    expect('}');
  }
  /// Calls read_value for each element, which it reads.
  template <class ReadValue>
  void read_array(ReadValue&& read_value) {
    expect('[');
    if (take(']')) return;
    do {
      read_value();
    } while (take(','));
    expect(']');
  }

 private:
  bool take_char(char wanted) noexcept {
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  std::size_t take_digits() noexcept {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ - begin;
  }
  void read_word(std::string_view word) {
    peek();
    if (!text_.substr(at_).starts_with(word)) fail("there is no value");
    at_ += word.size();
  }

  void read_escape(std::string& out) {
    constexpr std::string_view names = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char name = at_ < text_.size() ? text_[at_] : '\0';
    if (name == 'u') {
      ++at_;
      append_utf8(out, read_code());
      return;
    }
    const std::size_t found = names.find(name);
    if (found == std::string_view::npos) fail("an escape that JSON does not have");
    ++at_;
    out += meanings[found];
  }
  // Beyond 65535 a character is written as two halves.
  [[nodiscard]] std::uint32_t read_code() {
    const std::uint32_t first = read_hex();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first < 0xDC00 && take_char('\\') && take_char('u')) {
      const std::uint32_t second = read_hex();
      if (second >= 0xDC00 && second <= 0xDFFF) return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
    fail("half of a surrogate pair");
  }
  [[nodiscard]] std::uint32_t read_hex() {
    std::uint32_t code = 0;
    for (int digit = 0; digit < 4; ++digit) {
      constexpr std::string_view digits = "0123456789abcdefABCDEF";
      const std::size_t value = at_ < text_.size() ? digits.find(text_[at_]) : std::string_view::npos;
      if (value == std::string_view::npos) fail("\\u without four hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(value < 16 ? value : value - 6);
      ++at_;
    }
    return code;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
