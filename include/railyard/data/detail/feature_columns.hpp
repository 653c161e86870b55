// SPDX-License-Identifier: MIT
// The columns of numbers that a preprocessor has learned from, element by element. Data room.
#pragma once

#include "railyard/data/detail/numbers.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one column: the number of its elements per sample, and of the first one among all elements of all columns.
struct FeatureColumn {
  std::string name{};
  std::uint64_t width = 1;
  std::uint64_t first = 0;
  static void fields(auto& archive, auto& self) { archive(self.name, self.width, self.first); }
};

/// Lists columns whose elements, one after the other, are the features of a sample.
class FeatureColumns {
 public:
  FeatureColumns() = default;
  FeatureColumns(const Schema& schema, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const std::uint64_t width = schema[schema.index_of(name)].width();
      columns_.push_back({.name = name, .width = width, .first = size_});
      size_ += width;
    }
  }

  /// The number of features.
  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(size_); }
  [[nodiscard]] bool empty() const noexcept { return columns_.empty(); }
  [[nodiscard]] auto begin() const noexcept { return columns_.begin(); }
  [[nodiscard]] auto end() const noexcept { return columns_.end(); }

  /// Returns the column's field. Throws: ConfigError if it is gone, or of another size than when it was learned from.
  [[nodiscard]] static const Field& field_in(const Schema& schema, const FeatureColumn& column, std::string_view who) {
    const Field& field = schema[schema.index_of(column.name)];
    if (has_numbers(field) && field.width() == column.width) return field;
    refuse_column(who, field, compose("{} numbers, as where it learned,", column.width));
  }

  /// Calls visit(feature, values) with those of a block that are not missing.
  /// Throws: DataError that names the sample if one is infinite.
  template <class Visit>
  void visit_present(const Block& block, std::string_view who, const Visit& visit) const {
    std::vector<double> numbers;
    std::vector<double> present;
    for (const FeatureColumn& column : columns_) {
      read_numbers(field_in(block.schema(), column, who), block.column(column.name), numbers);
      for (std::size_t element = 0; element < column.width; ++element) {
        present.clear();
        for (std::size_t at = element; at < numbers.size(); at += column.width) {
          if (has_infinity_bits(numbers[at])) refuse_infinity(block.ids()[at / column.width], column, who);
          if (!is_missing(numbers[at])) present.push_back(numbers[at]);
        }
        visit(column.first + element, std::span<const double>{present});
      }
    }
  }

  /// For messages: the column of a feature, and which element of it.
  [[nodiscard]] std::string name_of_feature(std::size_t feature) const {
    for (const FeatureColumn& column : columns_) {
      if (feature >= column.first + column.width) continue;
      if (column.width == 1) return compose("column \"{}\"", column.name);
      return compose("element {} of column \"{}\"", feature - column.first, column.name);
    }
    return compose("feature {}", feature);
  }

  /// Whether each feature belongs to one column, which a state that was read may not be true of.
  [[nodiscard]] bool are_sound() const noexcept {
    std::uint64_t first = 0;
    for (const FeatureColumn& column : columns_) {
      if (column.first != first || column.width == 0 || column.width > size_ - first) return false;
      first += column.width;
    }
    return first == size_;
  }
  static void fields(auto& archive, auto& self) { archive(self.columns_, self.size_); }

 private:
  [[noreturn]] static void refuse_infinity(std::uint64_t id, const FeatureColumn& column, std::string_view who) {
    throw DataError{
        compose("{} cannot learn from sample {}, which is infinite in column \"{}\": filter such samples, "
                "or make the value NaN, which counts as missing",
                who, id, column.name)};
  }

  std::vector<FeatureColumn> columns_{};
  std::uint64_t size_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
