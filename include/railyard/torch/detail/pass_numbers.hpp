// SPDX-License-Identifier: MIT
// What ranks that do not see each other's memory learn of a backward pass, by sums. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/weight_watch.hpp"

#include "railyard/train/detail/control_lane.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Numbers that each rank adds its own to; their sums over all ranks are the summary of a pass.
class PassNumbers {
 public:
  explicit PassNumbers(int world_size) : world_size_(static_cast<std::size_t>(world_size)) {}

  [[nodiscard]] std::size_t count() const noexcept { return waits + world_size_; }

  // Adds what one rank says.
  void add(const PassHeader& header, int rank, std::span<double> numbers) const {
    numbers[0] += header.samples;
    numbers[1] += header.silent;
    numbers[2] += header.has_ended;
    numbers[3] += header.has_replaced;
    numbers[4] += std::cos(header.weights_seen);
    numbers[5] += std::sin(header.weights_seen);
    const auto own = header.wishes.numbers<double>();
    std::transform(own.begin(), own.end(), &numbers[wishes], &numbers[wishes], std::plus{});
    const Places at = places_of(header);
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto number = static_cast<double>(at[i]);
      numbers[places + 2 * i] += number;
      numbers[places + 2 * i + 1] += number * number;
    }
    numbers[waits + static_cast<std::size_t>(rank)] += header.waited;
  }

  // Without the headers of the ranks.
  [[nodiscard]] PassSummary summary_of(std::span<const double> sums) const {
    const auto waited = sums.subspan(waits, world_size_);
    return {.samples = sums[0],
            .num_silent = static_cast<std::uint32_t>(sums[1]),
            .num_ended = static_cast<std::uint32_t>(sums[2]),
            .num_replaced = static_cast<std::uint32_t>(sums[3]),
            .are_weights_apart = WeightWatch::are_apart(sums[4], sums[5], world_size_),
            .wishes = Wishes::of_anyone<double>(sums.subspan<wishes, Wishes::count>()),
            .waits = {waited.begin(), waited.end()}};
  }

  // Whether all ranks are at the same place: the sum of squares over them is least when all are equal.
  [[nodiscard]] bool are_together(std::span<const double> sums) const {
    for (std::size_t at = places; at < waits; at += 2) {
      if (sums[at + 1] * static_cast<double>(world_size_) != sums[at] * sums[at]) return false;
    }
    return true;
  }

  // Where ranks are not together: tells where each of them is. own: headers of ranks from the first one on, which
  // nobody else tells. sum: adds up the numbers of all.
  template <class Sum>
  [[nodiscard]] std::vector<PassHeader> gather(std::span<const PassHeader> own, int first, const Sum& sum) const {
    std::vector<std::int64_t> all(std::tuple_size_v<Places> * world_size_);
    auto to = all.begin() + static_cast<std::ptrdiff_t>(std::tuple_size_v<Places>) * first;
    for (const PassHeader& header : own) {
      const Places at = places_of(header);
      to = std::copy(at.begin(), at.end(), to);
    }
    sum(all);
    std::vector<PassHeader> headers;
    for (std::size_t at = 0; at < all.size(); at += std::tuple_size_v<Places>) {
      const auto place = [&](std::size_t index) { return static_cast<std::uint64_t>(all[at + index]); };
      headers.push_back({.num_slots = static_cast<std::uint32_t>(place(5)),
                         .step = place(1),
                         .pass = place(2),
                         .loop = place(0),
                         .updates = place(3),
                         .weights = place(4),
                         .data = place(6)});
    }
    return headers;
  }

  // Returns what all ranks say. own: texts of ranks from the first one on, which nobody else tells.
  template <class Sum>
  [[nodiscard]] std::vector<std::string> gather_texts(std::span<const std::string> own, int first,
                                                      const Sum& sum) const {
    std::vector<std::int64_t> sizes(world_size_);
    const auto at = static_cast<std::size_t>(first);
    for (std::size_t one = 0; one < own.size(); ++one) sizes[at + one] = static_cast<std::int64_t>(own[one].size());
    sum(sizes);
    std::vector<std::int64_t> characters(
        static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
    auto to = characters.begin() + std::accumulate(sizes.begin(), sizes.begin() + first, std::ptrdiff_t{0});
    for (const std::string& text : own) to = std::copy(text.begin(), text.end(), to);
    sum(characters);
    std::vector<std::string> texts;
    auto from = characters.begin();
    for (const std::int64_t size : sizes) {
      std::string& text = texts.emplace_back();
      for (std::int64_t count = 0; count < size; ++count) text += static_cast<char>(*from++);
    }
    return texts;
  }

 private:
  // What is the same on all ranks that are together.
  using Places = std::array<std::uint64_t, 7>;
  [[nodiscard]] static Places places_of(const PassHeader& header) noexcept {
    return {header.loop, header.step, header.pass, header.updates, header.weights, header.num_slots, header.data};
  }

  static constexpr std::size_t wishes = 6;
  static constexpr std::size_t places = wishes + Wishes::count;
  static constexpr std::size_t waits = places + 2 * std::tuple_size_v<Places>;

  std::size_t world_size_;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
