// SPDX-License-Identifier: MIT
// The preprocessor that gives each sample the length 1. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/numbers.hpp"

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
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how long a sample is: by the sum of its magnitudes, the root of the sum of its squares, or its largest one.
enum class Norm : std::uint8_t { l1, l2, max };

/// Divides all numbers of a sample in the chosen columns by their norm. Learns nothing. Columns keep their dtype if
/// that is a real one, else become f64. A sample whose norm is below ten roundings of 1 (2.2e-15; 1.2e-6 where all
/// columns are f32) stays as it is, as with scikit-learn; one with a missing or infinite value is a DataError that
/// names it.
class Normalizer {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Norm norm = Norm::l2;
  };

  Normalizer() = default;
  explicit Normalizer(Options options) : options_(std::move(options)) {}

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return detail::touched(options_.columns); }
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const { return detail::fingerprint_of_options(options_).value(); }
  [[nodiscard]] Schema schema(const Schema& before) const { return detail::with_fields(before, fields_after(before)); }

  [[nodiscard]] Block transform(const Block& block) const {
    const std::vector<Field> fields = fields_after(block.schema());
    std::vector<std::vector<double>> numbers(fields.size());
    std::vector<double> largest(block.rows());
    for (std::size_t at = 0; at < fields.size(); ++at) {
      const std::size_t index = block.schema().index_of(fields[at].name);
      detail::read_numbers(block.schema()[index], block[index], numbers[at]);
      collect_largest(block, fields[at], numbers[at], largest);
    }
    const std::vector<double> norms = norms_of(fields, numbers, largest);  // in units of unit_of(largest)
    std::vector<Column> columns;
    for (std::size_t at = 0; at < fields.size(); ++at) {
      visit_elements(numbers[at], fields[at], [&](std::size_t row, double& number) {
        if (norms[row] != 0) number = number / unit_of(largest[row]) / norms[row];
      });
      columns.push_back(detail::write_numbers(fields[at], numbers[at]));
    }
    return detail::with_columns(block, fields, std::move(columns));
  }

 private:
  [[nodiscard]] std::vector<Field> fields_after(const Schema& before) const {
    std::vector<Field> fields;
    for (const std::string& name : detail::columns_meant("Normalizer", before, options_.columns, options_.except,
                                                         "numbers", detail::has_numbers)) {
      fields.push_back(before[before.index_of(name)]);
      if (!detail::is_real(fields.back().dtype)) fields.back().dtype = Dtype::f64;
    }
    return fields;
  }

  template <class Numbers, class Visit>
  static void visit_elements(Numbers& numbers, const Field& field, const Visit& visit) {
    const std::size_t width = field.width();
    for (std::size_t row = 0, at = 0; at < numbers.size(); ++row) {
      for (const std::size_t end = at + width; at < end; ++at) visit(row, numbers[at]);
    }
  }

  static void collect_largest(const Block& block, const Field& field, const std::vector<double>& numbers,
                              std::vector<double>& largest) {
    visit_elements(numbers, field, [&](std::size_t row, double number) {
      if (detail::magnitude_bits(number) >= detail::infinity_bits) {
        throw DataError{
            detail::compose("Normalizer cannot normalize sample {}: column \"{}\" is {} there; impute or "
                            "filter such samples first",
                            block.ids()[row], field.name, detail::is_missing(number) ? "missing" : "infinite")};
      }
      largest[row] = std::max(largest[row], std::abs(number));
    });
  }

  // What to divide by, in units in which it is a number; 0 for a sample that stays as it is.
  [[nodiscard]] std::vector<double> norms_of(const std::vector<Field>& fields,
                                             const std::vector<std::vector<double>>& numbers,
                                             const std::vector<double>& largest) const {
    std::vector<double> sums(largest.size());
    for (std::size_t at = 0; at < fields.size() && options_.norm != Norm::max; ++at) {
      visit_elements(numbers[at], fields[at], [&](std::size_t row, double number) {
        const double value = number / unit_of(largest[row]);
        sums[row] += options_.norm == Norm::l1 ? std::abs(value) : value * value;
      });
    }
    const bool are_all_f32 =
        std::all_of(fields.begin(), fields.end(), [](const Field& field) { return field.dtype == Dtype::f32; });
    const double shortest =
        10 * (are_all_f32 ? double{std::numeric_limits<float>::epsilon()} : std::numeric_limits<double>::epsilon());
    std::vector<double> norms(largest.size());
    for (std::size_t row = 0; row < norms.size(); ++row) {
      const double sum = options_.norm == Norm::l2 ? std::sqrt(sums[row]) : sums[row];
      norms[row] = options_.norm == Norm::max ? largest[row] / unit_of(largest[row]) : sum;
      if (norms[row] * unit_of(largest[row]) < shortest) norms[row] = 0;
    }
    return norms;
  }
  // Squares of numbers beyond these neither fit nor count, so such samples are measured in units of their largest.
  [[nodiscard]] static double unit_of(double largest) noexcept {
    return largest == 0 || (largest > 1e-140 && largest < 1e140) ? 1 : largest;
  }

  Options options_{};
};
static_assert(Preprocessor<Normalizer>);

}  // namespace railyard::inline v0_1
