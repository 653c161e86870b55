// SPDX-License-Identifier: MIT
// What of an epoch has been consumed: all that a run needs to go on in the middle of it. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

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
  /// Where the streams stand, if the dataset is not indexed.
  [[nodiscard]] const std::vector<std::uint64_t>& place() const noexcept { return place_; }

  /// Returns the position further on in the same epoch.
  [[nodiscard]] EpochPosition moved_to(std::uint64_t consumed, std::vector<std::uint64_t> place) const {
    EpochPosition moved = *this;
    moved.consumed_ = consumed;
    moved.place_ = std::move(place);
    return moved;
  }

  /// Moves on in the same epoch of a dataset that is indexed.
  void move_to(std::uint64_t consumed) noexcept { consumed_ = consumed; }

  /// The same on all ranks. All numbers of 64 bits are text, for no number of JSON has so many.
  [[nodiscard]] State state() const {
    return {{"seed", std::to_string(seed_)},
            {"epoch", std::to_string(epoch_)},
            {"shuffle", is_shuffled_},
            {"count", count_ ? std::to_string(*count_) : std::string{}},
            {"consumed", consumed_ == 0 ? std::string{} : detail::compose("0-{}", consumed_)},  // intervals
            {"place", detail::joined(place_, " ")}};
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
    std::string_view place = state.at("place").as<std::string>();
    while (!place.empty()) {
      const std::size_t end = std::min(place.find(' '), place.size());
      read.place_.push_back(parse("place", place.substr(0, end)));
      place.remove_prefix(std::min(end + 1, place.size()));
    }
    *this = std::move(read);
  }
  friend bool operator==(const EpochPosition&, const EpochPosition&) = default;

 private:
  [[noreturn]] static void refuse(std::string_view name, std::string_view text) {
    throw ConfigError{detail::compose("the saved position of a dataset is damaged: \"{}\" is \"{}\"", name, text)};
  }
  [[nodiscard]] static std::uint64_t parse(std::string_view name, std::string_view text) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) refuse(name, text);
    return number;
  }
  [[nodiscard]] static std::uint64_t number_in(const State& state, std::string_view name) {
    return parse(name, state.at(name).as<std::string>());
  }

  std::uint64_t seed_ = 0;
  std::uint64_t epoch_ = 0;
  bool is_shuffled_ = false;
  std::optional<std::uint64_t> count_{};
  std::uint64_t consumed_ = 0;
  std::vector<std::uint64_t> place_{};
};
static_assert(Stateful<EpochPosition>);

}  // namespace railyard::inline v0_1
