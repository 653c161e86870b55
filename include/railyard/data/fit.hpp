// SPDX-License-Identifier: MIT
// Lets preprocessors learn from datasets. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/cache_node.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/preprocessor.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

// Gives one worker's part of a dataset, block after block, as it comes in epoch 0 of seed 0.
class EpochBlocks final : public BlockReader {
 public:
  // feed: as LoaderWishes have it.
  EpochBlocks(const Dataset& dataset, std::size_t rank, std::size_t world_size, std::shared_ptr<HostFeed> feed = {})
      : reader_(ending(dataset),
                {.global_batch_size = FitOptions{}.rows_per_block * world_size, .rank = rank, .world_size = world_size},
                {.feed = std::move(feed)}),
        reading_(dataset.node()) {}

  // Only the last batch can have fewer samples than there are workers, so that an empty part is the end.
  [[nodiscard]] Block next(std::size_t /*most_rows*/) override {
    std::optional<EpochStep> step = reader_.next();
    if (!step) return {};
    reading_.note(step->block.rows());
    return std::move(step->block);
  }

 private:
  [[nodiscard]] static const Dataset& ending(const Dataset& dataset) {
    if (!dataset.is_endless()) return dataset;
    throw ConfigError{
        compose("fit() was given {}, whose samples have no end: fit before repeat(), or take() as many as are to be "
                "learned from",
                dataset.describe())};
  }

  EpochReader reader_;
  ReadingToEnd reading_;
};

}  // namespace detail

/// Lets a preprocessor learn from all samples of a dataset, before the workers start: what it has learned is in every
/// copy of it. Dataset::transform() then changes samples by it. Throws: as the other fit() does, and ConfigError for a
/// dataset that has no end.
/// Example: ry::StandardScaler scaler{{.except = {"label"}}}; ry::fit(scaler, train_set);
template <LearningPreprocessor P>
void fit(P& preprocessor, const Dataset& dataset) {
  fit(preprocessor, dataset.schema(),
      [&]() -> std::unique_ptr<BlockReader> { return std::make_unique<detail::EpochBlocks>(dataset, 0, 1); });
}

}  // namespace railyard::inline v0_1
