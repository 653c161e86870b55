// SPDX-License-Identifier: MIT
#include "railyard/data/detail/host_feed.hpp"

#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/split.hpp"

#include "support/catch.hpp"
#include "unit/data/feed_host.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

namespace ry = railyard;
using ry::detail::HostFeed;
using test::append_fed;
using test::await_rest;
using test::counted_stream;
using test::FedSamples;
using test::LeadingProcess;
using test::MapStore;
using test::on_host;
using test::read_alone;
using test::seat;
using test::SharedCount;
using test::through;

TEST_CASE("HostFeed: gives each worker what it would read alone, and each sample is read once") {
  const std::vector<std::function<ry::Dataset(const ry::Dataset&)>> operations{
      [](const ry::Dataset& from) { return from; },
      [](const ry::Dataset& from) {
        return from.filter([](const ry::Sample& in) { return in.id() % 3 != 0; })
            .shuffle_window(40)
            .map([](const ry::Sample& in, ry::SampleWriter& out) {
              out.set("word", std::string{in.text("word")} + "!");
            });
      },
      [](const ry::Dataset& from) { return from.bucket_by_length("word", 16, 64).skip(3); },
      [](const ry::Dataset& from) { return from.take(0); }};
  for (std::size_t at = 0; at < operations.size(); ++at) {
    for (const std::size_t world : {2U, 3U, 5U}) {
      SharedCount made;
      const auto dataset = operations[at](counted_stream(700, made));
      ry::EpochOptions options{.global_batch_size = 17,
                               .epoch = 1,
                               .world_size = world,
                               .micro_batches = world - 1,
                               .threads = world - 1,
                               .stands_in = world == 5};
      static_cast<void>(read_alone(dataset, options));
      const std::uint64_t once = (*made).exchange(0);
      const auto seen = on_host(world, [&](std::size_t rank, HostFeed& feed) {
        ry::EpochOptions own = options;
        own.rank = rank;
        FedSamples all;
        ry::EpochReader reader{dataset, own, through(feed)};
        while (const auto step = reader.next()) append_fed(all, *step);
        return all;
      });
      CAPTURE(at, world);
      CHECK((*made).load() == once);
      for (options.rank = 0; options.rank < world; ++options.rank) {
        CHECK(seen[options.rank] == read_alone(dataset, options));
      }
    }
  }
}

TEST_CASE("HostFeed: goes on from a position, epoch after epoch") {
  SharedCount made;
  const auto dataset = counted_stream(300, made).shuffle_window(30);
  const auto seen = on_host(3, [&](std::size_t rank, HostFeed& feed) {
    std::vector<FedSamples> epochs;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      ry::EpochOptions options{.global_batch_size = 12, .epoch = epoch, .rank = rank, .world_size = 3};
      FedSamples all;
      {
        ry::EpochReader reader{dataset, options, through(feed)};
        for (int batch = 0; batch < 7; ++batch) append_fed(all, *reader.next());
        options.from = reader.position();
      }
      ry::EpochReader reader{dataset, options, through(feed)};
      while (const auto step = reader.next()) append_fed(all, *step);
      epochs.push_back(all);
    }
    return epochs;
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      CHECK(seen[rank][epoch] ==
            read_alone(dataset, {.global_batch_size = 12, .epoch = epoch, .rank = rank, .world_size = 3}));
    }
  }
}

