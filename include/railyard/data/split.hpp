// SPDX-License-Identifier: MIT
// Divides a dataset into parts such as a training and a test set. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/cache_node.hpp"
#include "railyard/data/detail/permutation.hpp"
#include "railyard/data/sample_random.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/memory_left.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Returns what the fractions add up to before and with each part. Throws: ConfigError if they are none.
[[nodiscard]] inline std::vector<double> sums_of_fractions(const Dataset& dataset,
                                                           const std::vector<double>& fractions) {
  std::vector<double> sums{0};
  bool is_above_zero = !fractions.empty();
  for (const double fraction : fractions) {
    is_above_zero = is_above_zero && fraction > 0;
    sums.push_back(sums.back() + fraction);
  }
  if (!is_above_zero || std::abs(sums.back() - 1) > 1e-6) {
    throw ConfigError{
        compose("split() of {} was given the fractions {{{}}}, whose sum is {}: give fractions above 0 "
                "that sum to 1, such as {{0.8, 0.2}}",
                dataset.describe(), joined(fractions, ", "), sums.back())};
  }
  if (dataset.is_endless()) {
    throw ConfigError{
        compose("split() of {}: its samples have no end, and would go from part to part each time over: split it first "
                "and repeat() the parts, or take() as many as there are to be",
                dataset.describe())};
  }
  if (dataset.node()->is_reordered()) {
    throw ConfigError{
        compose("split() of {}: it comes in another order each epoch, so samples would go from part to "
                "part: split it first and shuffle the parts",
                dataset.describe())};
  }
  sums.back() = 1;
  return sums;
}

// Throws: ConfigError if there are more samples than places of them fit in memory.
inline void check_room_for_places(const Dataset& dataset) {
  const std::uint64_t most = memory_limit() / (4 * sizeof(std::uint64_t));  // whole, dealt and sorted, and room
  if (*dataset.count() <= most) return;
  throw ConfigError{
      compose("split() of {} needs 8 bytes for each of {} samples, and memory is for {} at most: split before "
              "repeat(), or take() as many as there are to be",
              dataset.describe(), *dataset.count(), most)};
}

// Divides places, in a random order, among the parts.
inline void deal(const std::vector<std::uint64_t>& places, const std::vector<double>& sums, std::uint64_t seed,
                 std::vector<std::vector<std::uint64_t>>& parts) {
  const Permutation order{places.size(), seed};
  const auto cut = [&](double sum) {
    return static_cast<std::size_t>(std::llround(sum * static_cast<double>(places.size())));
  };
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t at = cut(sums[part]); at < cut(sums[part + 1]); ++at) {
      parts[part].push_back(places[static_cast<std::size_t>(order(at))]);
    }
  }
}

// Makes datasets of the parts, whose samples stay in the order of the whole: files are read best from begin to end.
// why: what there is too little of.
[[nodiscard]] inline std::vector<Dataset> select_parts(const Dataset& dataset, const std::vector<double>& sums,
                                                       std::vector<std::vector<std::uint64_t>> parts,
                                                       std::string_view why) {
  std::vector<Dataset> datasets;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].empty()) {
      throw ConfigError{compose("split() of {}, which has {} samples, leaves part {} (fraction {}) without one: {}",
                                dataset.describe(), *dataset.count(), part, sums[part + 1] - sums[part], why)};
    }
    std::sort(parts[part].begin(), parts[part].end());
    auto node = std::make_shared<const SelectionNode<>>(
        dataset.node(), compose("{}{:.3g})", DataStock::split_name, sums[part + 1] - sums[part]),
        std::move(parts[part]));
    datasets.push_back(dataset.remade(std::move(node)));
  }
  return datasets;
}

// Deals the samples of a stream by their ids, those that flat_map() has made of one each by itself, and by how often
// they have been dealt: else a part would be divided by the numbers that have made it one, and all of it would lie in
// one part again.
[[nodiscard]] inline std::vector<Dataset> filter_parts(const Dataset& dataset, const std::vector<double>& sums,
                                                       std::uint64_t seed) {
  DataStock stock = DataStock::of_operations();
  dataset.node()->take_stock(stock);
  const std::size_t times = stock.num_splits();
  const std::string again = times == 0 ? std::string{} : compose(", level {}", times + 1);
  const std::uint64_t dealt = times == 0 ? seed : derive_seed(seed, times);
  std::vector<Dataset> datasets;
  for (std::size_t part = 0; part + 1 < sums.size(); ++part) {
    const auto is_in_part = [from = sums[part], to = sums[part + 1], dealt](const Sample& sample) {
      const double drawn = SampleRandom{seed_of_sample(dealt, sample.id(), sample.sibling())}.uniform();
      return drawn >= from && drawn < to;
    };
    datasets.push_back(dataset
                           .filter(is_in_part, compose("{}{:.3g} to {:.3g}, seed {}{})", DataStock::split_name,
                                                       sums[part], sums[part + 1], seed, again))
                           .with_likeness(std::min(dataset.likeness(), Likeness::by_arguments)));
  }
  return datasets;
}

