// SPDX-License-Identifier: MIT
// Samples out of the tensors of safetensors files. Data room.
#pragma once

#include "railyard/data/array_source.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/detail/tensor_places.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/dataset_source.hpp"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how files of tensors are read.
struct SafetensorsSourceOptions {
  std::vector<std::string> columns{};  ///< the tensors that become columns; none: all, in the order of the header
  std::string label{};
  OnError on_error = OnError::stop();
};

/// Gives slices of the tensors of safetensors files along their first dimension, in which they are equal, as samples.
/// int16 and uint16 become i32, uint32 becomes i64.
/// Example: ry::SafetensorsSource{"features-*.safetensors", {.columns = {"x", "y"}, .label = "y"}}
class SafetensorsSource : public ArraySource {
 public:
  explicit SafetensorsSource(InputFiles files, const SafetensorsSourceOptions& options = {})
      : ArraySource("safetensors", {std::move(files)}, {.label = options.label, .on_error = options.on_error},
                    parse(options.columns)) {}

 private:
  [[nodiscard]] static Parse parse(const std::vector<std::string>& columns) {
    return [columns](std::span<const std::shared_ptr<const detail::StoredFile>> files,
                     const ArraySourceOptions& /*options*/) { return detail::read_tensor_arrays(files[0], columns); };
  }
};
static_assert(IndexedSource<SafetensorsSource>);

}  // namespace railyard::inline v0_1
