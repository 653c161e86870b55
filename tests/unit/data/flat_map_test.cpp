// SPDX-License-Identifier: MIT
// What is random of samples that flat_map() has made of one.
#include "railyard/data/dataset.hpp"

#include "railyard/data/batch_mapper.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/split.hpp"

#include "support/catch.hpp"
#include "support/file_content.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/feed_host.hpp"

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

constexpr std::int64_t num_origins = 60;

std::int64_t number_in(const ry::Sample& sample) { return sample.values<std::int64_t>("n")[0]; }

// Ten numbers of each: 10 n to 10 n + 9, but for every third, of which there are none, and every fifth, which stays
// alone.
ry::Dataset ten_of_each(const ry::Dataset& from) {
  return from.flat_map([](const ry::Sample& in, ry::SampleList& out) {
    if (number_in(in) % 3 == 1) return;
    for (std::int64_t at = 0; at < (number_in(in) % 5 == 0 ? 1 : 10); ++at) out.add().set("n", 10 * number_in(in) + at);
  });
}

ry::Dataset origins() {
  std::vector<std::int64_t> numbers(num_origins);
  std::iota(numbers.begin(), numbers.end(), 0);
  return ry::Dataset::from_columns({{"n", numbers}});
}

ry::Dataset drawing(const ry::Dataset& from) {
  return from.map({{"n", ry::Dtype::i64}, {"drawn", ry::Dtype::i64}},
                  [](const ry::Sample& in, ry::SampleWriter& out, ry::SampleRandom& random) {
                    out.set("n", number_in(in));
                    out.set("drawn", random.below(std::uint64_t{1} << 50U));
                  });
}

using Drawn = std::map<std::int64_t, std::int64_t>;  // by number

void collect(const ry::Block& block, Drawn& drawn) {
  for (std::size_t row = 0; row < block.rows(); ++row) {
    const auto number = block.column("n").values<std::int64_t>(row)[0];
    CHECK(drawn.emplace(number, block.column("drawn").values<std::int64_t>(row)[0]).second);
  }
}
Drawn drawn_of(const ry::Dataset& dataset, ry::EpochOptions options = {.global_batch_size = 7}) {
  Drawn drawn;
  for (const ry::EpochStep& step : ry::EpochReader{dataset, std::move(options)}) collect(step.block, drawn);
  return drawn;
}

std::set<std::int64_t> numbers_of(const ry::Dataset& dataset) {
  std::set<std::int64_t> numbers;
  for (const ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = 7}}) {
    for (const std::int64_t number : step.block.column("n").values<std::int64_t>()) {
      CHECK(numbers.insert(number).second);
    }
  }
  return numbers;
}

std::size_t num_different(const Drawn& drawn) {
  std::set<std::int64_t> different;
  for (const auto& [number, value] : drawn) different.insert(value);
  return different.size();
}

}  // namespace

TEST_CASE("flat_map: each of the samples made of one draws random numbers of its own, also through a second one") {
  const Drawn once = drawn_of(drawing(ten_of_each(origins())));
  CHECK(once.size() > 300);
  CHECK(num_different(once) == once.size());
  const Drawn twice = drawn_of(drawing(ten_of_each(ten_of_each(origins()))));
  CHECK(twice.size() > 1000);
  CHECK(num_different(twice) == twice.size());
}

