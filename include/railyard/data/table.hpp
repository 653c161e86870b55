// SPDX-License-Identifier: MIT
// A table of numbers with a label per row, and its division into parts. Data room: core and the standard library only.
#pragma once

#include "railyard/data/shuffle.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Holds rows of numbers, each with an integer label. Cheap to copy, and safe to read from many threads: copies and
/// parts share the numbers, which never change.
class Table {
 public:
  /// Shapes: values holds row after row, one value per column; labels one number per row. Throws: ConfigError if the
  /// sizes do not fit.
  Table(std::vector<std::string> columns, std::vector<float> values, std::string label,
        std::vector<std::int64_t> labels) {
    if (columns.empty() || values.size() != labels.size() * columns.size()) {
      throw ConfigError{detail::compose(
          "a Table of {} columns and {} labels was given {} values: give at least one column, and columns x labels "
          "values",
          columns.size(), labels.size(), values.size())};
    }
    rows_ = std::make_shared<const std::vector<std::size_t>>(detail::ordered_indices(labels.size()));
    storage_ = std::make_shared<const Storage>(
        Storage{std::move(columns), std::move(values), std::move(label), std::move(labels)});
  }

  [[nodiscard]] std::size_t num_rows() const noexcept { return rows_->size(); }
  /// The number of columns, the label not among them.
  [[nodiscard]] std::size_t num_columns() const noexcept { return storage_->columns.size(); }
  [[nodiscard]] const std::vector<std::string>& columns() const noexcept { return storage_->columns; }
  /// The name of the label's column.
  [[nodiscard]] const std::string& label() const noexcept { return storage_->label; }

  /// The values of a row, which counts from 0 and is below num_rows().
  [[nodiscard]] std::span<const float> row(std::size_t index) const noexcept {
    return std::span{storage_->values}.subspan((*rows_)[index] * num_columns(), num_columns());
  }
  /// The label of a row.
  [[nodiscard]] std::int64_t label_of(std::size_t index) const noexcept { return storage_->labels[(*rows_)[index]]; }

  /// Returns the table of the given rows, in that order; a row may come more than once. Shares the numbers.
  /// Throws: ConfigError if a row does not exist.
  [[nodiscard]] Table select(std::span<const std::size_t> rows) const {
    std::vector<std::size_t> chosen;
    chosen.reserve(rows.size());
    for (const std::size_t row : rows) {
      if (row >= num_rows()) {
        throw ConfigError{
            detail::compose("row {} was selected from a table of {} rows: rows count from 0", row, num_rows())};
      }
      chosen.push_back((*rows_)[row]);
    }
    Table part = *this;
    part.rows_ = std::make_shared<const std::vector<std::size_t>>(std::move(chosen));
    return part;
  }

 private:
  struct Storage {
    std::vector<std::string> columns{};
    std::vector<float> values{};
    std::string label{};
    std::vector<std::int64_t> labels{};
  };

  std::shared_ptr<const Storage> storage_;
  std::shared_ptr<const std::vector<std::size_t>> rows_;
};

/// Divides the rows at random into one part per fraction. Every row lies in exactly one part; which one is a function
/// of the seed and the number of rows only. Throws: ConfigError if a fraction is not above 0, if they do not sum to 1,
/// or if a part would be empty.
[[nodiscard]] inline std::vector<Table> split(const Table& table, const std::vector<double>& fractions,
                                              std::uint64_t seed = 0) {
  const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
  bool above_zero = true;
  for (const double fraction : fractions) above_zero = above_zero && fraction > 0;
  if (fractions.empty() || !above_zero || std::abs(sum - 1) > 1e-6) {
    throw ConfigError{
        detail::compose("split() was given the fractions {{{}}}, whose sum is {}: give fractions above 0 that "
                        "sum to 1, such as {{0.8, 0.2}}",
                        detail::joined(fractions, ", "), sum)};
  }
  const std::vector<std::size_t> order = detail::shuffled_indices(table.num_rows(), seed);
  std::vector<Table> parts;
  double up_to = 0;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < fractions.size(); ++part) {
    up_to += fractions[part];
    const bool is_last = part + 1 == fractions.size();
    const auto rounded = static_cast<std::size_t>(std::llround(up_to * static_cast<double>(order.size())));
    const std::size_t end = is_last ? order.size() : std::min(rounded, order.size());
    if (end <= begin) {
      throw ConfigError{
          detail::compose("split() of {} rows leaves part {} (fraction {}) without a row: use a larger "
                          "fraction or more rows",
                          order.size(), part, fractions[part])};
    }
    parts.push_back(table.select(std::span{order}.subspan(begin, end - begin)));
    begin = end;
  }
  return parts;
}

/// Does the same for a list of fractions written out, so that the parts can be named.
/// Example: const auto [training, test] = ry::split(table, {0.8, 0.2}, 1);
template <std::size_t N>
[[nodiscard]] std::array<Table, N> split(const Table& table, const double (&fractions)[N], std::uint64_t seed = 0) {
  const std::vector<Table> parts = split(table, std::vector<double>(fractions, fractions + N), seed);
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return std::array<Table, N>{parts[I]...}; }
  (std::make_index_sequence<N>{});
}

}  // namespace railyard::inline v0_1
