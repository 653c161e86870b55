// SPDX-License-Identifier: MIT
// What of an epoch has been consumed: all that a run needs to go on in the middle of it. Data room.
#pragma once

#include "railyard/data/detail/place.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {

/// Says how far all workers together have come in an epoch. It holds for any number of workers and any size of batches.
class EpochPosition {
 public:
  /// At the begin of an epoch.
  EpochPosition() = default;
  EpochPosition(std::uint64_t seed, std::uint64_t epoch, bool shuffle, std::optional<std::uint64_t> count)
      : seed_(seed), epoch_(epoch), is_shuffled_(shuffle), count_(count) {}

  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] bool is_shuffled() const noexcept { return is_shuffled_; }
  /// The samples of the epoch, where that was known.
  [[nodiscard]] std::optional<std::uint64_t> count() const noexcept { return count_; }
  /// The samples that have been consumed: the first of the epoch's order.
  [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_; }
  /// Where the streams stand, and the states of their readers, if the dataset is not indexed.
  [[nodiscard]] const detail::Place& place() const noexcept { return place_; }

  /// Returns the position further on in the same epoch.
  [[nodiscard]] EpochPosition moved_to(std::uint64_t consumed, detail::Place place) const {
    EpochPosition moved = *this;
    moved.consumed_ = consumed;
    moved.place_ = std::move(place);
    return moved;
  }

  /// Moves on in the same epoch of a dataset that is indexed.
  void move_to(std::uint64_t consumed) noexcept { consumed_ = consumed; }

  /// The same on all ranks, or as good: that of any rank holds for all. All numbers of 64 bits are text, for no number
  /// of JSON has so many. Throws: DataError if the state of a generator cannot be saved.
  [[nodiscard]] State state() const {
    return {{"seed", std::to_string(seed_)},
            {"epoch", std::to_string(epoch_)},
            {"shuffle", is_shuffled_},
            {"count", count_ ? std::to_string(*count_) : std::string{}},
            {"consumed", consumed_ == 0 ? std::string{} : detail::compose("0-{}", consumed_)},  // intervals
            {"place", detail::text_of_place(place_)}};
  }
  /// Throws: ConfigError if the state is not one of an EpochPosition.
  void load_state(const State& state) {
    EpochPosition read;
    read.seed_ = number_in(state, "seed");
    read.epoch_ = number_in(state, "epoch");
    read.is_shuffled_ = state.at("shuffle").as<bool>();
    if (!state.at("count").as<std::string>().empty()) read.count_ = number_in(state, "count");
    const auto& consumed = state.at("consumed").as<std::string>();
    if (!consumed.empty()) {
      if (consumed.substr(0, 2) != "0-") refuse("consumed", consumed);
      read.consumed_ = parse("consumed", std::string_view{consumed}.substr(2));
    }
    const auto& place = state.at("place").as<std::string>();
    auto items = detail::place_of_text(place);
    if (!items) refuse("place", std::string_view{place}.substr(0, most_shown));
    read.place_ = std::move(*items);
    *this = std::move(read);
  }
  friend bool operator==(const EpochPosition&, const EpochPosition&) = default;

 private:
  static constexpr std::size_t most_shown = 100;  // of a text that may be long

  [[noreturn]] static void refuse(std::string_view name, std::string_view text) {
    throw ConfigError{detail::compose("the saved position of a dataset is damaged: \"{}\" is \"{}\"", name, text)};
  }
  [[nodiscard]] static std::uint64_t parse(std::string_view name, std::string_view text) {
    const auto number = detail::whole_number(text);
    if (!number) refuse(name, text);
    return *number;
  }
  [[nodiscard]] static std::uint64_t number_in(const State& state, std::string_view name) {
    return parse(name, state.at(name).as<std::string>());
  }

  std::uint64_t seed_ = 0;
  std::uint64_t epoch_ = 0;
  bool is_shuffled_ = false;
  std::optional<std::uint64_t> count_{};
  std::uint64_t consumed_ = 0;
  detail::Place place_{};
};
static_assert(Stateful<EpochPosition>);

}  // namespace railyard::inline v0_1
