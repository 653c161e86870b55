// SPDX-License-Identifier: MIT
// What a CSV file is taken for: its columns and their types. Data room.
#pragma once

#include "railyard/data/csv_source_options.hpp"
#include "railyard/data/detail/csv_cutter.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/option_columns.hpp"
#include "railyard/data/detail/text_head.hpp"
#include "railyard/data/detail/utf8.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what is known of the files once the first has been looked at.
struct CsvPlan {
  std::shared_ptr<const Schema> schema{};
  std::vector<std::size_t> places{};  // of the schema's columns in the file
  std::vector<std::string> header{};  // all columns of the file
  std::string file{};                 // whose header that is
  CsvSourceOptions options{};
  bool is_number_missing = false;  // whether what stands for no number may be one
  bool is_empty_missing = false;   // whether an empty field stands for none
  std::string hint{};              // what may be wrong where columns are, for messages; may be empty

  [[nodiscard]] bool is_missing(std::string_view text) const noexcept {
    return std::find(options.missing.begin(), options.missing.end(), text) != options.missing.end();
  }
};

// Finds the type of a column from its fields.
class CsvTypeGuess {
 public:
  /// Behind the text 64 more characters can be read.
  void add(std::string_view text, const CsvPlan& plan) {
    std::int64_t integer = 0;
    double number = 0;
    if (!plan.is_number_missing && is_short_number(text)) {
      has_number_ = true;
    } else if (plan.is_missing(trimmed_number(text))) {
      has_missing_ = true;
    } else if (is_integer_ && parse_number(text, integer) == NumberFault::none) {
      has_number_ = true;
    } else if (is_number_ && parse_number(text, number) != NumberFault::not_a_number) {
      has_number_ = true;
      is_integer_ = false;
    } else if (parse_boolean(text)) {
      has_boolean_ = true;
    } else {
      is_text_ = true;
    }
    is_number_ = !has_boolean_ && !is_text_;
  }
  [[nodiscard]] bool is_text() const noexcept { return is_text_; }
  [[nodiscard]] Field field(std::string name, Dtype floats) const {
    if (is_text_ || (has_boolean_ && has_number_)) return Field::text(std::move(name));
    if (has_missing_ || (!has_boolean_ && !(has_number_ && is_integer_))) return {std::move(name), floats, {}, false};
    return {std::move(name), has_boolean_ ? Dtype::boolean : Dtype::i64, {}, false};
  }

 private:
  // Whether it is clear at a glance that it is no more than it was.
  [[nodiscard]] bool is_short_number(std::string_view text) const noexcept {
    std::int64_t integer = 0;
    if (is_integer_) return parse_short(text.data(), text.size(), integer);
    double number = 0;
    return is_number_ && parse_short(text.data(), text.size(), number);
  }

  bool has_missing_ = false;
  bool has_number_ = false;
  bool has_boolean_ = false;
  bool is_integer_ = true;
  bool is_number_ = true;
  bool is_text_ = false;
};

inline void check_csv_options(const CsvSourceOptions& options) {
  if (options.floats != Dtype::f64 && options.floats != Dtype::f32) {
    throw ConfigError{compose("CsvSource: .floats is {}: set it to f64 or f32", name_of(options.floats))};
  }
  const char delimiter = options.delimiter;
  if (delimiter == '\0' || delimiter == '\n' || delimiter == '\r' || delimiter == options.quote) {
    throw ConfigError{"CsvSource: .delimiter must be no line break, no NUL and not the quote"};
  }
  for (const Field& field : options.fields) {
    const bool is_known = field.dtype != Dtype::f16 && field.dtype != Dtype::bf16;
    if (field.is_text || (field.shape.empty() && is_known)) continue;
    throw ConfigError{
        compose("CsvSource: .fields has \"{}\", and a field of CSV is one number (no half type) or text", field.name)};
  }
}

/// Says what is wrong with a text of which a header is the first record; nothing if that is sound.
[[nodiscard]] inline std::string fault_of_csv_header(const CsvCutter& cutter) {
  const std::size_t end = cutter.end(0);
  if (cutter.is_unclosed() && cutter.records().size() == 1) return "a quote of the header is never closed";
  if (const auto& misplaced = cutter.misplaced_quotes(); !misplaced.empty() && misplaced.front() < end) {
    return "the header has a quote that does not enclose a whole name: quote the name and double the quotes inside it, "
           "or set .quote to '\\0'";
  }
  const std::string_view header{cutter.text() + cutter.begin(0), end - cutter.begin(0)};
  if (find_invalid_utf8(header) < header.size()) return "the header is not UTF-8 text: convert the file, as by iconv";
  if (header.find('\0') != std::string_view::npos) return "the header has a NUL in it: the file is no text";
  return {};
}

/// Throws: DataError unless it is sound.
inline void check_csv_header(const CsvCutter& cutter, const std::string& file) {
  const std::string fault = fault_of_csv_header(cutter);
  if (!fault.empty()) throw DataError{compose("{}:1: {}", file, fault)};
}

// Returns the names in the first record; a column without one is called after its place.
[[nodiscard]] inline std::vector<std::string> csv_names(const CsvCutter& cutter, char quote, bool has_names) {
  std::vector<std::string> names(cutter.records().front().num_fields);
  for (std::size_t at = 0; at < names.size(); ++at) {
    if (has_names) names[at] = unquoted(cutter.field(0, at), quote);
    if (names[at].empty()) names[at] = compose("column_{}", at);
  }
  return names;
}

