// SPDX-License-Identifier: MIT
// How loaders and readers go over a dataset, and what workers know of it in common. Data room.
#pragma once

#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/data_stock.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

// Is what all workers have alike, and the name that they know it by. What they do with it besides is their own.
struct CommonData {
  NodePtr node{};
  std::string name{};
};

// What workers know of each other's samples of a dataset that is not divided.
enum class Likeness : std::uint8_t {
  none,          // each may have others
  by_arguments,  // alike at the same places, if all workers have given operations the same arguments
  as_given,      // alike: nothing that was done with what all have alike could choose other samples
};

struct DatasetReading {
  bool is_divided = true;
  std::size_t batch_size = 0;
  std::size_t batches_ahead = 8;
  std::shared_ptr<const CommonData> common{};
  Likeness likeness = Likeness::none;
  std::string name{};
};

// A number that is another where other operations, or others of their settings, choose and order the samples.
[[nodiscard]] inline std::uint64_t choice_of(const DataNode& node) {
  DataStock stock = DataStock::of_operations();
  node.take_stock(stock);
  return stock.order();
}

// That of a node which was made of another one by an operation whose arguments tell what it does.
[[nodiscard]] inline DatasetReading reading_after(DatasetReading before, const NodePtr& node, const NodePtr& made) {
  before.likeness = std::min(before.likeness, Likeness::by_arguments);
  if (before.common == nullptr || before.common->node != node) return before;
  const std::string name = compose("{} {:x}", before.common->name, choice_of(*made));
  before.common = std::make_shared<const CommonData>(CommonData{made, name});
  return before;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
