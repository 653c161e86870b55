// SPDX-License-Identifier: MIT
// Says how an epoch of a dataset is gone over: in which batches, for which worker, with which means. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/epoch_position.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace railyard::inline v0_1 {

/// Says how an EpochReader goes over a dataset.
struct EpochOptions {
  /// Samples of a batch, all workers together; to be given, or said by Dataset::batch().
  std::size_t global_batch_size = 0;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  /// In an order that is a function of seed and epoch; otherwise in the dataset's own. Needs an indexed dataset.
  bool shuffle = false;
  std::size_t rank = 0;
  std::size_t world_size = 1;
  /// A batch is given in so many parts, one after another, of which each worker has its share.
  std::size_t micro_batches = 1;
  /// Where to go on; at the begin of the epoch, if it is not set.
  EpochPosition from{};
  /// Threads that read ahead. With none, next() reads by itself.
  std::size_t threads = 2;
  /// Batches that are read ahead at most; 0 for what Dataset::prefetch() says.
  std::size_t prefetch = 0;
  /// Bytes that all samples under way may take: those read ahead, those operations work on, the window of a shuffle,
  /// and the block that was given last; however large operations make them, and shared by the datasets of a mix() or
  /// zip(). A batch, and a sample for each operation on a stream with all that flat_map() makes of it, are read even if
  /// they take more: a batch is there twice while it is put together, or an operation makes another of it, and the
  /// bound is broken by as much as it does not hold of that. The window of a shuffle is refused where it leaves no room
  /// for two batches that would have it alone; those of several, which are held at the same time, count together. What
  /// readers of files and decoders need for the text of a record or the pixels of a picture comes on top.
  std::size_t bound_bytes = std::size_t{256} << 20U;
  /// Where a batch has no sample for this worker, its block holds one of another worker's, which does not count.
  bool stands_in = false;
  /// What is left at the end of the epoch, when it fills no batch, is not given.
  bool drop_last = false;
};

namespace detail {

// Fills in what the dataset says and the options do not.
[[nodiscard]] inline EpochOptions completed(EpochOptions options, const Dataset& dataset) {
  if (options.global_batch_size == 0) options.global_batch_size = dataset.batch_size();
  if (options.prefetch == 0) options.prefetch = dataset.batches_ahead();
  return options;
}

// Returns where the reader begins. Throws: ConfigError if the options cannot be met.
[[nodiscard]] inline EpochPosition check_epoch_options(const Dataset& dataset, const EpochOptions& options) {
  const auto refuse = [&](std::string_view what) {
    throw ConfigError{
        compose("a reader of {} on rank {}/{}: {}", dataset.describe(), options.rank, options.world_size, what)};
  };
  if (options.global_batch_size == 0) refuse("global_batch_size must be given: the learning rate depends on it");
  if (options.rank >= options.world_size) refuse("ranks count from 0 and are below the world size");
  if (options.micro_batches == 0) refuse("micro_batches is 0: a batch is given in at least one part");
  const bool is_indexed = dataset.is_indexed();
  if (options.shuffle && dataset.is_endless()) {
    refuse("shuffle needs a dataset that has an end: call shuffle() before repeat(), and leave it out here");
  }
  if (options.shuffle && !is_indexed) {
    refuse(
        "shuffle needs a dataset whose samples can be read in any order: use shuffle_window() on the dataset instead, "
        "or cache() where memory holds all samples");
  }
  const EpochPosition begin{options.seed, options.epoch, options.shuffle, is_indexed ? dataset.count() : std::nullopt};
  if (options.from == EpochPosition{}) return begin;
  if (options.from.moved_to(0, {}) != begin) {
    refuse(compose(
        "the saved position is one of seed {}, epoch {}, {} samples{}, and the reader has seed {}, epoch {}, {} "
        "samples{}: the order of the samples would be another",
        options.from.seed(), options.from.epoch(), options.from.count().value_or(0),
        options.from.is_shuffled() ? ", shuffled" : "", options.seed, options.epoch, begin.count().value_or(0),
        options.shuffle ? ", shuffled" : ""));
  }
  if (is_indexed && options.from.consumed() > *begin.count()) {
    refuse(compose("the saved position is behind {} samples of {}: it is damaged", options.from.consumed(),
                   *begin.count()));
  }
  return options.from;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
