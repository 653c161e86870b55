// SPDX-License-Identifier: MIT
// Tests of HostFeed with what each worker is given as a whole.
#include "railyard/data/detail/host_feed.hpp"

#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/split.hpp"

#include "support/catch.hpp"
#include "unit/data/feed_host.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace ry = railyard;
using ry::detail::HostFeed;
using test::append_fed;
using test::counted_schema;
using test::counted_stream;
using test::FedSamples;
using test::LeadingProcess;
using test::on_host;
using test::read_alone;
using test::seat;
using test::SharedCount;
using test::through;
using test::write_counted;

namespace {

// Any of the same numbers and texts, one by one.
ry::Dataset counted_function(std::size_t count, const SharedCount& made) {
  return ry::Dataset::from_function(counted_schema(), count,
                                    [&made](std::uint64_t id, ry::SampleWriter& out) { write_counted(id, out, made); });
}

ry::Dataset with_drawn_mark(const ry::Dataset& from) {
  return from.map([](const ry::Sample& in, ry::SampleWriter& out, ry::SampleRandom& random) {
    out.set("word", std::string{in.text("word")} + std::to_string(random.below(1000)));
  });
}

// The same, of which an operation has made so much that blocks are cut into parts.
ry::Dataset enlarged_meanwhile(const ry::Dataset& from) {
  const auto enlarge = [](const ry::Sample& in, ry::SampleWriter& out) {
    out.set("word", std::string{in.text("word")} + "." + std::string(1000, 'x'));
  };
  const auto restore = [](const ry::Sample& in, ry::SampleWriter& out) {
    out.set("word", in.text("word").substr(0, in.text("word").find('.')));
  };
  return from.map(enlarge).map(restore);
}

// Others for another rank.
ry::Dataset without_some(const ry::Dataset& from, std::size_t rank) {
  return from.filter([rank](const ry::Sample& in, ry::SampleRandom& random) {
    return (in.id() + rank) % 5 < 2 && random.below(10) > 0;
  });
}
ry::Dataset some_twice(const ry::Dataset& from) {
  return from.flat_map([](const ry::Sample& in, ry::SampleList& out) {
    for (std::uint64_t time = 0; time <= in.id() % 2; ++time) out.add().set("n", in.number("n"));
  });
}

// What all workers have alike, of which each gets the whole.
const std::vector<std::function<ry::Dataset(std::size_t, const SharedCount&)>>& whole_datasets() {
  static const std::vector<std::function<ry::Dataset(std::size_t, const SharedCount&)>> all{
      [](std::size_t count, const SharedCount& made) { return counted_function(count, made).alike("whole"); },
      [](std::size_t count, const SharedCount& made) {
        return with_drawn_mark(counted_function(count, made).skip(count / 3).repeat(2)).alike("whole");
      },
      [](std::size_t count, const SharedCount& made) {
        return with_drawn_mark(counted_function(count, made).alike("whole"));
      },
      [](std::size_t count, const SharedCount& made) { return counted_stream(count, made).alike("whole"); },
      [](std::size_t count, const SharedCount& made) {
        const auto odd = counted_stream(count, made).filter([](const ry::Sample& in) { return in.id() % 2 == 1; });
        return with_drawn_mark(with_drawn_mark(odd.shuffle_window(30)).alike("whole"));
      },
      [](std::size_t count, const SharedCount& made) {
        return with_drawn_mark(without_some(counted_function(count, made).alike("whole"), 0));
      },
      [](std::size_t count, const SharedCount& made) {
        return some_twice(with_drawn_mark(without_some(counted_stream(count, made).alike("whole"), 1)));
      }};
  return all;
}

// All that a worker gets of it through its end.
FedSamples read_through(HostFeed& feed, const ry::Dataset& dataset) {
  FedSamples samples;
  ry::EpochReader reader{dataset, {.global_batch_size = 7}, through(feed)};
  while (const auto step = reader.next()) append_fed(samples, *step);
  return samples;
}

}  // namespace