TEST_CASE("HostFeed: gives each sample once when runs end anywhere and go on with other workers") {
  std::mt19937_64 random{6};
  for (int round = 0; round < 8; ++round) {
    SharedCount made;
    const auto stream = counted_stream(random() % 900, made);
    const auto dataset = round % 2 == 0 ? stream.shuffle_window(60) : stream.bucket_by_length("word", 10, 50);
    ry::EpochOptions options{.global_batch_size = 1 + random() % 20, .epoch = random() % 4};
    std::vector<std::int64_t> all;
    bool is_over = false;
    while (!is_over) {
      options.world_size = 1 + random() % 4;
      options.micro_batches = 1 + random() % 3;
      const std::size_t batches = 1 + random() % 40;
      const auto parts = on_host(options.world_size, [&](std::size_t rank, HostFeed& feed) {
        ry::EpochOptions own = options;
        own.rank = rank;
        ry::EpochReader reader{dataset, own, through(feed)};
        std::vector<std::int64_t> numbers;
        for (std::size_t batch = 0; batch < batches;) {
          const auto step = reader.next();
          if (!step) return std::tuple{numbers, reader.position(), true};
          for (std::size_t row = 0; row < step->samples; ++row) {
            numbers.push_back(step->block.column("n").values<std::int64_t>(row)[0]);
          }
          batch += step->completes_batch ? 1 : 0;
        }
        return std::tuple{numbers, reader.position(), false};
      });
      for (const auto& [numbers, position, ends] : parts) {
        all.insert(all.end(), numbers.begin(), numbers.end());
        CHECK(position == std::get<1>(parts.front()));
        CHECK(ends == std::get<2>(parts.front()));
      }
      options.from = std::get<1>(parts.front());
      is_over = std::get<2>(parts.front());
    }
    std::sort(all.begin(), all.end());
    std::vector<std::int64_t> expected(all.size());
    std::iota(expected.begin(), expected.end(), 0);
    CAPTURE(round);
    REQUIRE(all == expected);
    REQUIRE(all.size() == options.from.consumed());
  }
}

TEST_CASE("HostFeed: who comes late, leaves, or stops taking holds nobody up, and everybody sees what is theirs") {
  SharedCount made;
  const auto dataset = counted_stream(500, made);
  // 0 reads all; 1 never comes; 2 reads three batches and then waits for the others; 3 leaves after five.
  for (const std::size_t shift : {0U, 1U, 2U, 3U}) {
    std::atomic<std::size_t> done = 0;
    const auto seen = on_host(
        4,
        [&](std::size_t rank, HostFeed& feed) {
          const std::size_t role = (rank + shift) % 4;
          FedSamples all;
          if (role == 1) {
            while (done.load() < 2) std::this_thread::yield();
          }
          ry::EpochReader reader{
              dataset, {.global_batch_size = 8, .rank = rank, .world_size = 4, .prefetch = 2}, through(feed)};
          for (int batch = 0; role != 3 || batch < 5; ++batch) {
            if (role == 2 && batch == 3) {
              while (done.load() < 2) std::this_thread::yield();
            }
            const auto step = reader.next();
            if (!step) break;
            append_fed(all, *step);
          }
          if (role == 0 || role == 3) ++done;
          return all;
        },
        std::chrono::milliseconds{100});
    for (std::size_t rank = 0; rank < 4; ++rank) {
      FedSamples expected = read_alone(dataset, {.global_batch_size = 8, .rank = rank, .world_size = 4});
      if ((rank + shift) % 4 == 3) expected.resize(10);
      CAPTURE(shift, rank);
      CHECK(seen[rank] == expected);
    }
  }
}

TEST_CASE("HostFeed: a worker gets nothing twice when the one that reads begins the same epoch again meanwhile") {
  SharedCount made;
  const auto dataset = counted_stream(500, made);
  std::atomic<bool> has_begun = false;
  std::atomic<bool> has_begun_again = false;
  const auto seen = on_host(
      2,
      [&](std::size_t rank, HostFeed& feed) {
        const ry::EpochOptions options{.global_batch_size = 8, .rank = rank, .world_size = 2, .prefetch = 2};
        FedSamples all;
        if (rank == 0) {
          ry::EpochReader first{dataset, options, through(feed)};
          static_cast<void>(first.next());
          while (!has_begun) std::this_thread::yield();
          await_rest(made);  // then the other does not notice for now that this ends
        }
        ry::EpochReader reader{dataset, options, through(feed)};
        while (const auto step = reader.next()) {
          append_fed(all, *step);
          (rank == 0 ? has_begun_again : has_begun) = true;
          while (!has_begun_again) std::this_thread::yield();
        }
        return all;
      },
      std::chrono::milliseconds{100});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(seen[rank] == read_alone(dataset, {.global_batch_size = 8, .rank = rank, .world_size = 2}));
  }
}

