// SPDX-License-Identifier: MIT
// Reads a table from a file of comma-separated values (RFC 4180). Data room: core and the standard library only.
#pragma once

#include "railyard/data/table.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how read_csv() takes a file.
struct CsvOptions {
  std::string label{};  ///< the column that holds the labels, as integers; it must be given
};

namespace detail {

// Cuts text into records of fields. A record may span lines, where a quoted field holds a line break.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
    if (text_.starts_with("\xFF\xFE") || text_.starts_with("\xFE\xFF")) {
      throw DataError{compose("{} is UTF-16 text: save it as UTF-8", file_)};
    }
  }

  // The line on which the last record began, from 1.
  [[nodiscard]] std::size_t line() const noexcept { return record_line_; }

  // Reads the next record that is not a blank line; false at the end.
  bool next(std::vector<std::string>& fields) {
    while (position_ < text_.size()) {
      fields.clear();
      record_line_ = line_;
      const bool was_quoted = text_[position_] == '"';
      bool more = true;
      while (more) more = read_field(fields);
      if (fields.size() > 1 || !fields.front().empty() || was_quoted) return true;
    }
    return false;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw DataError{compose("{}:{}: {}", file_, record_line_, what)};
  }

 private:
  // Reads one field; true if another one follows in this record.
  bool read_field(std::vector<std::string>& fields) {
    std::string field;
    if (position_ < text_.size() && text_[position_] == '"') {
      field = read_quoted(fields.size());
    } else {
      while (position_ < text_.size() && !is_end_of_field(text_[position_])) {
        if (text_[position_] == '"') {
          fail(compose("field {} has a quote in its middle: quote the whole field and double the quotes inside it",
                       fields.size() + 1));
        }
        field += text_[position_++];
      }
    }
    fields.push_back(std::move(field));
    return !end_field();
  }

  std::string read_quoted(std::size_t index) {
    std::string field;
    ++position_;
    while (true) {
      if (position_ >= text_.size()) fail(compose("field {} opens a quote that is never closed", index + 1));
      const char c = text_[position_++];
      if (c == '"') {
        if (position_ >= text_.size() || text_[position_] != '"') break;
        ++position_;
      }
      if (c == '\n') ++line_;
      field += c;
    }
    if (position_ < text_.size() && !is_end_of_field(text_[position_])) {
      fail(compose("field {} goes on after its closing quote", index + 1));
    }
    return field;
  }

  // Steps over what ends a field; true if it ends the record as well.
  bool end_field() {
    if (position_ >= text_.size()) return true;
    const char c = text_[position_++];
    if (c == ',') return false;
    if (c == '\r' && position_ < text_.size() && text_[position_] == '\n') ++position_;
    ++line_;
    return true;
  }

  static bool is_end_of_field(char c) noexcept { return c == ',' || c == '\n' || c == '\r'; }

  std::string_view text_;
  std::string file_;
  std::size_t position_ = 0;
  std::size_t line_ = 1;
  std::size_t record_line_ = 1;
};

// Text from a file as a message shows it: no control characters, and no more than the eye takes in.
[[nodiscard]] inline std::string shown(std::string_view text) {
  constexpr std::size_t most = 60;
  std::string out;
  for (const char c : text.substr(0, most)) {
    const auto code = static_cast<unsigned char>(c);
    out += code < 0x20 || code == 0x7F ? compose("\\x{:02x}", code) : std::string(1, c);
  }
  return text.size() > most ? compose("{}... ({} characters)", out, text.size()) : out;
}

// Tells a number that is too small for its type from one that is too large, given that it is one of them.
[[nodiscard]] inline bool is_tiny(std::string_view number) {
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  const std::string_view digits = number.substr(0, e);
  std::string_view power = number.substr(std::min(e + 1, number.size()));
  if (power.starts_with('+')) power.remove_prefix(1);
  std::int64_t exponent = 0;
  if (std::from_chars(power.data(), power.data() + power.size(), exponent).ec == std::errc::result_out_of_range) {
    return power.starts_with('-');
  }
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<std::int64_t>(std::min(digits.find_first_of("123456789"), digits.size()));
  return exponent < first - point;  // the first digit that counts stands behind the point
}

