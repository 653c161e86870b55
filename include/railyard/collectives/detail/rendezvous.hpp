// SPDX-License-Identifier: MIT
// How the ranks of a new group find each other in a store. Collectives room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what a store holds under key right now.
[[nodiscard]] inline std::optional<std::string> peek(Store& store, std::string_view key) {
  return store.get(key, Deadline::after(std::chrono::nanoseconds{0}));
}

/// Announces this rank to the next group of that kind on the store and returns the group's prefix for keys. A store may
/// serve several groups, one after the other or at once: every rank's n-th connect with a kind belongs to group n.
[[nodiscard]] inline std::string enter_group(Store& store, std::string_view kind, const World& world) {
  for (int number = 0;; ++number) {
    std::string prefix = fmt::format("{}/{}/", kind, number);
    const std::string key = fmt::format("{}here/{}", prefix, world.rank);
    if (peek(store, key)) continue;  // an earlier connect of this very rank: nobody else sets this key
    store.set(key, world.host);
    return prefix;
  }
}

/// Waits until every rank has left something under prefix + stage + "/" + rank, and returns the values by rank; a rank
/// that did not come by the deadline has none.
[[nodiscard]] inline std::vector<std::optional<std::string>> await_all(Store& store, const std::string& prefix,
                                                                       std::string_view stage, const World& world,
                                                                       const Deadline& deadline) {
  std::vector<std::optional<std::string>> values;
  for (int rank = 0; rank < world.size; ++rank) {
    values.push_back(store.get(fmt::format("{}{}/{}", prefix, stage, rank), deadline));
  }
  return values;
}

/// Throws ConfigError if the world makes no sense.
inline void check_world(const World& world) {
  if (world.size >= 1 && world.rank >= 0 && world.rank < world.size) return;
  throw ConfigError{fmt::format("connect: World::rank is {} and World::size is {}; ranks count from 0 to size - 1",
                                world.rank, world.size)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
