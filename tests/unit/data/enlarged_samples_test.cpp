// SPDX-License-Identifier: MIT
// The bound of memory where operations make samples larger than those they read.
#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"
#include "support/sanitizers.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

constexpr std::size_t small_bound = std::size_t{2} << 20U;
constexpr std::size_t large_sample = 16384;

std::vector<std::int64_t> first_numbers(std::size_t count) {
  std::vector<std::int64_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

ry::Dataset indexed_numbers(std::size_t count) { return ry::Dataset::from_columns({{"n", first_numbers(count)}}); }

ry::Dataset streamed_numbers(std::size_t count) {
  return ry::Dataset::from_generator({{"n", ry::Dtype::i64}}, [count] {
    return [count, at = std::size_t{0}](ry::SampleWriter& out) mutable {
      if (at == count) return false;
      out.set("n", static_cast<std::int64_t>(at++));
      return true;
    };
  });
}

// Adds a column whose bytes are told by the number.
ry::Dataset enlarged(const ry::Dataset& dataset, std::function<std::size_t(std::int64_t)> bytes) {
  const ry::Schema schema{{"n", ry::Dtype::i64}, {"x", ry::Dtype::u8, {-1}}};
  return dataset.map(schema, [bytes = std::move(bytes)](const ry::Sample& in, ry::SampleWriter& out) {
    out.set("x", std::vector<std::uint8_t>(bytes(in.values<std::int64_t>("n")[0]), 1));
  });
}
ry::Dataset enlarged(const ry::Dataset& dataset) {
  return enlarged(dataset, [](std::int64_t /*n*/) { return large_sample; });
}

bool every_sample(const ry::Sample& /*sample*/) { return true; }
void as_it_is(const ry::Sample& /*in*/, ry::SampleWriter& /*out*/) {}

std::size_t most_percent_of_bound(const ry::Dataset& dataset, std::size_t samples, ry::EpochOptions options) {
  options.bound_bytes = small_bound;
  ry::EpochReader reader{dataset, options};
  std::size_t most = 0;
  std::size_t seen = 0;
  while (const auto step = reader.next()) {
    seen += step->samples;
    most = std::max(most, reader.used_bytes());
  }
  CHECK(seen == samples);
  return most * 100 / small_bound;
}

void check_enlarged(const ry::Dataset& dataset, std::size_t samples, std::size_t batch = 8) {
  for (const std::size_t threads : {0U, 1U, 4U}) {
    CAPTURE(dataset.describe().substr(0, 200), threads);
    CHECK(most_percent_of_bound(dataset, samples, {.global_batch_size = batch, .threads = threads}) <= 110);
  }
}

// Samples of every size up to 60 bytes, of which some are doubled and some left out.
ry::Dataset uneven(std::size_t count, bool is_indexed) {
  const ry::Schema schema{{"n", ry::Dtype::i64}, {"x", ry::Dtype::u8, {-1}}};
  const auto numbers = is_indexed ? indexed_numbers(count) : streamed_numbers(count);
  return enlarged(numbers, [](std::int64_t n) { return static_cast<std::size_t>(n * n % 61); })
      .flat_map(schema,
                [](const ry::Sample& in, ry::SampleList& out) {
                  const auto n = in.values<std::int64_t>("n")[0];
                  for (std::int64_t copy = 0; copy < n % 4; ++copy) {
                    out.add().set("n", 4 * n + copy);
                  }
                })
      .filter([](const ry::Sample& in) { return in.values<std::int64_t>("n")[0] % 7 != 0; });
}

using Pairs = std::vector<std::pair<std::int64_t, std::uint64_t>>;

Pairs pairs_of(const ry::Dataset& dataset, const ry::EpochOptions& options, std::size_t steps, ry::EpochPosition& end) {
  ry::EpochReader reader{dataset, options};
  Pairs all;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto next = reader.next();
    if (!next) break;
    for (std::size_t row = 0; row < next->samples; ++row) {
      all.emplace_back(next->block.column("n").values<std::int64_t>(row)[0], next->block.ids()[row]);
    }
  }
  end = reader.position();
  return all;
}

}  // namespace