TEST_CASE("HostFeed: gives each worker all of what each gets as a whole, and each sample is read once") {
  std::mt19937_64 random{7};
  for (std::size_t kind = 0; kind < whole_datasets().size(); ++kind) {
    for (const std::size_t workers : {2U, 4U}) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{300 + random() % 500}}) {
        SharedCount made;
        const auto dataset = whole_datasets()[kind](count, made);
        const ry::EpochOptions options{.global_batch_size = 1 + random() % 30,
                                       .seed = random(),
                                       .epoch = random() % 4,
                                       .shuffle = dataset.is_indexed() && workers == 4,
                                       .micro_batches = 1 + random() % 3,
                                       .threads = 1 + random() % 3,
                                       .prefetch = 1 + random() % 8};
        const FedSamples expected = read_alone(dataset, options);
        const std::uint64_t once = (*made).exchange(0);
        const auto seen = on_host(workers, [&](std::size_t /*rank*/, HostFeed& feed) {
          FedSamples all;
          ry::EpochReader reader{dataset, options, through(feed)};
          while (const auto step = reader.next()) append_fed(all, *step);
          return std::pair{all, feed.alone_from()};
        });
        CAPTURE(kind, workers, count);
        CHECK((*made).load() == once);
        for (const auto& [samples, alone_from] : seen) {
          CHECK(samples == expected);
          CHECK(alone_from == HostFeed::never);
        }
      }
    }
  }
}

TEST_CASE("HostFeed: what each gets as a whole is gone on with where it was left, together and alone") {
  for (std::size_t kind = 0; kind < whole_datasets().size(); ++kind) {
    SharedCount made;
    const auto dataset = whole_datasets()[kind](400, made);
    ry::EpochOptions options{.global_batch_size = 9, .seed = 3, .shuffle = dataset.is_indexed()};
    const FedSamples expected = read_alone(dataset, options);
    const auto parts = on_host(3, [&](std::size_t /*rank*/, HostFeed& feed) {
      FedSamples all;
      ry::EpochReader reader{dataset, options, through(feed)};
      for (int batch = 0; batch < 7; ++batch) append_fed(all, *reader.next());
      return std::pair{all, reader.position()};
    });
    options.from = parts.front().second;
    const auto rests = on_host(3, [&](std::size_t /*rank*/, HostFeed& feed) {
      FedSamples all;
      ry::EpochReader reader{dataset, options, through(feed)};
      while (const auto step = reader.next()) append_fed(all, *step);
      return all;
    });
    const FedSamples rest = read_alone(dataset, options);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      FedSamples all = parts[rank].first;
      CAPTURE(kind, rank);
      CHECK(parts[rank].second == options.from);
      CHECK(rests[rank] == rest);
      all.insert(all.end(), rest.begin(), rest.end());
      CHECK(all == expected);
    }
  }
}

TEST_CASE("HostFeed: workers go over what each gets as a whole as they like, and each sees all that it asks for") {
  std::mt19937_64 random{8};
  for (std::size_t round = 0; round < 12; ++round) {
    SharedCount made;
    const auto dataset = whole_datasets()[round % whole_datasets().size()](200, made);
    const std::size_t batch_size = 1 + random() % 20;
    const std::uint64_t seed = random();
    std::vector<FedSamples> epochs;
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
      epochs.push_back(read_alone(dataset, {.global_batch_size = batch_size, .epoch = epoch}));
    }
    // Each its own epochs, in its own order, some of them to some batch only, with all kinds of threads, and rests
    // where it waits for another one to be done with all.
    std::atomic<std::size_t> done = 0;
    const auto wrong = on_host(
        4,
        [&](std::size_t rank, HostFeed& feed) {
          std::mt19937_64 own{seed + rank};
          const std::size_t num_epochs = rank == round % 4 ? 0 : 1 + own() % 4;
          std::size_t faults = 0;
          std::optional<ry::EpochReader> reader;  // one that was left stays open until the next begins
          for (std::size_t at = 0; at < num_epochs; ++at) {
            const std::uint64_t epoch = own() % 4;
            const std::size_t most = own() % 3 == 0 ? own() % 8 : 1000;
            const bool rests = rank == (round + 1) % 4 && at == 0;
            reader.reset();
            feed.begin_epoch();
            reader.emplace(
                dataset,
                ry::EpochOptions{
                    .global_batch_size = batch_size, .epoch = epoch, .threads = own() % 3, .prefetch = 1 + own() % 4},
                through(feed));
            FedSamples all;
            bool is_over = false;
            for (std::size_t batch = 0; batch < most && !is_over; ++batch) {
              if (rests && batch == 2) {
                while (done.load() < 3) std::this_thread::yield();
              }
              const auto step = reader->next();
              is_over = !step;
              if (step) append_fed(all, *step);
            }
            const FedSamples& expected = epochs[static_cast<std::size_t>(epoch)];
            const bool is_begin = all.size() <= expected.size() && std::equal(all.begin(), all.end(), expected.begin());
            if (!is_begin || (is_over && all.size() != expected.size())) ++faults;
          }
          ++done;
          return faults;
        },
        std::chrono::milliseconds{40});
    CAPTURE(round);
    CHECK(wrong == std::vector<std::size_t>(4, 0));
  }
}

