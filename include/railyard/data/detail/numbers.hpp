// SPDX-License-Identifier: MIT
// Which columns a preprocessor works on, their elements as numbers, and blocks with columns changed. Data room.
#pragma once

#include "railyard/data/detail/option_columns.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Whether a cell of numbers is empty.
[[nodiscard]] constexpr bool is_missing(double value) noexcept { return has_nan_bits(value); }

[[nodiscard]] constexpr bool is_real(Dtype dtype) noexcept {
  return dtype == Dtype::f16 || dtype == Dtype::bf16 || dtype == Dtype::f32 || dtype == Dtype::f64;
}
/// Whether each sample has as many numbers as the others.
[[nodiscard]] inline bool has_numbers(const Field& field) noexcept { return !field.is_text && !field.is_ragged(); }
/// Whether each sample has one number or one text.
[[nodiscard]] inline bool has_cells(const Field& field) noexcept { return field.is_text || field.shape.empty(); }

[[noreturn]] inline void refuse_column(std::string_view who, const Field& field, std::string_view wanted) {
  throw ConfigError{compose("{} needs {}, and column \"{}\" has {}{}: leave it out, or change it first", who, wanted,
                            field.name, field.is_ragged() && !field.is_text ? "lists of " : "",
                            field.is_text         ? std::string_view{"text"}
                            : field.shape.empty() ? name_of(field.dtype)
                                                  : compose("{} x {}", field.width(), name_of(field.dtype)))};
}

/// Returns the columns that are meant: those named, or all that are suitable but for some.
/// Throws: ConfigError for names that do not exist, columns that are not suitable, or if none are meant.
template <class Suits>
[[nodiscard]] std::vector<std::string> columns_meant(std::string_view who, const Schema& schema,
                                                     const std::vector<std::string>& columns,
                                                     const std::vector<std::string>& except, std::string_view wanted,
                                                     const Suits& suits) {
  for (const std::string& name : columns) {
    const Field& field = schema[column_of_option(who, ".columns", schema, name)];
    if (!suits(field)) refuse_column(who, field, wanted);
  }
  if (!columns.empty()) return columns;
  std::vector<std::string> chosen;
  for (const std::string& name : except) static_cast<void>(column_of_option(who, ".except", schema, name));
  for (const Field& field : schema) {
    const bool is_left_out = std::find(except.begin(), except.end(), field.name) != except.end();
    if (!except.empty() && !is_left_out && suits(field)) chosen.push_back(field.name);
  }
  if (chosen.empty()) {
    throw ConfigError{
        compose("{} was given no column: name some with .columns, or with .except those to leave alone; "
                "there are {}",
                who, schema.names())};
  }
  return chosen;
}

/// Replaces numbers by the elements of a column that has_numbers(). Integers beyond 2^53 round to the nearest double.
inline void read_numbers(const Field& field, const Column& column, std::vector<double>& numbers) {
  visit_dtype(field.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto values = column.values<T>();
    numbers.resize(values.size());
    for (std::size_t at = 0; at < values.size(); ++at) {
      if constexpr (std::is_arithmetic_v<T>) {
        numbers[at] = static_cast<double>(values[at]);
      } else {
        numbers[at] = static_cast<double>(static_cast<float>(values[at]));
      }
    }
  });
}
/// Returns a column of the field's dtype, which is a real one.
[[nodiscard]] inline Column write_numbers(const Field& field, const std::vector<double>& numbers) {
  return visit_dtype(field.dtype, [&](auto zero) -> Column {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      return {field, std::vector<T>(numbers.begin(), numbers.end())};
    } else if constexpr (!std::is_arithmetic_v<T>) {
      std::vector<T> values;
      for (const double number : numbers) values.emplace_back(static_cast<float>(number));
      return {field, std::move(values)};
    } else {
      throw Error{compose("numbers were to be written to {}", name_of(field.dtype))};
    }
  });
}

/// Returns the schema with the fields of the same names replaced, and the others behind.
[[nodiscard]] inline Schema with_fields(const Schema& schema, const std::vector<Field>& fields) {
  std::vector<Field> all = schema.fields();
  for (const Field& field : fields) {
    const auto place = schema.find(field.name);
    place ? all[*place] = field : all.emplace_back(field);
  }
  return all;
}
/// Returns the block with the columns of the same names replaced, and the others behind.
[[nodiscard]] inline Block with_columns(const Block& block, const std::vector<Field>& fields,
                                        std::vector<Column> columns) {
  const Schema& before = block.schema();
  std::vector<Column> all = block.columns();
  bool is_same_schema = true;
  for (std::size_t at = 0; at < fields.size(); ++at) {
    const auto place = before.find(fields[at].name);
    is_same_schema = is_same_schema && place && before[*place] == fields[at];
    place ? all[*place] = std::move(columns[at]) : all.emplace_back(std::move(columns[at]));
  }
  auto schema = is_same_schema ? block.shared_schema() : std::make_shared<const Schema>(with_fields(before, fields));
  return block.with(std::move(schema), std::move(all));
}

}  // namespace detail
}  // namespace railyard::inline v0_1
