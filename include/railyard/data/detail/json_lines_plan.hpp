// SPDX-License-Identifier: MIT
// What a file of JSON Lines is taken for: its columns and their types. Data room.
#pragma once

#include "railyard/data/detail/json_scanner.hpp"
#include "railyard/data/detail/line_cutter.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/option_columns.hpp"
#include "railyard/data/detail/text_head.hpp"
#include "railyard/data/json_lines_source_options.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what is known of the files once the first has been looked at.
struct JsonLinesPlan {
  std::shared_ptr<const Schema> schema{};
  std::map<std::string, std::size_t, std::less<>> places{};  // of names in the schema
  JsonLinesSourceOptions options{};
  bool ignores_unknown = false;
};

/// Calls read_value(name) for each value of the object that is next; nested ones by "outer/inner", where that is asked
/// for.
template <class ReadValue>
void read_flat_object(JsonScanner& scanner, bool flatten, const std::string& outer, std::size_t depth,
                      ReadValue& read_value) {
  scanner.check_depth(depth);
  scanner.read_object([&](const std::string& key) {
    const std::string name = outer.empty() ? key : outer + "/" + key;
    if (flatten && scanner.kind() == JsonKind::object)
      read_flat_object(scanner, flatten, name, depth + 1, read_value);
    else
      read_value(name);
  });
}

// Finds the type of a column from its values.
class JsonTypeGuess {
 public:
  void add(JsonScanner& scanner) {
    ++seen_;
    switch (scanner.kind()) {
      case JsonKind::null:
        scanner.read_null();
        has_missing_ = true;
        return;
      case JsonKind::array:
        is_array_ = true;
        scanner.read_array([&] {
          if (scanner.kind() == JsonKind::number)
            add_number(scanner);
          else
            scanner.skip_value();  // the reader will say so
        });
        return;
      case JsonKind::number:
        add_number(scanner);
        return;
      case JsonKind::boolean:
        (void)scanner.read_boolean();
        is_boolean_ = true;
        return;
      case JsonKind::text:
      case JsonKind::object:
        is_text_ = is_text_ || scanner.kind() == JsonKind::text;
        scanner.skip_value();
    }
  }
  /// lines: how many were looked at; a column that is not in all of them has missing values.
  [[nodiscard]] Field field(std::string name, Dtype floats, std::size_t lines) const {
    if (is_text_) return Field::text(std::move(name));
    const bool has_missing = has_missing_ || seen_ < lines;
    if (is_array_) return {std::move(name), is_integer_ && has_number_ ? Dtype::i64 : floats, {-1}, false};
    if (has_missing || !(is_boolean_ || (has_number_ && is_integer_))) return {std::move(name), floats, {}, false};
    return {std::move(name), is_boolean_ ? Dtype::boolean : Dtype::i64, {}, false};
  }

 private:
  void add_number(JsonScanner& scanner) {
    std::int64_t integer = 0;
    is_integer_ = parse_number(scanner.read_number(), integer) == NumberFault::none && is_integer_;
    has_number_ = true;
  }

  std::size_t seen_ = 0;
  bool has_missing_ = false;
  bool has_number_ = false;
  bool is_integer_ = true;
  bool is_boolean_ = false;
  bool is_text_ = false;
  bool is_array_ = false;
};

/// Says why a line is no object; nothing if it is one.
[[nodiscard]] inline std::string fault_of_json_object(std::string_view line) {
  JsonScanner scanner{line};
  try {
    if (scanner.kind() != JsonKind::object) scanner.fail("each line must be an object");
    scanner.skip_value();
    scanner.expect_end();
    return {};
  } catch (const JsonFault& fault) {
    return fault.what();
  }
}

/// Looks at the first lines; those that are damaged are left to the reader.
[[nodiscard]] inline std::vector<Field> guess_json_fields(const JsonLinesSourceOptions& options,
                                                          const LineCutter& cutter) {
  std::vector<std::pair<std::string, JsonTypeGuess>> guesses;
  std::map<std::string, std::size_t, std::less<>> places;
  const std::size_t lines = std::min(cutter.lines(), options.inference_rows);
  std::size_t num_sound = 0;
  for (std::size_t line = 0; line < lines; ++line) {
    if (!fault_of_json_object(cutter.line(line)).empty()) continue;
    ++num_sound;
    JsonScanner scanner{cutter.line(line)};
    const auto add = [&](const std::string& name) {
      const auto [place, is_new] = places.try_emplace(name, guesses.size());
      if (is_new) guesses.emplace_back(name, JsonTypeGuess{});
      guesses[place->second].second.add(scanner);
    };
    read_flat_object(scanner, options.flatten, {}, 0, add);
  }
  std::vector<Field> fields;
  for (const auto& [name, guess] : guesses) fields.push_back(guess.field(name, options.floats, num_sound));
  return fields;
}

/// Says why nothing could be learned from the lines.
[[nodiscard]] inline std::string describe_no_json_fields(const std::string& file, const TextHead& head,
                                                         const LineCutter& cutter) {
  const std::string what = compose("{} has no JSON object with a key on its first lines", file);
  for (std::size_t line = 0; line < cutter.lines(); ++line) {
    const std::string fault = fault_of_json_object(cutter.line(line));
    if (fault.empty()) continue;
    return compose("{}:{}: {}: {}", file, 1 + std::count(head.text(), head.text() + cutter.begin(line), '\n'), fault,
                   what);
  }
  return what;
}

[[nodiscard]] inline std::shared_ptr<const JsonLinesPlan> make_json_lines_plan(const JsonLinesSourceOptions& options,
                                                                               const std::string& file,
                                                                               TextHead& head) {
  if (options.floats != Dtype::f64 && options.floats != Dtype::f32) {
    throw ConfigError{compose("JsonLinesSource: .floats is {}: set it to f64 or f32", name_of(options.floats))};
  }
  LineCutter cutter{false};
  cut_head(head, 1, options.inference_rows, options.max_record_bytes, options.on_error, [&] {
    cutter.cut(head.text(), head.size());
    return cutter.lines();
  });
  std::vector<Field> fields = guess_json_fields(options, cutter);
  for (const Field& given : options.fields) {
    const auto same = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == given.name; });
    if (same == fields.end())
      fields.push_back(given);
    else
      *same = given;
  }
  if (fields.empty()) throw DataError{describe_no_json_fields(file, head, cutter)};
  Schema schema{fields};
  if (!options.columns.empty()) {
    std::vector<Field> chosen;
    for (const std::string& name : options.columns) {
      chosen.push_back(schema[column_of_option(file, ".columns", schema, name)]);
    }
    schema = Schema{std::move(chosen)};
  }
  if (!options.label.empty()) (void)column_of_option(file, ".label", schema, options.label);
  auto plan = std::make_shared<JsonLinesPlan>();
  for (std::size_t at = 0; at < schema.size(); ++at) plan->places.emplace(schema[at].name, at);
  plan->schema = std::make_shared<const Schema>(std::move(schema));
  plan->options = options;
  plan->ignores_unknown = options.ignore_unknown || !options.columns.empty();
  return plan;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