TEST_CASE("HostFeed: two that look alike and have other names are not taken for one") {
  SharedCount made;
  const ry::Schema schema{{"n", ry::Dtype::i64}};
  const auto numbers_from = [&](std::int64_t first, std::string_view name) {
    return ry::Dataset::from_function(schema, 100,
                                      [first](std::uint64_t id, ry::SampleWriter& out) {
                                        out.set("n", first + static_cast<std::int64_t>(id));
                                      })
        .alike(name);
  };
  const std::vector<ry::Dataset> datasets{numbers_from(0, "one"), numbers_from(1000, "other")};
  const auto sums = on_host(
      2,
      [&](std::size_t rank, HostFeed& feed) {
        std::int64_t sum = 0;
        ry::EpochReader reader{datasets[rank], {.global_batch_size = 8}, through(feed)};
        while (const auto step = reader.next()) {
          for (const std::int64_t n : step->block.column("n").values<std::int64_t>()) sum += n;
        }
        return sum;
      },
      std::chrono::milliseconds{100});
  CHECK(sums == std::vector<std::int64_t>{4950, 104950});
}

TEST_CASE("HostFeed: each worker computes by itself what only it does with what all have alike, or reads all of it") {
  SharedCount made;
  const auto seen = on_host(2, [&](std::size_t rank, HostFeed& feed) {
    const auto common = counted_function(60, made).alike("common");
    const auto marked = common.map([rank](const ry::Sample& in, ry::SampleWriter& out) {
      out.set("word", std::string{in.text("word")} + std::to_string(rank));
    });
    const auto filtered = common.filter([rank](const ry::Sample& in) { return in.id() % 2 == rank; });
    std::vector<FedSamples> all;
    for (const ry::Dataset& dataset : {marked, filtered, common.skip(10 * rank), common.shuffle(rank)}) {
      all.push_back(read_through(feed, dataset));
      all.push_back(read_alone(dataset, {.global_batch_size = 7}));
    }
    return all;
  });
  for (const auto& all : seen) {
    for (std::size_t at = 0; at < all.size(); at += 2) CHECK(all[at] == all[at + 1]);
  }
  CHECK(seen[0][0] != seen[1][0]);
}

TEST_CASE("HostFeed: what each worker chooses for itself of what all have alike, in batches of its own, is read once") {
  for (const bool is_stream : {false, true}) {
    SharedCount made;
    const auto common = (is_stream ? counted_stream(1000, made) : counted_function(1000, made)).alike("common");
    const auto dataset_of = [&](std::size_t rank) {
      const auto chosen = without_some(with_drawn_mark(common), rank);
      return rank % 2 == 0 ? with_drawn_mark(chosen) : some_twice(chosen);
    };
    const auto options_of = [](std::size_t rank) {
      return ry::EpochOptions{.global_batch_size = 3 + 5 * rank, .seed = 4, .micro_batches = 1 + rank};
    };
    std::vector<FedSamples> expected;
    for (const std::size_t rank : {0U, 1U, 2U}) expected.push_back(read_alone(dataset_of(rank), options_of(rank)));
    CHECK(expected[0] != expected[1]);
    *made = 0;
    const auto seen = on_host(3, [&](std::size_t rank, HostFeed& feed) {
      FedSamples all;
      ry::EpochReader reader{dataset_of(rank), options_of(rank), through(feed)};
      while (const auto step = reader.next()) append_fed(all, *step);
      if (feed.alone_from() != HostFeed::never) all.push_back("has read alone");
      return all;
    });
    CAPTURE(is_stream);
    CHECK(seen == expected);
    CHECK(*made == 1000);
  }
}

