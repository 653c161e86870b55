// SPDX-License-Identifier: MIT
// Makes columns of lines of JSON. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/detail/json_lines_plan.hpp"
#include "railyard/data/detail/json_scanner.hpp"
#include "railyard/data/detail/line_cutter.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/record_faults.hpp"
#include "railyard/data/detail/utf8.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Parses pieces of JSON Lines: cut() one, then parse() it.
class JsonLinesParser {
 public:
  explicit JsonLinesParser(std::shared_ptr<const JsonLinesPlan> plan) : plan_(std::move(plan)) {}

  std::size_t cut(const char* text, std::size_t size, bool /*is_end*/) { return cutter_.cut(text, size); }
  [[nodiscard]] std::size_t records() const noexcept { return cutter_.lines(); }
  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept { return cutter_.begin(record); }
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept { return cutter_.end(record); }

  /// Returns a column per field of the schema, of the records that are not in faults, before or behind.
  [[nodiscard]] std::vector<Column> parse(RecordFaults& faults) {
    BlockBuilder builder{plan_->schema};
    const std::vector<std::size_t> left_out = faults.records();
    for (std::size_t record = 0; record < records(); ++record) {
      if (std::binary_search(left_out.begin(), left_out.end(), record)) continue;
      SampleWriter& sample = builder.add(0);
      try {
        parse_line(cutter_.line(record), sample);
      } catch (const JsonFault& fault) {
        builder.drop_last();
        faults.add(record, [&] { return std::string{fault.what()}; });
      }
    }
    return builder.build().columns();
  }

 private:
  void parse_line(std::string_view line, SampleWriter& sample) {
    const std::size_t wrong = find_invalid_utf8(line);
    if (wrong < line.size()) throw JsonFault{compose("byte {} of the line is not UTF-8 text", wrong + 1)};
    JsonScanner scanner{line};
    if (scanner.kind() != JsonKind::object) scanner.fail("each line must be an object");
    is_set_.assign(plan_->schema->size(), false);
    const auto read = [&](const std::string& name) { read_value(scanner, name, sample); };
    read_flat_object(scanner, plan_->options.flatten, {}, 0, read);
    scanner.expect_end();
    for (std::size_t column = 0; column < is_set_.size(); ++column) {
      if (!is_set_[column]) set_missing(column, sample);
    }
  }

  void read_value(JsonScanner& scanner, const std::string& name, SampleWriter& sample) {
    const auto place = plan_->places.find(name);
    if (place == plan_->places.end()) {
      if (plan_->ignores_unknown) return scanner.skip_value();
      scanner.fail(compose("the key \"{}\" is on none of the first lines: name it in .fields, or set .ignore_unknown",
                           shown_text(name)));
    }
    const std::size_t column = place->second;
    const Field& field = (*plan_->schema)[column];
    if (is_set_[column]) scanner.fail(compose("the key \"{}\" is there twice", shown_text(name)));
    is_set_[column] = true;
    if (scanner.kind() == JsonKind::null) {
      scanner.read_null();
      set_missing(column, sample);
    } else if (field.is_text) {
      if (scanner.kind() != JsonKind::text) refuse(scanner, field);
      scanner.read_text(text_);
      sample.set(column, text_);
    } else {
      visit_dtype(field.dtype, [&](auto zero) { read_numbers<decltype(zero)>(scanner, field, column, sample); });
    }
  }

  [[noreturn]] static void refuse(JsonScanner& scanner, const Field& field) {
    const bool is_array = !field.is_text && !field.shape.empty();
    const JsonKind kind = scanner.kind();
    std::string_view remedy = "name its type in .fields";
    if (kind == JsonKind::object) remedy = "set .flatten for objects within objects";
    if (kind == JsonKind::array) remedy = "name its type, with the shape {-1}, in .fields, if it holds numbers";
    if (is_array && kind == JsonKind::text)
      remedy = "arrays of text make no column: join them, or name all others in .columns";
    scanner.fail(compose("column \"{}\" is {}{}, and this is {}: {}", shown_text(field.name),
                         is_array ? "an array of " : "", field.is_text ? "text" : name_of(field.dtype),
                         shown_kind(kind), remedy));
  }

  // Halves are read by way of float, and integers by way of the widest.
  template <class T>
  using Parsed = std::conditional_t<std::is_floating_point_v<T> || std::is_same_v<T, bool>, T,
                                    std::conditional_t<std::is_integral_v<T>, std::int64_t, float>>;

  template <class T>
  void read_numbers(JsonScanner& scanner, const Field& field, std::size_t column, SampleWriter& sample) {
    if (field.shape.empty()) return sample.set(column, read_number<T>(scanner, field));
    if (scanner.kind() != JsonKind::array) refuse(scanner, field);
    // Not vector<bool>, which is no array.
    std::conditional_t<std::is_same_v<T, bool>, std::vector<std::uint8_t>, std::vector<Parsed<T>>> values;
    scanner.read_array([&] { values.push_back(read_number<T>(scanner, field)); });
    const std::size_t width = field.width();
    if (field.is_ragged() ? values.size() % width != 0 : values.size() != width) {
      scanner.fail(compose("column \"{}\" has {} numbers where {}{} belong", shown_text(field.name), values.size(),
                           field.is_ragged() ? "a multiple of " : "", width));
    }
    sample.set(column, values);
  }

  template <class T>
  [[nodiscard]] static Parsed<T> read_number(JsonScanner& scanner, const Field& field) {
    constexpr bool is_floating = std::is_floating_point_v<Parsed<T>>;
    const JsonKind kind = scanner.kind();
    if (kind == JsonKind::boolean && (is_floating || std::is_same_v<T, bool>)) {
      return static_cast<Parsed<T>>(scanner.read_boolean());
    }
    if constexpr (is_floating) {
      if (kind == JsonKind::null) {
        scanner.read_null();
        return std::numeric_limits<Parsed<T>>::quiet_NaN();
      }
    }
    if constexpr (!std::is_same_v<T, bool>) {
      if (kind == JsonKind::number) {
        const std::string_view text = scanner.read_number();
        Parsed<T> value{};
        NumberFault fault = parse_number(text, value);
        if constexpr (std::is_integral_v<T>) {
          if (fault == NumberFault::none && static_cast<T>(value) != value) fault = NumberFault::too_large;
        }
        if (fault == NumberFault::none) return value;
        scanner.fail(compose("column \"{}\" holds {}, which is {} {}", shown_text(field.name), shown_text(text),
                             fault == NumberFault::too_large ? "too large for" : "no", name_of(field.dtype)));
      }
    }
    refuse(scanner, field);
  }

  void set_missing(std::size_t column, SampleWriter& sample) {
    const Field& field = (*plan_->schema)[column];
    const bool is_float = field.dtype == Dtype::f64 || field.dtype == Dtype::f32 || field.dtype == Dtype::f16 ||
                          field.dtype == Dtype::bf16;
    if (field.is_text) return sample.set(column, std::string_view{""});
    if (field.is_ragged()) return sample.set(column, std::vector<float>{});
    if (is_float) return sample.set(column, std::vector<float>(field.width(), std::numeric_limits<float>::quiet_NaN()));
    throw JsonFault{
        compose("column \"{}\" is missing, and its type {} has nothing for that: give it the type f64 in "
                ".fields",
                shown_text(field.name), name_of(field.dtype))};
  }

  std::shared_ptr<const JsonLinesPlan> plan_;
  LineCutter cutter_{false};
  std::vector<bool> is_set_{};  // which columns the line has had
  std::string text_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
