// SPDX-License-Identifier: MIT
// Lets preprocessors learn from datasets on all workers together. Train room.
#pragma once

#include "railyard/train/detail/worker_feed.hpp"
#include "railyard/train/worker.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/fit.hpp"
#include "railyard/data/preprocessor.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Returns what each rank gives, in the order of ranks.
[[nodiscard]] inline std::vector<std::vector<std::byte>> gather_bytes(Worker& worker, std::vector<std::byte> mine) {
  const auto world_size = static_cast<std::size_t>(worker.world_size());
  const auto size = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(world_size);
  worker.all_gather(ConstBuffer{&size, 1, Dtype::i64}, buffer_of(sizes));
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  worker.all_gather_uneven(ConstBuffer{mine.data(), mine.size(), Dtype::u8},
                           Buffer{all.data(), all.size(), Dtype::u8, {}}, counts);
  std::vector<std::vector<std::byte>> parts;
  auto at = all.begin();
  for (const std::size_t count : counts) {
    parts.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return parts;
}

}  // namespace detail

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