TEST_CASE("HostFeed: workers that choose for themselves go on where the process that reads for them is killed") {
  for (const int num_taken : {0, 1, 30, 31}) {
    SharedCount made;
    const auto samples = counted_function(3000, made);
    const auto common = (num_taken % 2 == 0 ? samples : enlarged_meanwhile(samples)).alike("common");
    const ry::EpochOptions options{.global_batch_size = 8, .prefetch = 1, .bound_bytes = std::size_t{1} << 16U};
    const FedSamples expected = read_alone(some_twice(without_some(common, 1)), options);
    LeadingProcess leader{[&](HostFeed& feed) {
      ry::EpochReader reader{without_some(common, 0), options, through(feed)};
      while (reader.next()) continue;
      while (true) ::pause();  // with its reader
    }};
    HostFeed feed{seat(leader.store(), 1, 2), 4096};
    FedSamples seen;
    ry::EpochReader reader{some_twice(without_some(common, 1)), options, through(feed)};
    for (int batch = 0; batch < num_taken; ++batch) append_fed(seen, *reader.next());
    leader.kill();
    while (const auto step = reader.next()) append_fed(seen, *step);
    CHECK(feed.alone_from() < 3000);
    CHECK(seen == expected);
  }
}

TEST_CASE("HostFeed: what workers throw while they choose comes to them alone, and what the common one throws to all") {
  SharedCount made;
  const auto failures = on_host(2, [&](std::size_t rank, HostFeed& feed) {
    const auto fails_at = [](const ry::Dataset& from, std::uint64_t id) {
      return from.map([id](const ry::Sample& in, ry::SampleWriter&) {
        if (in.id() == id) throw std::runtime_error{"bad sample"};
      });
    };
    const auto common = fails_at(counted_function(2000, made), 1500).alike("common");
    const auto dataset = without_some(rank == 0 ? common : fails_at(common, 700), rank);
    try {
      const ry::EpochOptions options{.global_batch_size = 7, .bound_bytes = std::size_t{1} << 16U};  // small blocks
      ry::EpochReader reader{dataset, options, through(feed)};
      while (reader.next()) continue;
      return std::string{};
    } catch (const ry::DataError& error) {
      return std::string{error.what()};
    }
  });
  CHECK_THAT(failures[0], ContainsSubstring("sample 1500"));
  CHECK_THAT(failures[1], ContainsSubstring("sample 700"));
}

TEST_CASE("is_own_part: what may choose samples by rank makes a part of one's own, and what tells all does not") {
  using ry::detail::is_own_part;
  SharedCount made;
  const auto function = counted_function(60, made);
  const auto common = function.alike("one");
  const auto rest = counted_function(40, made).alike("other");
  const auto all = [](const ry::Sample&) { return true; };
  CHECK_FALSE(is_own_part(common));
  CHECK_FALSE(is_own_part(with_drawn_mark(common).select({"n"})));
  CHECK_FALSE(is_own_part(function.filter(all).alike("filtered")));
  CHECK(is_own_part(common.filter(all)));
  CHECK(is_own_part(with_drawn_mark(common.filter(all)).take(9)));
  CHECK(is_own_part(function.undivided()));
  CHECK(is_own_part(common.undivided()));

  CHECK_FALSE(is_own_part(ry::concat({common, rest})));
  CHECK(ry::concat({common, rest}).common()->name == "concat(one, other)");
  CHECK_FALSE(
      is_own_part(ry::zip({common.cache(), common.alike("two").select({"n"}).rename({{"n", "m"}}).alike("m")})));
  CHECK_FALSE(is_own_part(with_drawn_mark(common.cache()).cache().alike("three")));
  CHECK(is_own_part(ry::concat({common, rest.filter(all)})));
  CHECK(is_own_part(common.filter(all).cache()));
  CHECK_FALSE(is_own_part(ry::mix({common, with_drawn_mark(rest)}, {1, 1}).shuffle_window(4)));
  const auto stream = function.filter(all).alike("stream");
  for (const auto& whole : {common, with_drawn_mark(common), stream}) {
    CHECK_FALSE(is_own_part(whole.skip(10).take(3).repeat(2)));
    CHECK_FALSE(is_own_part(ry::split(whole, {0.5, 0.5})[0]));
  }
  CHECK_FALSE(is_own_part(ry::split_stratified(common.shuffle().cache(), "n", std::vector<double>{1})[0].at({3, 1})));
}

TEST_CASE("HostFeed: what operations make of what all have alike has a name of its own for other arguments") {
  SharedCount made;
  const auto common = counted_function(60, made).alike("one");
  const auto rest = counted_function(40, made).alike("other");
  const std::vector<ry::Dataset> all{common.take(30),
                                     common.take(31),
                                     common.skip(30),
                                     common.shuffle(1),
                                     common.shuffle(2),
                                     common.at({1, 2}),
                                     common.at({2, 1}),
                                     ry::split(common, {0.5, 0.5}, 1)[0],
                                     ry::split(common, {0.5, 0.5}, 2)[0],
                                     ry::mix({common, rest}, {1, 2}),
                                     ry::mix({common, rest}, {1, 3}),
                                     ry::mix({common, rest}, {1, 2}, 1)};
  std::set<std::string> names;
  for (const ry::Dataset& dataset : all) {
    REQUIRE(dataset.is_alike());
    CHECK(names.insert(dataset.common()->name).second);
  }
  CHECK(common.take(30).common()->name == all[0].common()->name);
}