TEST_CASE("HostFeed: other data under the same name is not taken for one's own") {
  SharedCount made;
  const auto parts = ry::split(counted_stream(300, made), {0.5, 0.5}, 1);
  const auto other = counted_stream(300, made).shuffle_window(40, 1);
  const std::vector<ry::Dataset> datasets{parts[0], parts[1], other, counted_stream(300, made).shuffle_window(40, 2)};
  for (const std::size_t first : {0U, 2U}) {
    const auto seen = on_host(
        2,
        [&](std::size_t rank, HostFeed& feed) {
          FedSamples all;
          ry::EpochReader reader{
              datasets[first + rank], {.global_batch_size = 8, .rank = rank, .world_size = 2}, through(feed)};
          while (const auto step = reader.next()) append_fed(all, *step);
          return all;
        },
        std::chrono::milliseconds{100});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const ry::EpochOptions options{.global_batch_size = 8, .rank = rank, .world_size = 2};
      CHECK(seen[rank] == read_alone(datasets[first + rank], options));
    }
  }
}

TEST_CASE("HostFeed: takes a worker that has much to do for no reason to read by oneself") {
  SharedCount made;
  constexpr std::chrono::milliseconds patience{1000};
  const auto dataset = counted_stream(900, made).map_batches([patience](const ry::Block& block) {
    const auto deadline = ry::Deadline::after(patience + patience / 4);
    while (!deadline.expired()) continue;
    return block;
  });
  std::atomic<int> here = 0;
  const auto seen = on_host(
      2,
      [&](std::size_t rank, HostFeed& feed) {
        const ry::EpochOptions options{.global_batch_size = 300, .rank = rank, .world_size = 2, .threads = 1};
        std::size_t samples = 0;
        ++here;
        while (here < 2) std::this_thread::yield();
        for (const ry::EpochStep& step : ry::EpochReader{dataset, options, through(feed)}) samples += step.samples;
        return samples;
      },
      patience);
  CHECK(seen == std::vector<std::size_t>{450, 450});
  CHECK((*made).load() == 900);
}

