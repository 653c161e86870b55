// SPDX-License-Identifier: MIT
#include "railyard/data/split.hpp"

#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::vector<std::uint64_t> ids_of(const ry::Dataset& dataset) {
  std::vector<std::uint64_t> ids;
  ry::EpochReader reader{dataset, {.global_batch_size = 100, .threads = 0}};
  while (const auto step = reader.next()) ids.insert(ids.end(), step->block.ids().begin(), step->block.ids().end());
  return ids;
}

// One sample in ten is of class "rare".
ry::Dataset classes(std::size_t count) {
  std::vector<std::string> names(count, "often");
  for (std::size_t sample = 0; sample < count; sample += 10) names[sample] = "rare";
  return ry::Dataset::from_columns({{"class", names}, {"x", std::vector<float>(count)}}).with_label("class");
}

ry::Dataset streamed(const ry::Dataset& dataset) {
  return dataset.filter([](const ry::Sample&) { return true; });
}

}  // namespace

TEST_CASE("split: puts every sample into exactly one part, of the sizes asked for") {
  for (const std::size_t count : {10U, 101U, 70000U}) {
    const auto [training, validation, test] = ry::split(classes(count), {0.7, 0.2, 0.1}, 3);
    CHECK(training.count() == static_cast<std::uint64_t>(std::llround(0.7 * static_cast<double>(count))));
    CHECK(test.label() == "class");
    CHECK(test.is_indexed());
    std::vector<std::uint64_t> all;
    for (const auto& part : {training, validation, test}) {
      const auto ids = ids_of(part);
      CHECK(std::is_sorted(ids.begin(), ids.end()));
      all.insert(all.end(), ids.begin(), ids.end());
    }
    CHECK(!std::is_sorted(all.begin(), all.end()));  // it was random
    CHECK(all.size() == count);
    CHECK(std::set(all.begin(), all.end()).size() == count);
  }
}

TEST_CASE("split: is a function of the seed and stays what it is in every epoch") {
  const auto data = classes(200);
  CHECK(ids_of(ry::split(data, {0.5, 0.5}, 1)[0]) == ids_of(ry::split(data, {0.5, 0.5}, 1)[0]));
  CHECK(ids_of(ry::split(data, {0.5, 0.5}, 1)[0]) != ids_of(ry::split(data, {0.5, 0.5}, 2)[0]));
  const auto half = ry::split(data, {0.5, 0.5}, 1)[1].shuffle();
  ry::EpochReader later{half, {.global_batch_size = 100, .epoch = 7}};
  const auto step = later.next();
  const auto ids = step->block.ids();
  auto expected = ids_of(half);
  std::sort(expected.begin(), expected.end());
  std::vector<std::uint64_t> seen(ids.begin(), ids.end());
  std::sort(seen.begin(), seen.end());
  CHECK(seen == expected);
}

TEST_CASE("split: divides a stream by the ids of its samples, near the fractions") {
  const auto parts = ry::split(streamed(classes(10000)), {0.8, 0.2}, 5);
  const auto training = ids_of(parts[0]);
  const auto test = ids_of(parts[1]);
  CHECK(std::abs(static_cast<double>(test.size()) - 2000) < 240);  // six standard deviations of 40
  std::set<std::uint64_t> all(training.begin(), training.end());
  all.insert(test.begin(), test.end());
  CHECK(all.size() == 10000);
  CHECK(training.size() + test.size() == 10000);
}

TEST_CASE("split: divides a part of a stream again, by the same seed, without regard to how it came about") {
  const auto [training, rest] = ry::split(streamed(classes(10000)), {0.8, 0.2});
  const auto [validation, test] = ry::split(rest, {0.5, 0.5});
  const auto [nearly, least] = ry::split(test, {0.5, 0.5});
  CHECK(std::abs(static_cast<double>(ids_of(validation).size()) - 1000) < 240);
  CHECK(std::abs(static_cast<double>(ids_of(test).size()) - 1000) < 240);
  CHECK(std::abs(static_cast<double>(ids_of(nearly).size()) - 500) < 180);
  CHECK(ids_of(validation).size() + ids_of(nearly).size() + ids_of(least).size() == ids_of(rest).size());
  const auto [again, other] = ry::split(ry::split(streamed(classes(10000)), {0.8, 0.2})[1], {0.5, 0.5});
  CHECK(ids_of(again) == ids_of(validation));
  CHECK(again.describe() == validation.describe());
  CHECK(again.describe() != other.describe());
}

TEST_CASE("split_stratified: divides each value of the column by the fractions") {
  const auto [training, test] = ry::split_stratified(classes(1000), "class", {0.8, 0.2}, 1);
  CHECK(training.count() == 800);
  std::size_t rare = 0;
  for (const std::uint64_t id : ids_of(test)) rare += id % 10 == 0 ? 1 : 0;
  CHECK(rare == 20);
}

TEST_CASE("split: refuses what cannot be divided") {
  const auto data = classes(10);
  CHECK_THROWS_WITH((ry::split(data, {0.5, 0.4})), ContainsSubstring("{0.5, 0.4}, whose sum is 0.9"));
  CHECK_THROWS_WITH((ry::split(data, {1.5, -0.5})), ContainsSubstring("above 0"));
  CHECK_THROWS_WITH((ry::split(data, {0.99, 0.01})), ContainsSubstring("leaves part 1"));
  CHECK_THROWS_WITH((ry::split(data.shuffle(), {0.5, 0.5})), ContainsSubstring("split it first and shuffle the parts"));
  CHECK_THROWS_WITH((ry::split(data.shuffle_window(3).take(5), {0.5, 0.5})), ContainsSubstring("another order"));
  CHECK_THROWS_WITH((ry::split_stratified(streamed(data), "class", {0.5, 0.5})), ContainsSubstring("cache()"));
  CHECK_THROWS_WITH((ry::split_stratified(data, "y", {0.5, 0.5})), ContainsSubstring("no column \"y\""));
}

TEST_CASE("split_stratified: says so where the values are too rare for the fractions") {
  std::vector<std::int64_t> pairs(1000);
  for (std::size_t at = 0; at < pairs.size(); ++at) pairs[at] = static_cast<std::int64_t>(at / 2);
  const auto data = ry::Dataset::from_columns({{"class", pairs}});
  CHECK_THROWS_WITH(ry::split_stratified(data, "class", {0.8, 0.2}), ContainsSubstring("500 values of \"class\"") &&
                                                                         ContainsSubstring("2 samples or fewer") &&
                                                                         ContainsSubstring("split()"));
}

TEST_CASE("split: refuses a dataset that has no end, or more samples than places fit in memory") {
  const auto data = ry::Dataset::from_columns({{"class", std::vector<std::int64_t>{0, 1}}});
  const auto filtered = data.filter([](const ry::Sample&) { return true; });
  for (const auto& endless : {data.repeat(), filtered.repeat()}) {
    CHECK_THROWS_WITH(ry::split(endless, {0.5, 0.5}), ContainsSubstring("split()") && ContainsSubstring("no end"));
  }
  const auto large = data.repeat(std::uint64_t{1} << 50U);
  CHECK_THROWS_WITH(ry::split(large, {0.5, 0.5}), ContainsSubstring("8 bytes for each of 2251799813685248 samples"));
  CHECK_THROWS_WITH(ry::split_stratified(large, "class", {0.5, 0.5}), ContainsSubstring("8 bytes for each"));
}
