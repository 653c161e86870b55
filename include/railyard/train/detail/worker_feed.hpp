// SPDX-License-Identifier: MIT
// A worker's end through which the workers of its host read a dataset once. Train room.
#pragma once

#include "railyard/train/worker.hpp"

#include "railyard/core/buffer.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/dataset_reading.hpp"
#include "railyard/data/detail/host_feed.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

// Counts the streams that a worker reads with others of the host, so that each has a name.
struct SharedStreams {
  static constexpr std::string_view extension_name = "train.shared_streams";
  std::size_t count = 0;
};

// Returns an end of that name; nullptr where there is no memory, or no room in the store: each reads by itself.
// bound_bytes: of each reader.
[[nodiscard]] inline std::shared_ptr<HostFeed> make_feed(Worker& worker, std::string name, std::size_t bound_bytes) {
  const auto local_size = static_cast<std::size_t>(worker.local_world_size());
  const std::size_t capacity =
      std::clamp<std::size_t>(bound_bytes / 64 / local_size, std::size_t{64} << 10U, std::size_t{4} << 20U);
  HostFeed::Seat seat{.store = &worker.store(),
                      .name = std::move(name),
                      .local_rank = static_cast<std::size_t>(worker.local_rank()),
                      .local_size = local_size};
  seat.patience = std::min(seat.patience, worker.collective_deadline().remaining() / 4);
  try {
    return std::make_shared<HostFeed>(std::move(seat), capacity);
  } catch (const Error&) {
    return nullptr;
  }
}

// Returns that of the next stream which is divided among the workers; called by all of them in the same order.
[[nodiscard]] inline std::shared_ptr<HostFeed> next_stream_feed(Worker& worker, std::size_t bound_bytes) {
  const std::size_t number = worker.extension<SharedStreams>().count++;
  return make_feed(worker, compose("stream/{}/{}", worker.world().node, number), bound_bytes);
}

// Says whether each rank has a part of its own, as it has too where ranks have given an operation other arguments. A
// collective of what is not divided.
[[nodiscard]] inline bool is_own_part(Worker& worker, const Dataset& dataset) {
  if (dataset.is_divided()) return false;
  const auto choice = static_cast<std::int64_t>(choice_of(*dataset.node()) >> 2U);
  std::int64_t bounds[3] = {is_own_part(dataset) ? 1 : 0, choice, -choice};
  worker.all_reduce(buffer_of(bounds), ReduceOp::max);
  return bounds[0] != 0 || bounds[1] != -bounds[2];
}

}  // namespace detail
}  // namespace railyard::inline v0_1