namespace {

// Numbered samples of 10 kB each, of which a reader with the options below has no room for a second batch.
ry::Dataset large_stream(std::size_t count, const SharedCount& made) {
  return ry::Dataset::from_generator({{"n", ry::Dtype::i64}, ry::Field::text("word")}, [count, &made] {
    return [count, &made, at = std::uint64_t{0}](ry::SampleWriter& out) mutable {
      if (at == count) return false;
      ++*made;
      out.set("n", static_cast<std::int64_t>(at++));
      out.set("word", std::string(10'000, 'x'));
      return true;
    };
  });
}
ry::EpochOptions tight_options(std::size_t rank) {
  return {.global_batch_size = 8, .rank = rank, .world_size = 2, .threads = 1, .bound_bytes = 100'000};
}

}  // namespace

TEST_CASE("HostFeed: takes a worker that has no memory for more while its loop is slow for no reason to read twice") {
  constexpr std::chrono::milliseconds patience{1000};
  for (const std::size_t slow : {0U, 1U}) {
    SharedCount made;
    const auto dataset = large_stream(40, made);
    std::barrier both{2};
    const auto seen = on_host(
        2,
        [&](std::size_t rank, HostFeed& feed) {
          both.arrive_and_wait();
          std::size_t samples = 0;
          for (const ry::EpochStep& step : ry::EpochReader{dataset, tight_options(rank), through(feed)}) {
            samples += step.samples;
            both.arrive_and_wait();  // as workers that keep step
            const auto deadline = ry::Deadline::after(patience + patience / 4);
            while (rank == slow && samples == 12 && !deadline.expired()) std::this_thread::yield();
          }
          return std::pair{samples, feed.alone_from()};
        },
        patience);
    CAPTURE(slow);
    for (const auto& [samples, alone_from] : seen) {
      CHECK(samples == 20);
      CHECK(alone_from == HostFeed::never);
    }
    CHECK((*made).load() == 40);
  }
}

TEST_CASE("HostFeed: a worker that has no memory for more, and whose loop has stopped, holds nobody up for good") {
  for (const std::size_t stopped : {0U, 1U}) {
    SharedCount made;
    const auto dataset = large_stream(40, made);
    std::atomic<bool> is_done = false;
    const auto seen = on_host(
        2,
        [&](std::size_t rank, HostFeed& feed) {
          std::size_t samples = 0;
          for (const ry::EpochStep& step : ry::EpochReader{dataset, tight_options(rank), through(feed)}) {
            samples += step.samples;
            while (rank == stopped && !is_done) std::this_thread::yield();
          }
          is_done = true;
          return samples;
        },
        std::chrono::milliseconds{20});
    CAPTURE(stopped);
    CHECK(seen == std::vector<std::size_t>{20, 20});
  }
}

TEST_CASE("HostFeed: tells every worker what is wrong with a sample") {
  SharedCount made;
  const auto dataset = counted_stream(100, made).filter([](const ry::Sample& in) -> bool {
    if (in.id() == 50) throw std::runtime_error{"no good"};
    return true;
  });
  const auto errors = on_host(3, [&](std::size_t rank, HostFeed& feed) {
    ry::EpochReader reader{dataset, {.global_batch_size = 9, .rank = rank, .world_size = 3}, through(feed)};
    std::size_t batches = 0;
    try {
      while (reader.next()) ++batches;
    } catch (const ry::DataError& error) {
      return std::pair{batches, std::string{error.what()}};
    }
    return std::pair{batches, std::string{}};
  });
  for (const auto& [batches, error] : errors) {
    CHECK(batches > 0);
    CHECK_THAT(error, Catch::ContainsSubstring("sample 50") && Catch::ContainsSubstring("no good"));
  }
}

TEST_CASE("HostFeed: goes on where the process that reads for all is killed") {
  SharedCount made;
  SharedCount given;
  const auto dataset = counted_stream(2000, made);
  const ry::EpochOptions options{.global_batch_size = 8, .world_size = 2};
  LeadingProcess leader{[&](HostFeed& feed) {
    ry::EpochReader reader{dataset, options, through(feed)};
    for (int batch = 0; batch < 20; ++batch) static_cast<void>(reader.next());
    *given = 1;
    while (true) ::pause();  // with its reader
  }};
  HostFeed feed{seat(leader.store(), 1, 2), 4096};
  ry::EpochOptions own = options;
  own.rank = 1;
  own.prefetch = 1;
  ry::EpochReader reader{dataset, own, through(feed)};
  FedSamples seen;
  for (int batch = 0; batch < 10; ++batch) append_fed(seen, *reader.next());
  while ((*given).load() == 0) {
    if (seen.size() < 60) append_fed(seen, *reader.next());
    std::this_thread::yield();
  }
  CHECK(feed.alone_from() == HostFeed::never);
  CHECK((*made).load() >= 160);  // by the one that leads, for its 20 batches and what this worker has had of them
  leader.kill();
  const std::size_t seen_before = seen.size() / 4;  // batches, of which it has a half
  while (const auto step = reader.next()) append_fed(seen, *step);
  CHECK(feed.alone_from() >= 8 * seen_before);
  CHECK(feed.alone_from() < 2000);
  CHECK(((*made).load() > 2000 && (*made).load() <= 2 * 2000));  // twice at most, by who has led and by this worker
  CHECK(seen == read_alone(dataset, own));
}
