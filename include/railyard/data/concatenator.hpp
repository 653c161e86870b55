// SPDX-License-Identifier: MIT
// The preprocessor that makes one column of many: what models take as input. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/numbers.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Puts the numbers of columns one after the other into a column of their own, behind the columns that are left.
/// Shapes: (elements of all columns together).
class Concatenator {
 public:
  struct Options {
    std::vector<std::string> columns{};  ///< in the order of the output
    std::vector<std::string> except{};
    std::string output = "data";
    Dtype dtype = Dtype::f32;  ///< f16, bf16, f32 or f64
    bool keeps_columns = false;
  };

  Concatenator() = default;
  /// Throws: ConfigError if the dtype is not a real one.
  explicit Concatenator(Options options) : options_(std::move(options)) {
    if (detail::is_real(options_.dtype)) return;
    throw ConfigError{detail::compose("Concatenator cannot make {} of all numbers: give .dtype a real one, such as f32",
                                      name_of(options_.dtype))};
  }

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const {
    TouchedColumns columns = detail::touched(options_.columns);
    if (columns) columns->push_back(options_.output);
    return columns;
  }
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const { return detail::fingerprint_of_options(options_).value(); }
  [[nodiscard]] Schema schema(const Schema& before) const { return plan(before).schema; }

  [[nodiscard]] Block transform(const Block& block) const {
    const Plan plan = this->plan(block.schema());
    std::vector<Column> columns;
    for (const std::size_t column : plan.kept) columns.push_back(block[column]);
    columns.push_back(joined(block, plan));
    return block.with(std::make_shared<const Schema>(plan.schema), std::move(columns));
  }

 private:
  struct Plan {
    std::vector<std::size_t> kept{};
    std::vector<std::size_t> joined{};
    Schema schema{};  // the output is the last field
  };

  [[nodiscard]] Plan plan(const Schema& before) const {
    Plan plan;
    std::int64_t width = 0;
    for (const std::string& name : detail::columns_meant("Concatenator", before, options_.columns, options_.except,
                                                         "numbers", detail::has_numbers)) {
      plan.joined.push_back(before.index_of(name));
      width += static_cast<std::int64_t>(before[plan.joined.back()].width());
    }
    std::vector<Field> fields;
    for (std::size_t column = 0; column < before.size(); ++column) {
      const bool is_joined = std::find(plan.joined.begin(), plan.joined.end(), column) != plan.joined.end();
      if (is_joined && !options_.keeps_columns) continue;
      plan.kept.push_back(column);
      fields.push_back(before[column]);
    }
    fields.push_back({.name = options_.output, .dtype = options_.dtype, .shape = {width}});
    plan.schema = Schema{std::move(fields)};
    return plan;
  }

  [[nodiscard]] static Column joined(const Block& block, const Plan& plan) {
    const Field& output = plan.schema[plan.schema.size() - 1];
    std::vector<double> all(block.rows() * output.width());
    std::vector<double> numbers;
    std::size_t first = 0;
    for (const std::size_t column : plan.joined) {
      const std::size_t width = block.schema()[column].width();
      detail::read_numbers(block.schema()[column], block[column], numbers);
      for (std::size_t row = 0; row < block.rows(); ++row) {
        std::copy_n(numbers.data() + row * width, width, all.data() + row * output.width() + first);
      }
      first += width;
    }
    return detail::write_numbers(output, all);
  }

  Options options_{};
};
static_assert(Preprocessor<Concatenator>);

}  // namespace railyard::inline v0_1
