// SPDX-License-Identifier: MIT
// Writes JSON, and values in it so that they come back bit by bit. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/json.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/hexadecimal.hpp"
#include "railyard/core/detail/json_text.hpp"
#include "railyard/core/value.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Builds the text of one JSON object, lists in one line.
class JsonWriter {
 public:
  /// is_indented: for people; otherwise there is no white space at all.
  explicit JsonWriter(bool is_indented) : is_indented_(is_indented) { text_ += '{'; }

  /// Begins a member of the innermost object; its value follows.
  JsonWriter& name(std::string_view name) {
    separate();
    append_json_text(text_, name);
    text_ += is_indented_ ? ": " : ":";
    return *this;
  }
  void text(std::string_view text) { append_json_text(text_, text); }
  void raw(std::string_view value) { text_ += value; }

  void open() {
    text_ += '{';
    ++depth_;
    is_first_ = true;
  }
  void close() {
    --depth_;
    if (!is_first_) break_line();
    text_ += '}';
    is_first_ = false;
  }
  template <class Numbers>
  void list(const Numbers& numbers) {
    text_ += '[';
    std::string_view separator;
    for (const auto number : numbers) {
      text_ += compose("{}{}", separator, number);
      separator = is_indented_ ? ", " : ",";
    }
    text_ += ']';
  }

  /// Ends the object.
  [[nodiscard]] std::string finish() {
    close();
    return std::move(text_);
  }

 private:
  void separate() {
    if (!is_first_) text_ += ',';
    is_first_ = false;
    break_line();
  }
  void break_line() {
    if (is_indented_) text_.append(1, '\n').append(2 * depth_, ' ');
  }

  bool is_indented_;
  std::string text_{};
  std::size_t depth_ = 1;
  bool is_first_ = true;
};

// What JSON has no form for stands in an object of one name: {"f64": bits} and {"bytes": digits}, in hexadecimal.
inline void write_tagged(JsonWriter& writer, std::string_view tag, std::string_view text) {
  writer.open();
  writer.name(tag).text(text);
  writer.close();
}

inline void write_value(JsonWriter& writer, bool value) { writer.raw(value ? "true" : "false"); }
inline void write_value(JsonWriter& writer, std::int64_t value) { writer.raw(compose("{}", value)); }
inline void write_value(JsonWriter& writer, double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  constexpr std::uint64_t exponent = 0x7FF0'0000'0000'0000U;
  if ((bits & exponent) == exponent) return write_tagged(writer, "f64", compose("{:016x}", bits));
  std::string text = compose("{}", value);                          // the shortest that is read as the same bits
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // or it would come back as an integer
  writer.raw(text);
}
inline void write_value(JsonWriter& writer, const std::string& text) {
  if (is_utf8(text)) return writer.text(text);
  write_tagged(writer, "bytes", hexadecimal(std::as_bytes(std::span{text})));
}

inline void write_values(JsonWriter& writer, const NamedValues& values) {
  writer.open();
  for (const auto& [name, value] : values) {
    writer.name(name);
    value.visit([&writer](const auto& held) { write_value(writer, held); });
  }
  writer.close();
}

/// Reads digits, all of them, as one number. Throws: Damage.
template <class T>
[[nodiscard]] T read_hexadecimal(std::string_view digits) {
  T value{};
  const auto [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 2 * sizeof(T) || error != std::errc{} || stopped != digits.data() + digits.size()) {
    throw Damage{compose("\"{}\" is not made of {} hexadecimal digits", digits, 2 * sizeof(T))};
  }
  return value;
}

[[nodiscard]] inline std::string read_bytes(std::string_view digits) {
  std::string text;
  for (; !digits.empty(); digits.remove_prefix(std::min<std::size_t>(2, digits.size()))) {
    text += static_cast<char>(read_hexadecimal<unsigned char>(digits.substr(0, 2)));
  }
  return text;
}

/// Throws: Damage.
[[nodiscard]] inline Value read_value(const Json& json) {
  switch (json.kind()) {
    case Json::Kind::boolean:
      return json.boolean();
    case Json::Kind::text:
      return json.text();
    case Json::Kind::number:
      if (json.number().find_first_of(".eE") == std::string::npos) return json.as<std::int64_t>();
      return json.as<double>();
    case Json::Kind::object:
      if (const Json* bits = json.find("f64"))
        return std::bit_cast<double>(read_hexadecimal<std::uint64_t>(bits->text()));
      if (const Json* digits = json.find("bytes")) return read_bytes(digits->text());
      break;
    case Json::Kind::null:
    case Json::Kind::array:
      break;
  }
  throw Damage{"something stands where a value should be that is none"};
}

[[nodiscard]] inline NamedValues read_values(const Json& json) {
  NamedValues values;
  for (std::size_t i = 0; i < json.names().size(); ++i) values.set(json.names()[i], read_value(json.items()[i]));
  return values;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
