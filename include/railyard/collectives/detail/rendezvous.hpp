// SPDX-License-Identifier: MIT
// How the ranks of a new group find each other in a store. Collectives room.
#pragma once

#include "railyard/collectives/detail/signature.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what a store holds under key right now.
[[nodiscard]] inline std::optional<std::string> peek(Store& store, std::string_view key) {
  return store.get(key, Deadline::after(std::chrono::nanoseconds{0}));
}

[[nodiscard]] inline std::string stage_key(const std::string& prefix, std::string_view stage, int rank) {
  return compose("{}{}/{}", prefix, stage, rank);
}

/// Says that await_each() will be called: before this rank's own value is set, so that the others' come meanwhile.
inline void expect_each(Store& store, const std::string& prefix, std::string_view stage, const World& world) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world.size; ++rank) keys.push_back(stage_key(prefix, stage, rank));
  store.expect(keys);
}

/// Up to so many ranks, each asks for what every other one leaves. Where there are more, rank 0 does, and leaves all of
/// it for the others: the store then answers a number of requests that grows as the ranks do, not as their square.
inline constexpr int most_who_ask_all = 64;

[[nodiscard]] inline bool asks_all(const World& world) noexcept {
  return world.size <= most_who_ask_all || world.rank == 0;
}
[[nodiscard]] inline std::string gathered_key(const std::string& prefix, std::string_view stage) {
  return compose("{}{}/all", prefix, stage);
}

/// Says that await_all() will be called, likewise.
inline void expect_all(Store& store, const std::string& prefix, std::string_view stage, const World& world) {
  if (asks_all(world)) return expect_each(store, prefix, stage, world);
  store.expect({gathered_key(prefix, stage)});
}

/// Announces this rank, with a word of it, to the next group of that kind on the store and returns the group's prefix
/// for keys; the words are those of the stage "here". A store may serve several groups, one after the other or at once:
/// every rank's n-th connect with a kind belongs to group n.
[[nodiscard]] inline std::string enter_group(Store& store, std::string_view kind, const World& world,
                                             std::string_view word) {
  for (int number = 0;; ++number) {
    std::string prefix = compose("{}/{}/", kind, number);
    expect_all(store, prefix, "here", world);
    try {
      store.set(stage_key(prefix, "here", world.rank), word);
      return prefix;
    } catch (const KeyTakenError&) {  // by an earlier connect of this very rank: nobody else sets this key
    }
  }
}
[[nodiscard]] inline std::string enter_group(Store& store, std::string_view kind, const World& world) {
  return enter_group(store, kind, world, world.host);
}

/// Waits until every rank has left something under prefix + stage + "/" + rank, and returns the values by rank; a rank
/// that did not come by the deadline has none.
[[nodiscard]] inline std::vector<std::optional<std::string>> await_each(Store& store, const std::string& prefix,
                                                                        std::string_view stage, const World& world,
                                                                        const Deadline& deadline) {
  std::vector<std::optional<std::string>> values;
  for (int rank = 0; rank < world.size; ++rank) {
    values.push_back(store.get(stage_key(prefix, stage, rank), deadline));
  }
  return values;
}

[[nodiscard]] inline std::string pack_values(const std::vector<std::optional<std::string>>& values) {
  WireWriter writer;
  for (const auto& value : values) {
    writer.put(value.has_value());
    writer.put_text(value.value_or(""));
  }
  return writer.text();
}
[[nodiscard]] inline std::vector<std::optional<std::string>> unpack_values(std::string_view text) {
  std::vector<std::optional<std::string>> values;
  for (WireReader reader{text}; !reader.is_empty();) {
    const bool is_there = reader.take<bool>();
    std::string value = reader.take_text();
    values.push_back(is_there ? std::optional{std::move(value)} : std::nullopt);
  }
  return values;
}

/// Returns the same. All ranks call it: where there are many, they have it from rank 0.
[[nodiscard]] inline std::vector<std::optional<std::string>> await_all(Store& store, const std::string& prefix,
                                                                       std::string_view stage, const World& world,
                                                                       const Deadline& deadline) {
  if (!asks_all(world)) {
    if (const auto gathered = store.get(gathered_key(prefix, stage), deadline)) return unpack_values(*gathered);
    // Rank 0 has not come itself: what is there has to be looked for, in one go.
    expect_each(store, prefix, stage, world);
  }
  auto values = await_each(store, prefix, stage, world, deadline);
  if (world.rank == 0 && world.size > most_who_ask_all) store.set(gathered_key(prefix, stage), pack_values(values));
  return values;
}

/// Lets the others have what there is, before rank 0 leaves by an exception of its own.
inline void leave_all(Store& store, const std::string& prefix, std::string_view stage, const World& world,
                      const Deadline& deadline) noexcept {
  if (world.rank != 0 || world.size <= most_who_ask_all) return;
  try {
    static_cast<void>(await_all(store, prefix, stage, world, deadline));
  } catch (const std::exception&) {  // the store has ended, and with it their waits
  }
}

/// Throws: CollectiveError that names the ranks without a value.
inline void throw_if_missing(const std::vector<std::optional<std::string>>& values, const World& world,
                             const Deadline& deadline) {
  std::vector<int> missing;
  for (int rank = 0; rank < world.size; ++rank) {
    if (!values[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  if (missing.empty()) return;
  throw CollectiveError{"connect", world.rank, missing,
                        compose("{}: {} did not connect in {}", place_text("connect", world.rank, world.size),
                                ranks_text(missing), deadline.budget_text())};
}

/// Throws: CollectiveError that names the ranks without a value, or else the first that has left a reason.
inline void throw_if_failed(const std::vector<std::optional<std::string>>& values, const World& world,
                            const Deadline& deadline) {
  throw_if_missing(values, world, deadline);
  for (int rank = 0; rank < world.size; ++rank) {
    const std::string& text = *values[static_cast<std::size_t>(rank)];
    if (text.empty()) continue;
    throw CollectiveError{
        "connect",
        world.rank,
        {rank},
        compose("{}: rank {} could not connect: {}", place_text("connect", world.rank, world.size), rank, text)};
  }
}

/// Throws ConfigError if the world makes no sense.
inline void check_world(const World& world) {
  if (world.size >= 1 && world.rank >= 0 && world.rank < world.size) return;
  throw ConfigError{compose("connect: World::rank is {} and World::size is {}; ranks count from 0 to size - 1",
                            world.rank, world.size)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