// Returns the number that the whole text spells, blanks around it aside; from_chars is the same in every locale.
template <class Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_last_not_of(" \t") - first + 1);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if constexpr (std::is_same_v<Number, float>) {
    // What is nearer to zero than a float can be is zero, or by way of double the nearest that there is.
    if (error == std::errc::result_out_of_range && end == text.data() + text.size() && is_tiny(text)) {
      return static_cast<float>(number_of<double>(text).value_or(0.0));
    }
  }
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[nodiscard]] inline std::string read_whole(const std::filesystem::path& path) {
  std::error_code no_error;
  errno = 0;
  std::ifstream file{path, std::ios::binary};
  if (!file || std::filesystem::is_directory(path, no_error)) {
    const int code = errno;
    throw DataError{compose("cannot read \"{}\" (working directory {}): {}", path.string(),
                            std::filesystem::current_path(no_error).string(),
                            file ? "it is a directory" : std::strerror(code == 0 ? ENOENT : code))};
  }
  const auto fail = [&path](const char* why) {
    throw DataError{compose("reading \"{}\" failed: {}", path.string(), why)};
  };
  std::string text;
  try {
    text.assign(std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{});
  } catch (const std::ios_base::failure& error) {
    fail(error.what());  // the buffer throws by itself, whatever the stream was told
  }
  if (file.bad()) fail(std::strerror(errno));
  return text;
}

// Returns where the label's column is, after a look at the names.
[[nodiscard]] inline std::size_t find_label(const CsvReader& reader, const std::vector<std::string>& header,
                                            const std::string& label) {
  std::optional<std::size_t> found;
  std::string names;
  for (std::size_t column = 0; column < header.size(); ++column) {
    for (std::size_t other = 0; other < column; ++other) {
      if (header[other] == header[column]) {
        reader.fail(compose("the header names the column \"{}\" twice", shown(header[column])));
      }
    }
    if (column < 20) names += (column == 0 ? "\"" : ", \"") + shown(header[column]) + '"';
    if (column == 20) names += compose(" and {} more", header.size() - column);
    if (header[column] == label) found = column;
  }
  if (!found) {
    reader.fail(
        compose("there is no column \"{}\"; the first line, which must be a header, names: {}. Set .label to "
                "one of them",
                shown(label), names));
  }
  if (header.size() < 2) reader.fail("there is no column beside the label's");
  return *found;
}

inline void append_record(const CsvReader& reader, const std::vector<std::string>& header, std::size_t label,
                          const std::vector<std::string>& fields, std::vector<float>& values,
                          std::vector<std::int64_t>& labels) {
  if (fields.size() != header.size()) {
    reader.fail(compose("the record has {} fields, the header {}", fields.size(), header.size()));
  }
  for (std::size_t column = 0; column < fields.size(); ++column) {
    if (column == label) continue;
    const auto value = number_of<float>(fields[column]);
    if (!value) {
      reader.fail(compose("column \"{}\" holds \"{}\", which is no number that a float can hold", shown(header[column]),
                          shown(fields[column])));
    }
    values.push_back(*value);
  }
  const auto number = number_of<std::int64_t>(fields[label]);
  if (!number) {
    reader.fail(compose("the label's column \"{}\" holds \"{}\", which is no integer: number the classes from 0",
                        shown(header[label]), shown(fields[label])));
  }
  labels.push_back(*number);
}

}  // namespace detail

/// Reads a file of comma-separated values: a header line, then a row of numbers per record, one of them the label.
/// Quoted fields, CRLF, a byte order mark and blank lines are taken as they come.
/// Throws: DataError that names file, line and column if the file is missing or is not such a file; ConfigError if
/// options.label is empty. Example: auto table = ry::read_csv("digits.csv", {.label = "digit"});
[[nodiscard]] inline Table read_csv(const std::filesystem::path& path, const CsvOptions& options) {
  if (options.label.empty()) {
    throw ConfigError{
        detail::compose("read_csv(\"{}\") was not told which column holds the labels: set .label", path.string())};
  }
  const std::string text = detail::read_whole(path);
  detail::CsvReader reader{text, path.string()};
  std::vector<std::string> header;
  if (!reader.next(header))
    throw DataError{detail::compose("{} is empty: it must begin with a header line", path.string())};
  const std::size_t label = detail::find_label(reader, header, options.label);

  std::vector<float> values;
  std::vector<std::int64_t> labels;
  std::vector<std::string> fields;
  while (reader.next(fields)) detail::append_record(reader, header, label, fields, values, labels);
  if (labels.empty()) throw DataError{detail::compose("{} has a header but no records", path.string())};
  header.erase(header.begin() + static_cast<std::ptrdiff_t>(label));
  return {std::move(header), std::move(values), options.label, std::move(labels)};
}

}  // namespace railyard::inline v0_1
