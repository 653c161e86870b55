// SPDX-License-Identifier: MIT
// JSON that may come from anywhere: read with bounds and without loss, written so that values come back bit by bit.
// Checkpoint room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/value.hpp"

#include <algorithm>
#include <bit>
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

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/prettywriter.h>
#include <rapidjson/reader.h>
#include <rapidjson/stringbuffer.h>

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
  /// The elements of an array, or the values of an object.
  [[nodiscard]] const std::vector<Json>& items() const noexcept { return items_; }
  /// The names of an object's values.
  [[nodiscard]] const std::vector<std::string>& names() const { return expect(Kind::object, "an object").names_; }
  [[nodiscard]] const std::vector<Json>& array() const { return expect(Kind::array, "a list").items_; }

  [[nodiscard]] const Json* find(std::string_view name) const {
    const auto at = std::find(names().begin(), names().end(), name);
    return at == names_.end() ? nullptr : &items_[static_cast<std::size_t>(at - names_.begin())];
  }
  [[nodiscard]] const Json& at(std::string_view name) const {
    if (const Json* value = find(name)) return *value;
    throw Damage{compose("\"{}\" is missing", name)};
  }

  /// The number, which must be one that a T can hold exactly.
  template <class T>
  [[nodiscard]] T as() const {
    T value{};
    const char* end = number().data() + text_.size();
    const auto [stopped, error] = std::from_chars(text_.data(), end, value);
    if (error != std::errc{} || stopped != end) throw Damage{compose("{} is no number that fits here", text_)};
    return value;
  }

 private:
  friend class JsonBuilder;

  const Json& expect(Kind kind, std::string_view what) const {
    if (kind_ != kind) throw Damage{compose("something else stands where {} should be", what)};
    return *this;
  }

  Kind kind_;
  std::string text_;
  std::vector<Json> items_{};
  std::vector<std::string> names_{};
};

/// Takes what RapidJSON reads. Returns false, which ends the reading, where the content goes beyond all bounds.
class JsonBuilder {
 public:
  bool Null() { return add(Json{}); }
  bool Bool(bool value) { return add(Json{Json::Kind::boolean, value ? "true" : "false"}); }
  bool RawNumber(const char* text, rapidjson::SizeType length, bool) {
    return add(Json{Json::Kind::number, {text, length}});
  }
  bool String(const char* text, rapidjson::SizeType length, bool) {
    return add(Json{Json::Kind::text, {text, length}});
  }
  bool Key(const char* text, rapidjson::SizeType length, bool) {
    open_.back().names_.emplace_back(text, length);
    return true;
  }
  bool StartObject() { return open(Json::Kind::object); }
  bool StartArray() { return open(Json::Kind::array); }
  bool EndArray(rapidjson::SizeType) { return close(); }
  bool EndObject(rapidjson::SizeType) {
    std::vector<std::string_view> names{open_.back().names_.begin(), open_.back().names_.end()};
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) return refuse(compose("the name \"{}\" is there twice", *twice));
    return close();
  }
  // Numbers come as text, see the flags of the reader; it wants to know these all the same.
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(std::int64_t) { return false; }
  bool Uint64(std::uint64_t) { return false; }
  bool Double(double) { return false; }

  [[nodiscard]] Json take() { return std::move(root_); }
  [[nodiscard]] const std::string& complaint() const noexcept { return complaint_; }

 private:
  static constexpr std::size_t max_depth = 16;  // the reader calls itself for each level
  static constexpr std::size_t max_values = std::size_t{4} << 20U;

  bool refuse(std::string why) {
    complaint_ = std::move(why);
    return false;
  }
  bool add(Json value) {
    if (++num_values_ > max_values) return refuse(compose("it has more than {} values", max_values));
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back().items_.push_back(std::move(value));
    }
    return true;
  }
  bool open(Json::Kind kind) {
    if (open_.size() == max_depth) return refuse(compose("it is nested more than {} levels deep", max_depth));
    open_.emplace_back(kind);
    return true;
  }
  bool close() {
    Json value = std::move(open_.back());
    open_.pop_back();
    return add(std::move(value));
  }

  Json root_{};
  std::vector<Json> open_{};
  std::size_t num_values_ = 0;
  std::string complaint_{};
};

