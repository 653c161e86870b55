// SPDX-License-Identifier: MIT
// Makes a dataset of tensors in memory. Torch room.
#pragma once

#include "railyard/torch/tensor.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/memory_source.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what a dataset of tensors is to be.
struct TensorDatasetOptions {
  std::string label{};  ///< the column that a model is to predict
};

namespace detail {

// Returns a tensor of samples as a column, which shares its memory.
[[nodiscard]] inline NamedColumn column_of(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() == 0 || tensor.layout() != at::kStrided) {
    throw ConfigError{
        compose("from_tensors() was given \"{}\" of shape {}: it must be dense, and its first dimension the number of "
                "samples",
                name, shape_of(tensor))};
  }
  const auto owner = std::make_shared<const at::Tensor>(tensor.detach().cpu().contiguous());
  const at::IntArrayRef sizes = owner->sizes();
  const Field field{.name = name, .dtype = dtype_of_tensor(*owner), .shape = {sizes.begin() + 1, sizes.end()}};
  if (field.width() == 0) {
    throw ConfigError{
        compose("from_tensors() was given \"{}\" of shape {}, whose samples have no elements: leave it out", name,
                shape_of(tensor))};
  }
  const auto rows = static_cast<std::size_t>(sizes.front());
  return {
      field,
      Column{{owner, static_cast<const std::byte*>(owner->data_ptr())}, rows, field.width() * size_of(field.dtype)}};
}

}  // namespace detail

/// Makes a dataset of tensors, whose first dimension counts the samples. It shares their memory: whoever writes to one
/// changes the dataset. What is not contiguous, or not on the CPU, is copied once. Throws: ConfigError if they have not
/// equally many samples, two have one name, or a dtype is none that columns have.
/// Example: ry::Datasets{{"train", ry::from_tensors({{"x", images}, {"y", labels}}, {.label = "y"})}}
[[nodiscard]] inline Dataset from_tensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                          const TensorDatasetOptions& options = {}) {
  std::vector<NamedColumn> columns;
  for (const auto& [name, tensor] : tensors) columns.push_back(detail::column_of(name, tensor));
  const Dataset dataset{MemorySource{std::move(columns), "tensors in memory"}};
  return options.label.empty() ? dataset : dataset.with_label(options.label);
}

}  // namespace railyard::inline v0_1
