// SPDX-License-Identifier: MIT
// How loaders and readers go over a dataset, and what workers know of it in common. Data room.
#pragma once

#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/data_stock.hpp"

#include "railyard/core/detail/compose.hpp"

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

struct DatasetReading {
  bool is_divided = true;
  std::size_t batch_size = 0;
  std::size_t batches_ahead = 8;
  std::shared_ptr<const CommonData> common{};
  // All workers have the same samples at the same places, as far as this one sees: of what they have alike it was made
  // by operations whose arguments tell what they do.
  bool is_chosen_alike = false;
  std::string name{};
};

// A number that is another where other operations, or others of their settings, choose and order the samples.
[[nodiscard]] inline std::uint64_t choice_of(const DataNode& node) {
  DataStock stock = DataStock::of_operations();
  node.take_stock(stock);
  return stock.order();
}

// What is known in common of a node that was made of another one by an operation whose arguments tell what it does.
[[nodiscard]] inline std::shared_ptr<const CommonData> common_after(const DatasetReading& before, const NodePtr& node,
                                                                    const NodePtr& made) {
  if (before.common == nullptr || before.common->node != node) return before.common;
  const std::string name = compose("{} {:x}", before.common->name, choice_of(*made));
  return std::make_shared<const CommonData>(CommonData{made, name});
}

}  // namespace detail
}  // namespace railyard::inline v0_1
