// SPDX-License-Identifier: MIT
// Makes tensors of the columns of a block. Torch room.
#pragma once

#include "railyard/torch/detail/batch_buffers.hpp"
#include "railyard/torch/detail/tensor_state.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// How long each sample is in its first dimension. Shapes: (samples) of int64.
[[nodiscard]] inline at::Tensor lengths_of(const Field& field, const Column& column, BatchBuffers& buffers) {
  const at::Tensor lengths = buffers.take({static_cast<std::int64_t>(column.rows())}, at::ScalarType::Long);
  auto* to = lengths.data_ptr<std::int64_t>();
  const std::size_t step = field.width() * size_of(field.dtype);
  for (std::size_t row = 0; row < column.rows(); ++row) {
    *to++ = field.is_ragged() ? static_cast<std::int64_t>(column.sample(row).size() / step)
                              : (field.shape.empty() ? 1 : field.shape.front());
  }
  return lengths;
}

// Copies a column: the memory of a block may be that of its dataset, and a batch is the loop's own to write to. Samples
// shorter than the longest end with the padding. Shapes: (samples, those of the field).
[[nodiscard]] inline at::Tensor tensor_of(const Field& field, const Column& column, double padding,
                                          BatchBuffers& buffers) {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(column.rows())};
  shape.insert(shape.end(), field.shape.begin(), field.shape.end());
  const at::ScalarType type = scalar_type_of(field.dtype);
  if (!field.is_ragged()) {
    const at::Tensor tensor = buffers.take(shape, type);
    const auto bytes = column.bytes();
    if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }
  std::size_t longest = 0;  // in bytes
  for (std::size_t row = 0; row < column.rows(); ++row) longest = std::max(longest, column.sample(row).size());
  shape[1] = static_cast<std::int64_t>(longest / (field.width() * size_of(field.dtype)));
  const at::Tensor tensor = buffers.take(shape, type);
  const at::Tensor end = at::full({}, padding, type);
  visit_dtype(field.dtype, [&](auto value) {  // by this thread alone, which may be one that reads ahead
    std::memcpy(&value, end.data_ptr(), sizeof value);
    auto* to = static_cast<decltype(value)*>(tensor.data_ptr());
    for (std::size_t row = 0; row < column.rows(); ++row) {
      const auto elements = column.values<decltype(value)>(row);
      auto* const next = to + longest / sizeof value;
      std::fill(std::copy(elements.begin(), elements.end(), to), next, value);
      to = next;
    }
  });
  return tensor;
}

// Writes the numbers of a column as floats side by side with those of others, of which a sample has `width` in all.
inline void write_floats(const Field& field, const Column& column, float* to, std::size_t width) {
  visit_dtype(field.dtype, [&](auto zero) {
    const auto numbers = column.values<decltype(zero)>();
    const std::size_t own = field.width();
    for (std::size_t row = 0; row < column.rows(); ++row) {
      for (std::size_t at = 0; at < own; ++at) {
        to[row * width + at] = static_cast<float>(numbers[row * own + at]);
      }
    }
  });
}

// Decides what of a block is data and what is target.
class BlockCollation {
 public:
  // label: may be empty. padding: of samples that differ in length. ahead: batches that are made before they are used.
  // is_pinned: for a GPU. Throws: ConfigError if no tensor can be made of the label.
  BlockCollation(const Schema& schema, const std::string& label, double padding, std::size_t ahead = 0,
                 bool is_pinned = false)
      : padding_(padding), buffers_(std::make_shared<BatchBuffers>(is_pinned ? 0 : most_kept_for(ahead), is_pinned)) {
    if (!label.empty()) label_ = schema.index_of(label);
    if (label_ && schema[*label_].is_text) {
      throw ConfigError{
          compose("the label \"{}\" is a column of texts, and a target is made of numbers: number them by "
                  "ry::LabelEncoder (dataset.transform()), or make the tensors by LoaderOptions::collate",
                  label)};
    }
    std::vector<std::size_t> others;
    for (std::size_t column = 0; column < schema.size(); ++column) {
      if (column == label_ || schema[column].is_text) continue;
      (schema[column].is_ragged() ? others : features_).push_back(column);
    }
    if (features_.empty() && others.size() == 1) features_ = std::move(others);
  }

  [[nodiscard]] std::pair<at::Tensor, at::Tensor> operator()(const Block& block) const {
    const auto of_column = [&](std::size_t column) {
      return tensor_of(block.schema()[column], block[column], padding_, *buffers_);
    };
    return {features_.size() == 1 ? of_column(features_.front()) : side_by_side(block),
            label_ ? of_column(*label_) : at::Tensor{}};
  }

 private:
  // Data and target of those that are made ahead, of the one under way, and of those before it that a graph may hold.
  [[nodiscard]] static std::size_t most_kept_for(std::size_t ahead) noexcept {
    return 2 * (std::min<std::size_t>(ahead, 60) + 4);
  }

  [[nodiscard]] at::Tensor side_by_side(const Block& block) const {
    if (features_.empty()) return {};
    std::size_t width = 0;
    for (const std::size_t column : features_) width += block.schema()[column].width();
    const at::Tensor tensor = buffers_->take(
        {static_cast<std::int64_t>(block.rows()), static_cast<std::int64_t>(width)}, at::ScalarType::Float);
    auto* to = tensor.data_ptr<float>();
    for (const std::size_t column : features_) {
      write_floats(block.schema()[column], block[column], to, width);
      to += block.schema()[column].width();
    }
    return tensor;
  }

  std::vector<std::size_t> features_{};
  std::optional<std::size_t> label_{};
  double padding_;
  std::shared_ptr<BatchBuffers> buffers_;  // of all copies, which are used one after another
};

}  // namespace detail
}  // namespace railyard::inline v0_1
