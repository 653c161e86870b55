// SPDX-License-Identifier: MIT
// What a loader gives for each step. Torch room.
#pragma once

#include "railyard/torch/detail/block_tensors.hpp"
#include "railyard/torch/detail/gpu_copies.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/error.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

// The samples that a batch was made of, if they come from a Dataset.
struct BatchColumns {
  Block block{};
  at::Device device{at::kCPU};
  double padding = 0;
};

}  // namespace detail

/// Is one worker's part of a batch.
class Batch {
 public:
  at::Tensor data{};
  at::Tensor target{};  ///< undefined where the dataset has none

  Batch() = default;
  Batch(at::Tensor data_, at::Tensor target_, std::size_t size, bool completes_step = true,
        std::shared_ptr<const detail::BatchColumns> columns = nullptr)
      : data(std::move(data_)),
        target(std::move(target_)),
        size_(size),
        completes_step_(completes_step),
        columns_(std::move(columns)) {}
  /// Makes tensors of samples that no loader gave, such as those to predict for: the data and the target that a loader
  /// of their dataset would make by default. label: the column of the target; there is none if it is empty.
  /// Example: const ry::Batch batch{step.block, dataset.label()};  // of a step of an EpochReader
  explicit Batch(Block block, const std::string& label = {}, double padding = 0)
      : size_(block.rows()),
        columns_(std::make_shared<const detail::BatchColumns>(
            detail::BatchColumns{.block = std::move(block), .padding = padding})) {
    std::tie(data, target) = detail::BlockCollation{columns().schema(), label, padding}(columns());
  }

  /// The number of samples that count: those of data, or 0 where the batch had fewer samples than there are workers and
  /// this one has been given a sample of another worker's, to keep step. Weight sums with it.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether this is the last micro-batch of a step: then backward() averages, and it is time for optimizer.step().
  [[nodiscard]] bool completes_step() const noexcept { return completes_step_; }

  /// All columns of the samples, texts too, and the samples' ids. Throws: ConfigError if the loader has no Dataset.
  [[nodiscard]] const Block& columns() const { return all().block; }
  /// Returns one column. Shapes: (samples, those of its field); where samples differ in length, the first of these is
  /// the longest one's, and the others end with LoaderOptions::padding. Text is its bytes.
  /// Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] at::Tensor tensor(std::string_view name) const {
    const Block& block = columns();
    const std::size_t column = block.schema().index_of(name);
    return on_device([&](detail::BatchBuffers& buffers) {
      return detail::tensor_of(block.schema()[column], block[column], all().padding, buffers);
    });
  }
  /// Returns how long each sample of a column is that was padded. Shapes: (samples) of int64.
  [[nodiscard]] at::Tensor lengths(std::string_view name) const {
    const Block& block = columns();
    const std::size_t column = block.schema().index_of(name);
    return on_device([&](detail::BatchBuffers& buffers) {
      return detail::lengths_of(block.schema()[column], block[column], buffers);
    });
  }

 private:
  [[nodiscard]] const detail::BatchColumns& all() const {
    if (columns_) return *columns_;
    throw ConfigError{"this batch has no columns by name: its loader was not made of a railyard::Dataset"};
  }

  // Makes a tensor in memory from which it goes to the batch's device without a wait of the host.
  template <class Make>
  [[nodiscard]] at::Tensor on_device(const Make& make) const {
    detail::BatchBuffers buffers{0, detail::takes_pinned_memory(all().device)};
    return make(buffers).to(all().device, /*non_blocking=*/true);
  }

  std::size_t size_ = 0;
  bool completes_step_ = true;
  std::shared_ptr<const detail::BatchColumns> columns_{};
};

}  // namespace railyard::inline v0_1