/// Reads the text of one JSON value. Throws: Damage.
[[nodiscard]] inline Json parse_json(std::string_view text) {
  constexpr unsigned flags = rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseValidateEncodingFlag;
  rapidjson::MemoryStream stream{text.data(), text.size()};
  rapidjson::Reader reader;
  JsonBuilder builder;
  const rapidjson::ParseResult result = reader.Parse<flags>(stream, builder);
  if (!builder.complaint().empty()) throw Damage{builder.complaint()};
  if (result.IsError()) {
    throw Damage{
        compose("it is no JSON from byte {} on ({})", result.Offset(), rapidjson::GetParseError_En(result.Code()))};
  }
  if (stream.Tell() != text.size()) throw Damage{compose("something follows the JSON at byte {}", stream.Tell())};
  return builder.take();
}

[[nodiscard]] inline bool is_utf8(std::string_view text) {
  rapidjson::MemoryStream stream{text.data(), text.size()};
  unsigned code_point = 0;
  while (stream.Tell() < text.size()) {
    if (!rapidjson::UTF8<>::Decode(stream, &code_point)) return false;
  }
  return true;
}

/// Writes JSON, with names and values indented for people.
using JsonWriter = rapidjson::PrettyWriter<rapidjson::StringBuffer>;

template <class Writer>
void write_text(Writer& writer, std::string_view text) {
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}
template <class Writer>
void write_name(Writer& writer, std::string_view name) {
  writer.Key(name.data(), static_cast<rapidjson::SizeType>(name.size()));
}

/// Returns the JSON that write(writer) writes between the braces of an object.
template <class Write>
[[nodiscard]] std::string json_object(const Write& write) {
  rapidjson::StringBuffer buffer;
  JsonWriter writer{buffer};
  writer.SetIndent(' ', 2);
  writer.SetFormatOptions(rapidjson::kFormatSingleLineArray);
  writer.StartObject();
  write(writer);
  writer.EndObject();
  return std::string{buffer.GetString(), buffer.GetSize()} + "\n";
}

// What JSON has no form for stands in an object of one name: {"f64": bits} and {"bytes": digits}, in hexadecimal.
inline void write_tagged(JsonWriter& writer, std::string_view tag, std::string_view text) {
  writer.StartObject();
  write_name(writer, tag);
  write_text(writer, text);
  writer.EndObject();
}

inline void write_number(JsonWriter& writer, double number) {
  const auto bits = std::bit_cast<std::uint64_t>(number);
  constexpr std::uint64_t exponent = 0x7FF0'0000'0000'0000U;
  if ((bits & exponent) == exponent) return write_tagged(writer, "f64", compose("{:016x}", bits));
  std::string text = compose("{}", number);                         // the shortest that is read as the same bits
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // or it would come back as an integer
  writer.RawValue(text.data(), text.size(), rapidjson::kNumberType);
}

inline void write_value(JsonWriter& writer, const Value& value) {
  if (value.is<bool>()) {
    writer.Bool(value.as<bool>());
  } else if (value.is<std::int64_t>()) {
    writer.Int64(value.as<std::int64_t>());
  } else if (value.is<double>()) {
    write_number(writer, value.as<double>());
  } else if (const std::string& text = value.as<std::string>(); is_utf8(text)) {
    write_text(writer, text);
  } else {
    std::string digits;
    for (const char c : text) digits += compose("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    write_tagged(writer, "bytes", digits);
  }
}

inline void write_values(JsonWriter& writer, std::string_view name, const NamedValues& values) {
  write_name(writer, name);
  writer.StartObject();
  for (const auto& [key, value] : values) {
    write_name(writer, key);
    write_value(writer, value);
  }
  writer.EndObject();
}

/// Reads digits, all of them, as one number.
template <class T>
[[nodiscard]] T read_hexadecimal(std::string_view digits) {
  T value{};
  const auto [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 2 * sizeof(T) || error != std::errc{} || stopped != digits.data() + digits.size()) {
    throw Damage{compose("\"{}\" is not made of {} hexadecimal digits", digits, 2 * sizeof(T))};
  }
  return value;
}

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
      if (const Json* digits = json.find("bytes")) {
        std::string text;
        for (std::string_view left = digits->text(); !left.empty();
             left.remove_prefix(std::min<std::size_t>(2, left.size()))) {
          text += static_cast<char>(read_hexadecimal<unsigned char>(left.substr(0, 2)));
        }
        return text;
      }
      break;
    default:
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