inline std::vector<Field> guess_csv_fields(const CsvPlan& plan, const CsvCutter& cutter) {
  std::vector<CsvTypeGuess> guesses(plan.header.size());
  const std::size_t begin = plan.options.has_header ? 1 : 0;
  const std::size_t end = std::min(cutter.records().size(), begin + plan.options.inference_rows);
  for (std::size_t record = begin; record < end; ++record) {
    if (cutter.records()[record].num_fields != guesses.size()) continue;  // the reader will say so
    for (std::size_t column = 0; column < guesses.size(); ++column) {
      if (guesses[column].is_text()) continue;
      const std::string_view field = cutter.field(record, column);
      const bool is_quoted = !field.empty() && field.front() == plan.options.quote;
      guesses[column].add(is_quoted ? field.substr(1, std::max<std::size_t>(field.size(), 2) - 2) : field, plan);
    }
  }
  std::vector<Field> fields;
  for (std::size_t at = 0; at < guesses.size(); ++at) {
    fields.push_back(guesses[at].field(plan.header[at], plan.options.floats));
  }
  return fields;
}

// Returns what to say where columns are looked for in vain, if another character than the delimiter seems to be it.
[[nodiscard]] inline std::string delimiter_hint(const CsvCutter& cutter, char delimiter) {
  if (cutter.records().empty() || cutter.records().front().num_fields != 1) return {};
  for (const char other : {';', '\t', '|', ','}) {
    if (other == delimiter || cutter.field(0, 0).find(other) == std::string_view::npos) continue;
    const std::string_view shown = other == '\t' ? std::string_view{"\\t"} : std::string_view{&other, 1};
    return compose("; its first line has '{}' and no '{}': set .delimiter to '{}' if that separates its columns", shown,
                   delimiter == '\t' ? std::string_view{"\\t"} : std::string_view{&delimiter, 1}, shown);
  }
  return {};
}

inline void choose_csv_columns(CsvPlan& plan, std::vector<Field> fields) {
  const auto of_file = [&] {
    try {
      return Schema{fields};
    } catch (const ConfigError& error) {
      throw DataError{compose("{}:1: {}", plan.file, error.what())};
    }
  }();
  for (const Field& given : plan.options.fields) {
    fields[column_of_option(plan.file, ".fields", of_file, given.name, plan.hint)] = given;
  }
  std::vector<Field> chosen;
  for (const std::string& name : plan.options.columns) {
    plan.places.push_back(column_of_option(plan.file, ".columns", of_file, name, plan.hint));
  }
  if (plan.options.columns.empty()) {
    plan.places.resize(fields.size());
    std::iota(plan.places.begin(), plan.places.end(), std::size_t{0});
  }
  for (const std::size_t place : plan.places) chosen.push_back(fields[place]);
  plan.schema = std::make_shared<const Schema>(std::move(chosen));
  const std::string& label = plan.options.label;
  const bool is_left_out = of_file.find(label).has_value();
  const std::string_view hint = is_left_out ? std::string_view{"; .columns leaves it out"} : plan.hint;
  if (!label.empty()) (void)column_of_option(plan.file, ".label", *plan.schema, label, hint);
}

/// Says whether a file has more than its header.
[[nodiscard]] inline bool has_csv_records(const CsvSourceOptions& options, const TextHead& head) {
  if (!head.is_whole()) return true;
  CsvCutter cutter{options.delimiter, options.quote};
  cutter.cut(head.text(), head.size(), true);
  return cutter.records().size() > (options.has_header ? 1 : 0) || cutter.is_unclosed();
}

[[nodiscard]] inline std::shared_ptr<const CsvPlan> make_csv_plan(const CsvSourceOptions& options,
                                                                  const std::string& file, TextHead& head) {
  check_csv_options(options);
  auto plan = std::make_shared<CsvPlan>();
  plan->options = options;
  plan->file = file;
  plan->is_empty_missing = plan->is_missing({});
  for (const std::string& text : options.missing) {
    double number = 0;
    if (parse_number(text, number) == NumberFault::none && number == number) plan->is_number_missing = true;
  }
  CsvCutter cutter{options.delimiter, options.quote};
  cut_head(head, options.has_header ? 2 : 1, options.inference_rows, options.max_record_bytes, options.on_error, [&] {
    cutter.cut(head.text(), head.size(), head.is_whole());
    return cutter.records().size();
  });
  if (!cutter.records().empty() && options.has_header) check_csv_header(cutter, file);
  if (!cutter.records().empty()) plan->header = csv_names(cutter, options.quote, options.has_header);
  plan->hint = delimiter_hint(cutter, options.delimiter);
  if (!options.names.empty()) {
    if (!plan->header.empty() && options.names.size() != plan->header.size()) {
      throw ConfigError{compose("{}: .names has {} names, and the file has {} columns: give one name for each{}", file,
                                options.names.size(), plan->header.size(), plan->hint)};
    }
    plan->header = options.names;
  }
  if (plan->header.empty()) {
    throw DataError{
        compose("{} is empty: it must begin with {}", file, options.has_header ? "a header line" : "a row")};
  }
  choose_csv_columns(*plan, guess_csv_fields(*plan, cutter));
  return plan;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
