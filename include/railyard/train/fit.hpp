// SPDX-License-Identifier: MIT
// Lets preprocessors learn from datasets on all workers together. Train room.
#pragma once

#include "railyard/train/detail/gather.hpp"
#include "railyard/train/detail/worker_feed.hpp"
#include "railyard/train/worker.hpp"

#include "railyard/core/block.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/fit.hpp"
#include "railyard/data/preprocessor.hpp"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Lets a preprocessor learn from a dataset of which each worker reads its part. Called by every worker; all learn the
/// same bits, which differ between numbers of workers as roundings do. What RunConfig::data.split does not name is
/// divided for this as well; what is undivided() otherwise, each worker reads as it has it, and all learn from all of
/// that. A stream is read by one worker of each host, as loaders read it. Throws: as fit() without a worker.
/// Example: ry::fit(worker, scaler, worker.dataset("train"));
template <LearningPreprocessor P>
void fit(Worker& worker, P& preprocessor, const Dataset& dataset) {
  const bool is_own = detail::is_own_part(worker, dataset);
  const Dataset read = is_own ? dataset : Dataset::from_node(dataset.node(), dataset.label());
  const auto rank = static_cast<std::size_t>(is_own ? 0 : worker.rank());
  const auto world_size = static_cast<std::size_t>(is_own ? 1 : worker.world_size());
  const bool is_shared = !is_own && !read.is_indexed() && worker.world_size() > 1;
  const auto open = [&]() -> std::unique_ptr<BlockReader> {
    std::shared_ptr<detail::HostFeed> feed;
    if (is_shared) {
      worker.barrier();  // then nobody reads by itself because another comes late
      if (worker.local_world_size() > 1) feed = detail::next_stream_feed(worker, EpochOptions{}.bound_bytes);
    }
    return std::make_unique<detail::EpochBlocks>(read, rank, world_size, std::move(feed));
  };
  const auto gather = [&worker](std::vector<std::byte> mine) { return detail::gather_bytes(worker, std::move(mine)); };
  fit(preprocessor, dataset.schema(), open, {.gather = gather});
}

}  // namespace railyard::inline v0_1
