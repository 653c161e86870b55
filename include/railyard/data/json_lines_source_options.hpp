// SPDX-License-Identifier: MIT
// How files of JSON Lines are read. Data room.
#pragma once

#include "railyard/data/on_error.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dtype.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how files of JSON Lines are read.
struct JsonLinesSourceOptions {
  std::string label{};                  ///< which column is the target; none if empty
  std::vector<Field> fields{};          ///< types of columns by name; those of others come from the first lines
  std::vector<std::string> columns{};   ///< reads these only, in this order; all if empty
  bool flatten = false;                 ///< takes {"a": {"b": 1}} for a column "a/b"; else such lines are damaged
  bool ignore_unknown = false;          ///< leaves keys out that the first lines do not have; else they are damage
  Dtype floats = Dtype::f64;            ///< the type of numbers that are no integers: f64 or f32
  std::size_t inference_rows = 10'000;  ///< lines that decide on types: so many, of the first 16 MiB
  std::size_t max_record_bytes = std::size_t{64} << 20;
  OnError on_error = OnError::stop();
};

}  // namespace railyard::inline v0_1