TEST_CASE("HostFeed: what take, shuffle and mix make of what all workers have alike is read once as well") {
  SharedCount made;
  const auto one = counted_function(30, made).alike("one");
  const auto joined = ry::mix({one.shuffle(3).take(20), counted_stream(20, made).alike("other").skip(5)}, {1, 2});
  const auto expected = read_alone(joined, {.global_batch_size = 7});
  const std::size_t decoded = (*made).exchange(0);
  const auto seen = on_host(2, [&](std::size_t, HostFeed& feed) { return read_through(feed, joined); });
  CHECK(seen == std::vector{expected, expected});
  CHECK(*made == decoded);
}

TEST_CASE("HostFeed: what joins datasets that all workers have alike is read once as well") {
  SharedCount made;
  const auto joined = ry::concat({counted_function(30, made).alike("one"), counted_stream(20, made).alike("other")});
  const auto expected = read_alone(joined, {.global_batch_size = 7});
  *made = 0;
  const auto seen = on_host(2, [&](std::size_t, HostFeed& feed) { return read_through(feed, joined); });
  CHECK(seen == std::vector{expected, expected});
  CHECK(*made == 50);
}

TEST_CASE("HostFeed: what is given whole keeps to the bound of memory on all workers") {
  SharedCount made;
  const std::size_t bound = std::size_t{4} << 20U;
  const auto large = ry::Dataset::from_function({{"bytes", ry::Dtype::u8, {16384}}}, 2000,
                                                [](std::uint64_t id, ry::SampleWriter& out) {
                                                  out.set("bytes", std::vector<std::uint8_t>(16384, id & 0xffU));
                                                })
                         .alike("large");  // 32 MB
  const auto halved = large.filter([](const ry::Sample& in) { return in.id() % 2 == 0; });
  for (const ry::Dataset& dataset : {large, halved}) {
    const auto uses = on_host(3, [&](std::size_t /*rank*/, HostFeed& feed) {
      std::size_t largest = 0;
      ry::EpochReader reader{
          dataset,
          {.global_batch_size = 16, .shuffle = dataset.is_indexed(), .prefetch = 1000, .bound_bytes = bound},
          through(feed)};
      while (const auto step = reader.next()) largest = std::max(largest, reader.used_bytes());
      return largest;
    });
    for (const std::size_t largest : uses) CHECK(largest <= bound * 11 / 10);
  }
}

TEST_CASE("HostFeed: the others go on where the process that reads what all get whole is killed") {
  SharedCount made;
  const auto dataset = counted_function(3000, made).alike("whole");
  const ry::EpochOptions options{.global_batch_size = 8, .shuffle = true, .prefetch = 1};
  const FedSamples expected = read_alone(dataset, options);
  *made = 0;
  LeadingProcess leader{[&](HostFeed& feed) {
    ry::EpochReader reader{dataset, options, through(feed)};
    while (reader.next()) continue;
    while (true) ::pause();  // with its reader
  }};
  HostFeed feed{seat(leader.store(), 1, 2), 4096};
  FedSamples seen;
  {
    ry::EpochReader reader{dataset, options, through(feed)};
    for (int batch = 0; batch < 50; ++batch) append_fed(seen, *reader.next());
    CHECK(feed.alone_from() == HostFeed::never);
    leader.kill();  // which waits for this worker to take more
    while (const auto step = reader.next()) append_fed(seen, *step);
  }
  CHECK(feed.alone_from() >= 400);
  CHECK(feed.alone_from() < 3000);
  CHECK(seen == expected);
}

TEST_CASE("FeedTrust: falls when it was waited in vain, more each time, and is there again once it was not") {
  using namespace std::chrono_literals;
  ry::detail::FeedTrust trust{2s};
  CHECK(trust.patience() == 2s);
  trust.lose();
  CHECK(trust.patience() == 50ms);
  trust.lose();
  CHECK(trust.patience() == 25ms);
  for (int time = 0; time < 20; ++time) trust.lose();
  CHECK(trust.patience() == 2ms);
  trust.gain();
  CHECK(trust.patience() == 2s);
}
