// SPDX-License-Identifier: MIT
// The short way to a dataset of CSV files. Data room.
#pragma once

#include "railyard/data/csv_source.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/input_files.hpp"

#include <utility>

namespace railyard::inline v0_1 {

/// Makes a dataset of CSV files, by path, list or pattern; see CsvSource. The first rows decide on the types of
/// columns. Throws: DataError if the first file cannot be read or has no columns; ConfigError that lists the columns if
/// the label is none of them. Example: auto digits = ry::read_csv("digits.csv", {.label = "digit"});
[[nodiscard]] inline Dataset read_csv(InputFiles files, CsvSourceOptions options = {}) {
  return Dataset{CsvSource{std::move(files), std::move(options)}};
}

}  // namespace railyard::inline v0_1