TEST_CASE("EpochReader: keeps to the bound where samples become larger before something other than a batch") {
  for (const auto& numbers : {indexed_numbers(1000), streamed_numbers(1000)}) {
    check_enlarged(enlarged(numbers).shuffle_window(16), 1000);
    check_enlarged(enlarged(numbers).filter(every_sample), 1000);
    check_enlarged(enlarged(numbers).filter(every_sample).map(as_it_is).filter(every_sample).map(as_it_is), 1000);
    check_enlarged(enlarged(numbers).bucket_by_length("x", 4, 16), 1000);
    check_enlarged(enlarged(numbers.filter(every_sample)).skip(300), 700);
  }
}

TEST_CASE("EpochReader: keeps to the bound where several streams of large samples are joined") {
  std::vector<ry::Dataset> parts;
  for (int part = 0; part < 12; ++part) parts.push_back(enlarged(streamed_numbers(100)));
  check_enlarged(ry::mix(parts, std::vector<double>(parts.size(), 1)), 1200);
  check_enlarged(ry::concat(parts), 1200);
  std::vector<ry::Dataset> columns{streamed_numbers(400)};
  for (int part = 1; part < 6; ++part) {
    const std::string number = std::to_string(part);
    columns.push_back(enlarged(streamed_numbers(400)).rename({{"n", "n" + number}, {"x", "x" + number}}));
  }
  check_enlarged(ry::zip(columns), 400, 2);
}

TEST_CASE("EpochReader: keeps to the bound where many samples come of one, and large ones of these") {
  const auto hundred = [](const ry::Sample& in, ry::SampleList& out) {
    for (int copy = 0; copy < 100; ++copy) out.add().set("n", in.values<std::int64_t>("n")[0]);
  };
  for (const auto& numbers : {indexed_numbers(10), streamed_numbers(10)}) {
    check_enlarged(enlarged(numbers.flat_map(hundred)).filter(every_sample), 1000);
  }
}

TEST_CASE("EpochReader: keeps to the bound where samples become larger late in an epoch, or now and then") {
  const auto late = [](std::int64_t n) { return n < 5000 ? std::size_t{1} : 2 * large_sample; };
  const auto rarely = [](std::int64_t n) { return n % 50 == 49 ? 8 * large_sample : std::size_t{1}; };
  for (const auto& numbers : {indexed_numbers(5200), streamed_numbers(5200)}) {
    check_enlarged(enlarged(numbers, late).filter(every_sample), 5200, 4);
    check_enlarged(enlarged(numbers, rarely).filter(every_sample), 5200, 4);
  }
}

TEST_CASE("EpochReader: of windows that are held together, all count against the bound") {
  const auto window = enlarged(streamed_numbers(400)).shuffle_window(40);  // 640 KiB of 2 MiB
  const ry::EpochOptions options{.global_batch_size = 2, .bound_bytes = small_bound};
  const auto read = [&options](const ry::Dataset& dataset) {
    ry::EpochReader reader{dataset, options};
    std::size_t samples = 0;
    while (const auto step = reader.next()) samples += step->samples;
    return samples;
  };
  CHECK(read(window) == 400);
  CHECK_THROWS_WITH(
      read(ry::mix({window, window, window, window}, {1, 1, 1, 1})),
      ContainsSubstring("shuffle_window(40): the windows that are held at the same time take more than ") &&
          ContainsSubstring("EpochOptions::bound_bytes larger"));
}

TEST_CASE("EpochReader: into how large parts blocks are cut changes neither samples nor where a run goes on") {
  std::mt19937_64 random{7};
  for (const bool is_indexed : {true, false}) {
    const auto dataset = uneven(700, is_indexed);
    ry::EpochPosition end;
    const auto expected = pairs_of(dataset, {.global_batch_size = 64, .threads = 0}, 1000, end);
    REQUIRE(expected.size() > 800);
    for (int round = 0; round < railyard_test::fewer(60); ++round) {
      ry::EpochOptions options{.global_batch_size = 1 + random() % 40, .threads = random() % 4};
      options.bound_bytes = std::size_t{1} << (10 + random() % 12);
      Pairs seen;
      while (seen.size() < expected.size()) {
        CAPTURE(round, seen.size(), options.bound_bytes, options.threads);
        ry::EpochPosition position;
        const auto more = pairs_of(dataset, options, 1 + random() % 30, position);
        REQUIRE(!more.empty());
        seen.insert(seen.end(), more.begin(), more.end());
        options.from.load_state(position.state());
        options.bound_bytes = std::size_t{1} << (10 + random() % 12);
        options.threads = random() % 4;
      }
      REQUIRE(seen == expected);
    }
  }
}
