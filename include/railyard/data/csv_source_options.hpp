// SPDX-License-Identifier: MIT
// How CSV files are read. Data room.
#pragma once

#include "railyard/data/on_error.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dtype.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how CSV files are read.
struct CsvSourceOptions {
  std::string label{};                 ///< which column is the target; none if empty
  std::vector<Field> fields{};         ///< types of columns by name; those of others come from the first rows
  std::vector<std::string> columns{};  ///< reads these only, in this order; all if empty
  std::vector<std::string> names{};    ///< names the columns of the file instead of its header
  bool has_header = true;              ///< whether the first record of each file names the columns
  char delimiter = ',';
  char quote = '"';  ///< '\0': quotes are characters as any
  /// What stands for no number: NaN in a column of floats. Text is taken as it is, so that NA may be Namibia.
  std::vector<std::string> missing{"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"};
  Dtype floats = Dtype::f64;            ///< the type of numbers that are no integers: f64 or f32
  std::size_t inference_rows = 10'000;  ///< rows that decide on types: so many, of the first 16 MiB
  std::size_t max_record_bytes = std::size_t{64} << 20;
  OnError on_error = OnError::stop();
};

}  // namespace railyard::inline v0_1
