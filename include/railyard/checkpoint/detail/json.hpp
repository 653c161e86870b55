// SPDX-License-Identifier: MIT
// Reads JSON that may come from anywhere, with bounds and without loss. Checkpoint room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/json_text.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says what is wrong with the content of a file whose name is known further up.
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void throw_damaged(const std::filesystem::path& file, std::string_view what) {
  throw DataError{
      compose("{}: {}; take another checkpoint, or copy this one anew from where it is whole", file.string(), what)};
}

/// Calls read and names the file if its content is damaged.
template <class Read>
auto reading(const std::filesystem::path& file, const Read& read) {
  try {
    return read();
  } catch (const Damage& damage) {
    throw_damaged(file, damage.what());
  }
}

/// Is a value of JSON. Numbers stay text until somebody says what they are.
class Json {
 public:
  enum class Kind { null, boolean, number, text, array, object };

  explicit Json(Kind kind = Kind::null, std::string text = {}) : kind_(kind), text_(std::move(text)) {}

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] bool boolean() const { return expect(Kind::boolean, "true or false").text_ == "true"; }
  [[nodiscard]] const std::string& text() const { return expect(Kind::text, "text").text_; }
  [[nodiscard]] const std::string& number() const { return expect(Kind::number, "a number").text_; }
  [[nodiscard]] const std::vector<Json>& array() const { return expect(Kind::array, "a list").items_; }
  /// The names of an object's values, and the values in the same order.
  [[nodiscard]] const std::vector<std::string>& names() const { return expect(Kind::object, "an object").names_; }
  [[nodiscard]] const std::vector<Json>& items() const { return expect(Kind::object, "an object").items_; }

  [[nodiscard]] const Json* find(std::string_view name) const {
    const auto at = std::find(names().begin(), names().end(), name);
    return at == names_.end() ? nullptr : &items_[static_cast<std::size_t>(at - names_.begin())];
  }
  [[nodiscard]] const Json& at(std::string_view name) const {
    if (const Json* value = find(name)) return *value;
    throw Damage{compose("\"{}\" is missing", name)};
  }

  /// The number, which must be one that a T can hold.
  template <class T>
  [[nodiscard]] T as() const {
    T value{};
    const char* end = number().data() + text_.size();
    const auto [stopped, error] = std::from_chars(text_.data(), end, value);
    if (error != std::errc{} || stopped != end) throw Damage{compose("{} is no number that fits here", text_)};
    return value;
  }

 private:
  friend class JsonParser;

  const Json& expect(Kind kind, std::string_view what) const {
    if (kind_ != kind) throw Damage{compose("something else stands where {} should be", what)};
    return *this;
  }

  Kind kind_;
  std::string text_;
  std::vector<Json> items_{};
  std::vector<std::string> names_{};
};

/// Reads the text of one JSON value (RFC 8259).
class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  [[nodiscard]] Json parse() {
    Json json = value(0);
    skip_space();
    if (at_ != text_.size()) refuse("the end is expected");
    return json;
  }

 private:
  static constexpr std::size_t max_depth = 16;  // each level is a call within a call
  static constexpr std::size_t max_values = std::size_t{1} << 20U;

  [[noreturn]] void refuse(std::string_view why) const {
    throw Damage{compose("it is no JSON at byte {}: {}", at_, why)};
  }

  [[nodiscard]] char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view what) noexcept {
    const bool is_there = text_.substr(at_).starts_with(what);
    if (is_there) at_ += what.size();
    return is_there;
  }
  void skip_space() noexcept { at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size()); }

  Json value(std::size_t depth) {
    if (++num_values_ > max_values) refuse(compose("there are more than {} values", max_values));
    if (depth > max_depth) refuse(compose("it is nested more than {} levels deep", max_depth));
    skip_space();
    if (take("{")) return object(depth);
    if (take("[")) return array(depth);
    if (take("true")) return Json{Json::Kind::boolean, "true"};
    if (take("false")) return Json{Json::Kind::boolean, "false"};
    if (take("null")) return Json{};
    if (peek() == '"') return Json{Json::Kind::text, quoted()};
    return Json{Json::Kind::number, number()};
  }

  Json array(std::size_t depth) {
    Json json{Json::Kind::array};
    skip_space();
    if (take("]")) return json;
    do {
      json.items_.push_back(value(depth + 1));
      skip_space();
    } while (take(","));
    if (!take("]")) refuse("',' or ']' is expected");
    return json;
  }

  Json object(std::size_t depth) {
    Json json{Json::Kind::object};
    skip_space();
    if (take("}")) return json;
    do {
      skip_space();
      json.names_.push_back(quoted());
      skip_space();
      if (!take(":")) refuse("':' is expected");
      json.items_.push_back(value(depth + 1));
      skip_space();
    } while (take(","));
    if (!take("}")) refuse("',' or '}' is expected");
    std::vector<std::string_view> names{json.names_.begin(), json.names_.end()};
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) throw Damage{compose("the name \"{}\" is there twice", *twice)};
    return json;
  }

  std::string quoted() {
    if (!take("\"")) refuse("a value or a name is expected");
    std::string text;
    while (!take("\"")) {
      if (at_ == text_.size()) refuse("a text does not end");
      if (take("\\")) {
        append_escaped(text);
        continue;
      }
      const std::size_t length = utf8_length(text_.substr(at_));
      if (length == 0 || static_cast<unsigned char>(peek()) < 0x20) refuse("this cannot be in a text");
      text += text_.substr(at_, length);
      at_ += length;
    }
    return text;
  }

  void append_escaped(std::string& text) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char letter = peek();
    if (take("u")) return append_code_point(text);
    const auto which = letters.find(letter);
    if (letter == '\0' || which == std::string_view::npos) refuse("there is no such escape");
    text += meanings[which];
    ++at_;
  }

  void append_code_point(std::string& text) {
    std::uint32_t code = code_unit();
    const bool is_high = code >= 0xD800 && code < 0xDC00;
    if (is_high && take("\\u")) {
      const std::uint32_t low = code_unit();
      if (low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair stands alone");
      code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
    } else if (code >= 0xD800 && code <= 0xDFFF) {
      refuse("half of a surrogate pair stands alone");
    }
    append_utf8(text, code);
  }

  std::uint32_t code_unit() {
    std::uint32_t code = 0;
    const auto digits = text_.substr(at_, 4);
    const auto [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc{} || stopped != digits.data() + 4) refuse("four digits are expected");
    at_ += 4;
    return code;
  }

  std::string number() {
    const std::size_t begin = at_;
    take("-");
    if (!take("0")) skip_digits();
    if (take(".")) skip_digits();
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      skip_digits();
    }
    return std::string{text_.substr(begin, at_ - begin)};
  }
  void skip_digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == begin) refuse("a value is expected");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t num_values_ = 0;
};

/// Throws: Damage.
[[nodiscard]] inline Json parse_json(std::string_view text) { return JsonParser{text}.parse(); }

[[nodiscard]] inline bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