template <std::size_t N>
[[nodiscard]] std::array<Dataset, N> as_array(const std::vector<Dataset>& parts) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return std::array<Dataset, N>{parts[I]...}; }
  (std::make_index_sequence<N>{});
}

}  // namespace detail

/// Divides the samples at random into one part per fraction. Each lies in exactly one part; in which is a function of
/// the seed and the number of samples only. Of a stream it is a function of the seed, the sample's id and how many
/// splits there are before it, and the sizes of the parts only come near the fractions. Behind flat_map() those made of
/// one sample go to any parts, each by itself: split before it, where windows of one text, say, are not to be in two
/// parts. Cost: 8 bytes per sample if the dataset is indexed; each part of a stream reads all of it. Throws:
/// ConfigError if a fraction is not above 0, if they do not sum to 1, if a part would be empty, or if the dataset has
/// been shuffled or has no end.
[[nodiscard]] inline std::vector<Dataset> split(const Dataset& dataset, const std::vector<double>& fractions,
                                                std::uint64_t seed = 0) {
  const std::vector<double> sums = detail::sums_of_fractions(dataset, fractions);
  if (!dataset.is_indexed()) return detail::filter_parts(dataset, sums, seed);
  detail::check_room_for_places(dataset);
  std::vector<std::vector<std::uint64_t>> parts(fractions.size());
  detail::deal(detail::places_between(0, *dataset.count()), sums, seed, parts);
  return detail::select_parts(dataset, sums, std::move(parts), "use a larger fraction or more samples");
}

/// Does the same for a list of fractions written out, so that the parts can be named.
/// Example: const auto [training, test] = ry::split(dataset, {0.8, 0.2}, 1);
template <std::size_t N>
[[nodiscard]] std::array<Dataset, N> split(const Dataset& dataset, const double (&fractions)[N],
                                           std::uint64_t seed = 0) {
  return detail::as_array<N>(split(dataset, std::vector<double>(fractions, fractions + N), seed));
}

/// Divides the samples so that each value of a column is divided by the fractions, to a sample: for classes of which
/// some are rare. Cost: reads the column. Throws: as split() does, and ConfigError if the dataset is not indexed.
[[nodiscard]] inline std::vector<Dataset> split_stratified(const Dataset& dataset, std::string_view column,
                                                           const std::vector<double>& fractions,
                                                           std::uint64_t seed = 0) {
  const std::vector<double> sums = detail::sums_of_fractions(dataset, fractions);
  if (!dataset.is_indexed()) {
    throw ConfigError{
        detail::compose("split_stratified() of {}: its samples can only be read one after another: use "
                        "cache() before, or split()",
                        dataset.describe())};
  }
  detail::check_room_for_places(dataset);
  std::map<std::string, std::vector<std::uint64_t>, std::less<>> places;  // by the value's bytes
  std::uint64_t place = 0;
  detail::for_each_block(dataset.select({std::string{column}}).node(), {}, [&](const Block& block) {
    for (std::size_t row = 0; row < block.rows(); ++row) places[std::string{block[0].text(row)}].push_back(place++);
    return true;
  });
  std::vector<std::vector<std::uint64_t>> parts(fractions.size());
  std::uint64_t value = 0;
  std::size_t most = 0;
  for (const auto& [bytes, of_value] : places) {
    detail::deal(of_value, sums, detail::derive_seed(seed, value++), parts);
    most = std::max(most, of_value.size());
  }
  const std::string why = detail::compose(
      "each of the {} values of \"{}\" has {} samples or fewer, too few for that fraction: use a larger "
      "fraction, put rare values together by map(), or use split()",
      places.size(), column, most);
  return detail::select_parts(dataset, sums, std::move(parts), why);
}

/// Does the same for a list of fractions written out, so that the parts can be named.
template <std::size_t N>
[[nodiscard]] std::array<Dataset, N> split_stratified(const Dataset& dataset, std::string_view column,
                                                      const double (&fractions)[N], std::uint64_t seed = 0) {
  return detail::as_array<N>(split_stratified(dataset, column, std::vector<double>(fractions, fractions + N), seed));
}

}  // namespace railyard::inline v0_1