TEST_CASE("flat_map: what a sample draws is a matter of the sample, whoever computes it, and of what") {
  const ry::Dataset tens = ten_of_each(origins());
  const auto same = [](const ry::Block& block) { return block; };
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "cache").string();
  std::vector<Drawn> cached;
  for (const auto& [name, dataset] : std::vector<std::pair<std::string, ry::Dataset>>{
           {"cache()", tens.cache()},
           {"a cache in a file", tens.cache(file)},
           {"a cache in a file that is there", tens.cache(file)},
           {"a cache, shuffled", tens.cache().shuffle()},
           {"shuffle_window()", tens.shuffle_window(40, 3)},
           {"map()", tens.map([](const ry::Sample&, ry::SampleWriter&) {})},
           {"map_batches()", tens.map_batches(same)},
           {"BatchMapper", tens.transform(ry::BatchMapper{same})},
           {"select()", tens.select({"n"})},
           {"concat()", ry::concat({tens, tens.take(0)})},
           {"mix()", ry::mix({tens, tens.take(0)}, {0.5, 0.5})}}) {
    INFO(name);
    const Drawn drawn = drawn_of(drawing(dataset));
    CHECK(drawn.size() == numbers_of(tens).size());
    CHECK(num_different(drawn) == drawn.size());
    const bool is_same = drawn_of(drawing(dataset), {.global_batch_size = 16, .threads = 3}) == drawn;
    CHECK(is_same);
    const Drawn second = drawn_of(drawing(dataset), {.global_batch_size = 7, .epoch = 1});
    const bool is_other = second.size() == drawn.size() && second != drawn;
    CHECK(is_other);
    cached.push_back(drawn);
  }
  CHECK((cached[0] == cached[1] && cached[0] == cached[2]));
}

TEST_CASE("flat_map: what a sample draws is the same on any worker, behind a feed, and from any position") {
  const ry::Dataset dataset = drawing(ten_of_each(origins()).shuffle_window(20));
  const Drawn expected = drawn_of(dataset);
  for (const std::size_t world : {2U, 3U}) {
    const auto seen = test::on_host(world, [&](std::size_t rank, ry::detail::HostFeed& feed) {
      std::vector<ry::Block> blocks;
      ry::EpochReader reader{
          dataset, {.global_batch_size = 16, .rank = rank, .world_size = world}, test::through(feed)};
      while (const auto step = reader.next()) blocks.push_back(step->block);
      return blocks;
    });
    Drawn all;
    for (const auto& blocks : seen) {
      for (const ry::Block& block : blocks) collect(block, all);
    }
    CHECK((all == expected));
  }
  // What the others are fed tells siblings apart as well.
  const auto of_fed = test::on_host(2, [&](std::size_t rank, ry::detail::HostFeed& feed) {
    std::vector<std::uint64_t> siblings;
    ry::EpochReader reader{dataset, {.global_batch_size = 16, .rank = rank, .world_size = 2}, test::through(feed)};
    while (const auto step = reader.next()) {
      siblings.insert(siblings.end(), step->block.siblings().begin(), step->block.siblings().end());
    }
    return siblings.size();
  });
  CHECK(of_fed[0] + of_fed[1] == expected.size());
  for (std::size_t left = 1; left < 20; left += 6) {
    Drawn all;
    ry::EpochPosition position;
    {
      ry::EpochReader reader{dataset, {.global_batch_size = 7}};
      for (std::size_t step = 0; step < left; ++step) {
        const auto read = reader.next();
        REQUIRE(read);
        collect(read->block, all);
        position = read->after;
      }
    }
    for (const ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = 7, .from = position}}) {
      collect(step.block, all);
    }
    CHECK((all == expected));
  }
}

TEST_CASE("flat_map: a filter by chance keeps some of the samples made of one, and split() deals them") {
  const ry::Dataset tens = ten_of_each(origins());
  const auto mixed_origins = [](const std::set<std::int64_t>& numbers) {
    std::map<std::int64_t, std::size_t> by_origin;
    for (const std::int64_t number : numbers) ++by_origin[number / 10];
    std::size_t mixed = 0;
    for (const auto& [origin, count] : by_origin) mixed += count < (origin % 5 == 0 ? 1U : 10U) ? 1 : 0;
    return mixed;
  };
  const auto kept =
      numbers_of(tens.filter([](const ry::Sample&, ry::SampleRandom& random) { return random.chance(0.5); }));
  CHECK(mixed_origins(kept) > 20);
  const auto parts = ry::split(tens, {0.5, 0.5}, 1);
  const auto left = numbers_of(parts[0]);
  const auto right = numbers_of(parts[1]);
  CHECK(mixed_origins(left) > 20);
  CHECK(left.size() + right.size() == numbers_of(tens).size());
  const auto whole = ry::split(origins(), {0.5, 0.5}, 1);  // before it: what is made of one stays together
  CHECK(mixed_origins(numbers_of(ten_of_each(whole[0]))) == 0);
}
