// SPDX-License-Identifier: MIT
// Samples out of files of one NumPy array each. Data room.
#pragma once

#include "railyard/data/array_source.hpp"
#include "railyard/data/detail/array_table.hpp"
#include "railyard/data/detail/npy_header.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Names the files that a column is in.
struct NpyColumn {
  std::string name;
  ArrayFiles files;
};

/// Says how files of NumPy arrays are read.
struct NpySourceOptions {
  std::string label{};
  OnError on_error = OnError::stop();
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;
};

/// Gives slices of NumPy arrays along their first dimension as samples, of which only what is asked for is read. int16
/// and uint16 become i32, uint32 becomes i64.
/// Cost: an array in Fortran's order takes a read for each element of a sample, or of samples that follow each other.
/// Example: ry::NpySource{{{"x", "x-*.npy"}, {"y", "y-*.npy"}}, {.label = "y"}}
class NpySource : public ArraySource {
 public:
  explicit NpySource(std::vector<NpyColumn> columns, const NpySourceOptions& options = {})
      : ArraySource("NPY", files_of(columns), {options.label, options.on_error, options.max_unpacked_bytes},
                    parse(columns)) {}

 private:
  [[nodiscard]] static std::vector<ArrayFiles> files_of(const std::vector<NpyColumn>& columns) {
    std::vector<ArrayFiles> lists;
    for (const NpyColumn& column : columns) lists.push_back(column.files);
    if (lists.empty()) throw ConfigError{"NpySource was given no columns: name at least one"};
    return lists;
  }
  [[nodiscard]] static Parse parse(const std::vector<NpyColumn>& columns) {
    return [columns](std::span<const std::shared_ptr<const detail::StoredFile>> files,
                     const ArraySourceOptions& /*options*/) {
      std::vector<detail::StoredArray> arrays;
      for (std::size_t at = 0; at < columns.size(); ++at) {
        arrays.push_back(detail::read_npy(columns[at].name, files[at], 0, files[at]->size()));
      }
      return arrays;
    };
  }
};
static_assert(IndexedSource<NpySource>);

}  // namespace railyard::inline v0_1
