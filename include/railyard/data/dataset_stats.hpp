// SPDX-License-Identifier: MIT
// Looks at a dataset: its first samples as a table, and numbers about its columns. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/cache_node.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what the samples of one column are like. Elements of numbers are counted one by one, texts as a whole.
struct ColumnStats {
  Field field{};
  std::uint64_t present = 0;
  std::uint64_t missing = 0;                                  ///< NaN, or empty text
  std::uint64_t infinite = 0;                                 ///< neither present nor missing
  double minimum = std::numeric_limits<double>::quiet_NaN();  ///< of what is present; NaN if nothing is, or it is text
  double maximum = std::numeric_limits<double>::quiet_NaN();
  double mean = std::numeric_limits<double>::quiet_NaN();
  double deviation = std::numeric_limits<double>::quiet_NaN();  ///< of all samples, not an estimate from them
};

/// Says what the samples of a dataset are like.
struct DatasetStats {
  std::uint64_t samples = 0;
  std::vector<ColumnStats> columns{};

  /// The numbers as a table.
  [[nodiscard]] std::string text() const;
};

namespace detail {

// Lays cells out in columns, the first row of which are their names.
[[nodiscard]] inline std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      text += (column == 0 ? "" : "  ") + std::string(widths[column] - row[column].size(), ' ') + row[column];
    }
    text += '\n';
  }
  return text;
}

[[nodiscard]] inline std::string number_text(double number) { return compose("{:.6g}", number); }

// One cell of a table; long ones are cut.
[[nodiscard]] inline std::string cell_text(const Block& block, std::size_t column, std::size_t row) {
  constexpr std::size_t longest_text = 40;
  constexpr std::size_t most_numbers = 4;
  const Field& field = block.schema()[column];
  if (field.is_text) {
    std::string text{block[column].text(row).substr(0, longest_text)};
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    return text.size() < block[column].text(row).size() ? text + "..." : text;
  }
  return visit_dtype(field.dtype, [&](auto zero) {
    const auto values = block[column].template values<decltype(zero)>(row);
    std::string text;
    for (const auto value : values.first(std::min(values.size(), most_numbers))) {
      text += (text.empty() ? "" : " ") + number_text(convert_element<double>(value));
    }
    return values.size() > most_numbers ? text + compose(" ... ({})", values.size()) : text;
  });
}

// Adds numbers to what is known of a column, by Welford's method: squares holds the sum of squared distances, which
// may be more than a double holds.
template <class T>
void add_numbers(std::span<const T> values, ColumnStats& stats, long double& squares) {
  for (const T element : values) {
    const auto value = convert_element<double>(element);
    if (has_nan_bits(value)) {  // not std::isnan, which -ffast-math makes false
      ++stats.missing;
      continue;
    }
    if (has_infinity_bits(value)) {
      ++stats.infinite;
      continue;
    }
    if (stats.present++ == 0) stats.minimum = stats.maximum = stats.mean = value, squares = 0;
    const long double distance = static_cast<long double>(value) - stats.mean;
    stats.mean = static_cast<double>(stats.mean + distance / static_cast<long double>(stats.present));
    squares += distance * (static_cast<long double>(value) - stats.mean);
    stats.minimum = std::min(stats.minimum, value);
    stats.maximum = std::max(stats.maximum, value);
  }
}

}  // namespace detail

/// Reads a dataset, as in epoch 0 of seed 0, and returns what its samples are like. Cost: one pass on one thread.
/// Throws: ConfigError for a dataset that has no end.
[[nodiscard]] inline DatasetStats stats(const Dataset& dataset) {
  if (dataset.is_endless()) {
    throw ConfigError{detail::compose("stats() of {}: its samples have no end: take() as many as are to be looked at",
                                      dataset.describe())};
  }
  DatasetStats all;
  std::vector<long double> squares(dataset.schema().size());
  for (const Field& field : dataset.schema()) all.columns.push_back({.field = field});
  detail::for_each_block(dataset.node(), {}, [&](const Block& block) {
    all.samples += block.rows();
    for (std::size_t column = 0; column < all.columns.size(); ++column) {
      ColumnStats& stats = all.columns[column];
      if (stats.field.is_text) {
        for (std::size_t row = 0; row < block.rows(); ++row)
          ++(block[column].text(row).empty() ? stats.missing : stats.present);
        continue;
      }
      visit_dtype(stats.field.dtype, [&](auto zero) {
        detail::add_numbers(block[column].template values<decltype(zero)>(), stats, squares[column]);
      });
    }
    return true;
  });
  for (std::size_t column = 0; column < all.columns.size(); ++column) {
    ColumnStats& stats = all.columns[column];
    if (!stats.field.is_text && stats.present > 0) {
      stats.deviation = static_cast<double>(std::sqrt(squares[column] / static_cast<long double>(stats.present)));
    }
  }
  return all;
}

/// Returns the first samples of a dataset as a table, as they come in epoch 0 of seed 0.
/// Example: fmt::print("{}", ry::show(dataset));
[[nodiscard]] inline std::string show(const Dataset& dataset, std::size_t samples = 10) {
  std::vector<std::vector<std::string>> rows(1);
  for (const Field& field : dataset.schema()) rows.front().push_back(field.name);
  detail::for_each_block(dataset.node(), {}, [&](const Block& block) {
    for (std::size_t row = 0; row < block.rows() && rows.size() <= samples; ++row) {
      rows.emplace_back();
      for (std::size_t column = 0; column < rows.front().size(); ++column) {
        rows.back().push_back(detail::cell_text(block, column, row));
      }
    }
    return rows.size() <= samples;
  });
  return detail::table_text(rows);
}

inline std::string DatasetStats::text() const {
  std::vector<std::vector<std::string>> rows{
      {"column", "dtype", "present", "missing", "infinite", "min", "max", "mean", "std"}};
  for (const ColumnStats& column : columns) {
    rows.push_back({column.field.name, column.field.is_text ? "text" : std::string{name_of(column.field.dtype)},
                    std::to_string(column.present), std::to_string(column.missing), std::to_string(column.infinite)});
    for (const double number : {column.minimum, column.maximum, column.mean, column.deviation}) {
      rows.back().push_back(column.field.is_text ? "" : detail::number_text(number));
    }
  }
  return detail::table_text(rows);
}

}  // namespace railyard::inline v0_1
