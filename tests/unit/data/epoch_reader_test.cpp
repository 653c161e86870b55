// SPDX-License-Identifier: MIT
#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"
#include "support/sanitizers.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

using Values = std::vector<std::int64_t>;

ry::Dataset numbers(std::size_t count) {
  Values values(count);
  std::iota(values.begin(), values.end(), 0);
  return ry::Dataset::from_columns({{"n", values}});
}

// The same as a stream, of which only the begin can be seeked.
ry::Dataset stream_of(std::size_t count) {
  return ry::Dataset::from_generator({{"n", ry::Dtype::i64}}, [count] {
    return [count, at = std::size_t{0}](ry::SampleWriter& out) mutable {
      if (at == count) return false;
      out.set("n", at++);
      return true;
    };
  });
}

ry::Dataset plus(const ry::Dataset& dataset, std::int64_t more) {
  return dataset.map(
      [more](const ry::Sample& in, ry::SampleWriter& out) { out.set("n", in.values<std::int64_t>("n")[0] + more); });
}

ry::Dataset no_multiples_of(const ry::Dataset& dataset, std::int64_t divisor) {
  return dataset.filter([divisor](const ry::Sample& in) { return in.values<std::int64_t>("n")[0] % divisor != 0; });
}

ry::Dataset twice_each(const ry::Dataset& dataset) {
  return dataset.flat_map([](const ry::Sample& in, ry::SampleList& out) {
    out.add();
    out.add().set("n", -1 - in.values<std::int64_t>("n")[0]);
  });
}

// The same with lengths, between 0 and 6.
ry::Dataset with_lengths(const ry::Dataset& dataset) {
  const ry::Schema schema{{"n", ry::Dtype::i64}, {"tokens", ry::Dtype::u8, {-1}}};
  return dataset.map(schema, [](const ry::Sample& in, ry::SampleWriter& out) {
    const std::int64_t number = in.values<std::int64_t>("n")[0];
    out.set("tokens", std::vector<std::uint8_t>(static_cast<std::size_t>(number * number % 7)));
  });
}

struct Shape {
  const char* name;
  std::function<ry::Dataset(std::size_t)> make;
};

// Every operation, alone and over others. The number is about how many samples come out.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{
      {"memory", numbers},
      {"map", [](std::size_t count) { return plus(numbers(count), 7); }},
      {"shuffle", [](std::size_t count) { return plus(numbers(count).shuffle(3), 1); }},
      {"range", [](std::size_t count) { return numbers(count + 9).skip(4).take(count); }},
      {"concat",
       [](std::size_t count) {
         return ry::concat({numbers(count / 2), plus(numbers(count / 3), 100000)});
       }},
      {"repeat", [](std::size_t count) { return numbers(count / 3).shuffle().repeat(3); }},
      {"cache", [](std::size_t count) { return no_multiples_of(stream_of(count), 3).cache(); }},
      {"stream", stream_of},
      {"stream map", [](std::size_t count) { return plus(stream_of(count), 7); }},
      {"filter", [](std::size_t count) { return plus(no_multiples_of(plus(numbers(count), 1), 3), 2); }},
      {"filter most",
       [](std::size_t count) { return numbers(count).filter([](const ry::Sample& in) { return in.id() % 97 == 0; }); }},
      {"flat_map", [](std::size_t count) { return twice_each(no_multiples_of(stream_of(count / 2), 4)); }},
      {"window", [](std::size_t count) { return plus(stream_of(count).shuffle_window(37), 1); }},
      {"window of filter",
       [](std::size_t count) { return no_multiples_of(stream_of(count), 5).shuffle_window(100, 2); }},
      {"bucket",
       [](std::size_t count) { return with_lengths(numbers(count)).shuffle().bucket_by_length("tokens", 8, 64); }},
      {"bucket of stream",
       [](std::size_t count) {
         return plus(with_lengths(stream_of(count)).bucket_by_length("tokens", 7, 1), 1).drop({"tokens"});
       }},
      {"stream range", [](std::size_t count) { return no_multiples_of(stream_of(count), 2).skip(11).take(count / 3); }},
      {"stream concat",
       [](std::size_t count) {
         return ry::concat({no_multiples_of(numbers(count / 2), 3), plus(stream_of(count / 3), 100000)});
       }},
      {"stream repeat", [](std::size_t count) { return stream_of(count / 3).shuffle_window(50).repeat(3); }},
      {"endless repeat", [](std::size_t count) { return numbers(7).shuffle().repeat().take(count); }},
      {"mix",
       [](std::size_t count) {
         return ry::mix({numbers(count / 2), plus(stream_of(count / 4), 100000), numbers(0)}, {3, 1, 1}, 5);
       }},
      {"mix of endless",
       [](std::size_t count) {
         return ry::mix({numbers(3).repeat(), plus(stream_of(5), 100000).repeat()}, {1, 2}).take(count);
       }},
      {"zip",
       [](std::size_t count) {
         return ry::zip({stream_of(count), numbers(count).shuffle(9).rename({{"n", "other"}})}).drop({"other"});
       }},
  };
  return all;
}

// Which sample: its value, with its id.
using Seen = std::vector<std::pair<std::int64_t, std::uint64_t>>;

void append(Seen& seen, const ry::EpochStep& step) {
  for (std::size_t row = 0; row < step.samples; ++row) {
    seen.emplace_back(step.block.column("n").values<std::int64_t>(row)[0], step.block.ids()[row]);
  }
}

Seen read_all(const ry::Dataset& dataset, ry::EpochOptions options) {
  ry::EpochReader reader{dataset, options};
  Seen seen;
  while (const auto step = reader.next()) append(seen, *step);
  return seen;
}

// What all ranks see of some batches, in the order of the epoch, and where they stand after that.
struct Part {
  Seen seen{};
  ry::EpochPosition position{};
  bool is_over = false;
};

Part read_batches(const ry::Dataset& dataset, ry::EpochOptions options, std::size_t batches) {
  std::vector<std::unique_ptr<ry::EpochReader>> ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    ranks.push_back(std::make_unique<ry::EpochReader>(dataset, options));
  }
  Part part;
  part.position = options.from;
  for (std::size_t batch = 0; batch < batches; ++batch) {
    std::size_t with_step = 0;
    for (const auto& rank : ranks) {
      bool is_complete = false;
      while (!is_complete) {
        const auto step = rank->next();
        if (!step) break;
        append(part.seen, *step);
        is_complete = step->completes_batch;
      }
      with_step += is_complete ? 1 : 0;
    }
    part.is_over = with_step == 0;
    if (part.is_over) break;
    REQUIRE(with_step == ranks.size());
    for (const auto& rank : ranks) REQUIRE(rank->position().consumed() == ranks.front()->position().consumed());
    part.position = ranks[batch % ranks.size()]->position();  // each says it by the blocks that it has had itself
  }
  return part;
}

ry::EpochPosition through_a_checkpoint(const ry::EpochPosition& position) {
  ry::EpochPosition loaded;
  loaded.load_state(position.state());
  return loaded;
}

}  // namespace

TEST_CASE("EpochReader: gives the same samples in the same order for any number of threads, batch size and bound") {
  std::mt19937_64 random{1};
  for (const Shape& shape : shapes()) {
    for (const std::size_t count : {0U, 1U, 2U, 50U, 1000U, railyard_test::fewer(10000U)}) {
      const auto dataset = shape.make(count);
      const auto expected = read_all(dataset, {.global_batch_size = 64, .seed = 5, .epoch = 2, .threads = 0});
      for (const std::size_t threads : {0U, 1U, 2U, 4U}) {
        const std::size_t batch = 1 + random() % (count < 100 ? 10 : 3000);
        const std::size_t bound = 1U << (10 + random() % 15);
        CAPTURE(shape.name, count, threads, batch, bound);
        REQUIRE(read_all(shape.make(count), {.global_batch_size = batch,
                                             .seed = 5,
                                             .epoch = 2,
                                             .threads = threads,
                                             .bound_bytes = std::max<std::size_t>(bound, 1U << 14)}) == expected);
      }
      if (dataset.count()) CHECK(*dataset.count() == expected.size());
      CHECK(std::set(expected.begin(), expected.end()).size() == expected.size());
    }
  }
}

TEST_CASE(
    "EpochReader: gives each sample once when runs are killed anywhere and go on with other workers; "
    "FAULTS E7: samples consumed are saved; FAULTS E9: an epoch goes on where it was") {
  std::mt19937_64 random{2};
  for (int round = 0; round < 6; ++round) {
    for (const Shape& shape : shapes()) {
      const std::size_t count = round == 0 ? random() % 10 : random() % (round == 5 ? 10000 : 600);
      const auto dataset = shape.make(count);
      ry::EpochOptions options{.global_batch_size = 1 + random() % 50, .seed = random(), .epoch = random() % 5};
      options.shuffle = dataset.is_indexed() && random() % 2 == 0;
      auto expected = read_all(dataset, options);
      const bool keeps_batches = random() % 2 == 0;
      Part all;
      CAPTURE(shape.name, count, options.seed, options.epoch, options.shuffle);
      while (true) {
        options.world_size = 1 + random() % 9;
        options.threads = random() % 3;
        options.micro_batches = 1 + random() % 3;
        if (!keeps_batches) options.global_batch_size = 1 + random() % 400;
        Part part = read_batches(shape.make(count), options, 1 + random() % 20);
        all.seen.insert(all.seen.end(), part.seen.begin(), part.seen.end());
        if (part.is_over) break;
        options.from = through_a_checkpoint(part.position);
        REQUIRE(options.from.consumed() == all.seen.size());
      }
      // Within a batch of micro-batches the ranks' parts are interleaved.
      std::sort(expected.begin(), expected.end());
      std::sort(all.seen.begin(), all.seen.end());
      REQUIRE(all.seen == expected);
    }
  }
}

TEST_CASE("EpochReader: gives each sample once when groups of similar length get another size on the way") {
  std::mt19937_64 random{4};
  for (int round = 0; round < 20; ++round) {
    const auto samples = with_lengths(round % 2 == 0 ? numbers(500).shuffle() : stream_of(500));
    ry::EpochOptions options{.global_batch_size = 16, .seed = random()};
    Part all;
    while (true) {
      const std::size_t group = 1 + random() % 30;
      options.world_size = 1 + random() % 3;
      const Part part =
          read_batches(samples.bucket_by_length("tokens", group, group * (random() % 6)), options, 1 + random() % 9);
      all.seen.insert(all.seen.end(), part.seen.begin(), part.seen.end());
      if (part.is_over) break;
      options.from = through_a_checkpoint(part.position);
    }
    std::sort(all.seen.begin(), all.seen.end());
    CAPTURE(round);
    REQUIRE(all.seen == read_all(numbers(500), {.global_batch_size = 64}));
  }
}

TEST_CASE("EpochReader: goes on in equal order with the same workers") {
  std::mt19937_64 random{3};
  for (const Shape& shape : shapes()) {
    for (int round = 0; round < railyard_test::fewer(4); ++round) {
      const std::size_t count = random() % 2000;
      const auto dataset = shape.make(count);
      ry::EpochOptions options{.global_batch_size = 1 + random() % 50, .seed = 9, .epoch = 1, .world_size = 3};
      options.shuffle = dataset.is_indexed();
      const Part whole = read_batches(dataset, options, ~std::size_t{0});
      Part begun = read_batches(dataset, options, random() % 30);
      options.from = through_a_checkpoint(begun.position);
      if (begun.seen.empty()) options.from = {};
      const Part rest = read_batches(dataset, options, ~std::size_t{0});
      begun.seen.insert(begun.seen.end(), rest.seen.begin(), rest.seen.end());
      CAPTURE(shape.name, count, round);
      REQUIRE(begun.seen == whole.seen);
    }
  }
}

TEST_CASE(
    "EpochReader: gives another order each epoch and the same in each run; FAULTS E1, E2, E3: no epoch is as the "
    "one before, and nobody has to say so") {
  const auto indexed = numbers(500);
  const auto windowed = stream_of(500).shuffle_window(100);
  const auto mixed = ry::mix({numbers(250), plus(numbers(250), 1000)}, {1, 1});
  for (const auto& [dataset, shuffle] : std::vector<std::pair<ry::Dataset, bool>>{
           {indexed, true}, {indexed.shuffle(), false}, {windowed, false}, {mixed, false}}) {
    std::set<Seen> orders;
    Seen sorted;
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      for (std::uint64_t seed = 0; seed < 2; ++seed) {
        const ry::EpochOptions options{.global_batch_size = 32, .seed = seed, .epoch = epoch, .shuffle = shuffle};
        auto seen = read_all(dataset, options);
        CHECK(read_all(dataset, options) == seen);
        CHECK(orders.insert(seen).second);
        std::sort(seen.begin(), seen.end());
        if (sorted.empty()) sorted = seen;
        CHECK(seen == sorted);
      }
    }
    CHECK(sorted.size() == 500);
  }
}

TEST_CASE(
    "EpochReader: cuts every batch among the ranks and repeats or drops nothing; FAULTS E5: no duplicates at the "
    "end of an evaluation") {
  for (const auto& dataset : {numbers(103), no_multiples_of(stream_of(206), 2)}) {
    for (const std::size_t world : {1U, 2U, 7U, 9U}) {
      std::size_t consumed = 0;
      std::vector<std::unique_ptr<ry::EpochReader>> ranks;
      for (std::size_t rank = 0; rank < world; ++rank) {
        ranks.push_back(std::make_unique<ry::EpochReader>(
            dataset, ry::EpochOptions{.global_batch_size = 10, .rank = rank, .world_size = world, .stands_in = true}));
      }
      for (std::size_t batch = 0; batch < 11; ++batch) {
        std::size_t sum = 0;
        for (const auto& rank : ranks) {
          const auto step = rank->next();
          REQUIRE(step);
          CHECK(step->global_samples == (batch < 10 ? 10 : 3));
          CHECK(step->samples <= (step->global_samples + world - 1) / world);
          CHECK(step->block.rows() == std::max<std::size_t>(step->samples, 1));  // another rank's stands in
          sum += step->samples;
        }
        CHECK(sum == (batch < 10 ? 10 : 3));
        consumed += sum;
        CHECK(ranks.front()->position().consumed() == consumed);
      }
      for (const auto& rank : ranks) CHECK(!rank->next());
    }
  }
}

TEST_CASE("EpochReader: counts a batch as consumed after its last micro-batch") {
  ry::EpochReader reader{numbers(10), {.global_batch_size = 6, .micro_batches = 4}};
  std::vector<std::uint64_t> consumed;
  std::vector<std::size_t> sizes;
  while (const auto step = reader.next()) {
    consumed.push_back(step->after.consumed());
    sizes.push_back(step->samples);
    CHECK(step->completes_batch == (step->after.consumed() == 6 ? sizes.size() == 4 : step->after.consumed() == 10));
  }
  CHECK(sizes == std::vector<std::size_t>{2, 2, 1, 1, 1, 1, 1, 1});
  CHECK(consumed == std::vector<std::uint64_t>{0, 0, 0, 6, 6, 6, 6, 10});
}

TEST_CASE("EpochReader: computes only this rank's samples where it can") {
  for (const bool is_stream : {false, true}) {
    std::atomic<int> calls = 0;
    const auto dataset =
        (is_stream ? stream_of(100) : numbers(100)).map([&](const ry::Sample&, ry::SampleWriter&) { ++calls; });
    CHECK(read_all(dataset, {.global_batch_size = 8, .rank = 1, .world_size = 4}).size() == 25);
    CHECK(calls == 25);
  }
}

TEST_CASE("EpochReader: draws the same random numbers for a sample whoever computes it") {
  const auto base = ry::Dataset::from_columns({{"n", Values(300, 0)}});
  const auto augment = [](const ry::Sample&, ry::SampleWriter& out, ry::SampleRandom& random) {
    out.set("n", random.below(1U << 30U));
  };
  for (const auto& dataset : {base.map(augment), base.filter([](const ry::Sample&) { return true; }).map(augment)}) {
    std::map<std::uint64_t, std::int64_t> expected;
    for (const auto& [value, id] : read_all(dataset, {.global_batch_size = 300, .seed = 4, .epoch = 3}))
      expected[id] = value;
    std::set<std::int64_t> distinct;
    for (const auto& [id, value] : expected) distinct.insert(value);
    CHECK(distinct.size() == 300);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const auto part = read_all(
          dataset, {.global_batch_size = 7, .seed = 4, .epoch = 3, .rank = rank, .world_size = 3, .threads = 3});
      for (const auto& [value, id] : part) CHECK(expected.at(id) == value);
    }
    const auto next_epoch = read_all(dataset, {.global_batch_size = 300, .seed = 4, .epoch = 4});
    CHECK(next_epoch.front().first != expected.at(next_epoch.front().second));
  }
}

TEST_CASE("EpochReader: gives two operations on one sample other random numbers") {
  const auto random_number = [](const ry::Sample&, ry::SampleWriter& out, ry::SampleRandom& random) {
    out.set("n", random.below(1U << 30U));
  };
  const auto once = numbers(1).map(random_number);
  const auto twice = once.map(random_number);
  CHECK(read_all(once, {.global_batch_size = 1}) != read_all(twice, {.global_batch_size = 1}));
}

TEST_CASE("EpochReader: tells the operation and the sample where a user's function throws, after what came before") {
  for (const std::size_t threads : {0U, 1U, 3U}) {
    for (const bool is_stream : {false, true}) {
      const auto dataset = (is_stream ? stream_of(100) : numbers(100)).map([](const ry::Sample& in, ry::SampleWriter&) {
        if (in.id() == 57) throw std::runtime_error{"no such thing"};
      });
      ry::EpochReader reader{dataset, {.global_batch_size = 10, .threads = threads}};
      for (int batch = 0; batch < 5; ++batch) CHECK(reader.next());
      CHECK_THROWS_WITH(reader.next(), ContainsSubstring("-> map: sample 57: no such thing"));
      CHECK_THROWS_WITH(reader.next(), ContainsSubstring("sample 57"));  // does not go on after it
      CHECK(reader.position().consumed() == 50);
    }
  }
}

TEST_CASE(
    "EpochReader: ends its threads when it is left in the middle; FAULTS E10: a reader that is dropped joins its "
    "workers") {
  for (int round = 0; round < 30; ++round) {
    std::atomic<int> under_way = 0;
    {
      const auto dataset = no_multiples_of(stream_of(5000), 3)
                               .map([&](const ry::Sample&, ry::SampleWriter&) {
                                 ++under_way;
                                 std::this_thread::yield();
                                 --under_way;
                               })
                               .shuffle_window(64);
      ry::EpochReader reader{dataset, {.global_batch_size = 5, .threads = 4}};
      for (int step = 0; step < round; ++step) CHECK(reader.next());
    }
    CHECK(under_way == 0);
  }
}

TEST_CASE("EpochReader: works in a process forked from the one that made the dataset") {
  const auto dataset = no_multiples_of(numbers(1000), 3).shuffle_window(100);
  const auto cached = dataset.cache();
  const auto expected = read_all(dataset, {.global_batch_size = 10, .threads = 0});
  const pid_t child = fork();
  if (child == 0) {
    bool is_same = read_all(dataset, {.global_batch_size = 10, .threads = 3}) == expected;
    is_same = is_same && read_all(cached, {.global_batch_size = 10, .threads = 3}).size() == expected.size();
    _exit(is_same ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("EpochReader: can be gone over by a loop") {
  std::size_t samples = 0;
  for (const ry::EpochStep& step : ry::EpochReader{numbers(10), {.global_batch_size = 4}}) samples += step.samples;
  CHECK(samples == 10);
}

TEST_CASE("EpochReader: refuses to go on in another order or dataset") {
  ry::EpochReader reader{numbers(10), {.global_batch_size = 4, .seed = 1}};
  CHECK(reader.next());
  const auto from = reader.position();
  const auto go_on = [&](const ry::Dataset& dataset, std::uint64_t seed, std::uint64_t epoch, bool shuffle) {
    ry::EpochReader other{dataset,
                          {.global_batch_size = 4, .seed = seed, .epoch = epoch, .shuffle = shuffle, .from = from}};
    return other.next();
  };
  CHECK(go_on(numbers(10), 1, 0, false));
  CHECK_THROWS_AS(go_on(numbers(10), 2, 0, false), ry::ConfigError);
  CHECK_THROWS_AS(go_on(numbers(10), 1, 1, false), ry::ConfigError);
  CHECK_THROWS_AS(go_on(numbers(10), 1, 0, true), ry::ConfigError);
  CHECK_THROWS_WITH(go_on(numbers(11), 1, 0, false), ContainsSubstring("10 samples") && ContainsSubstring("11"));

  ry::EpochReader stream{stream_of(10), {.global_batch_size = 4}};
  CHECK(stream.next());
  const ry::EpochOptions options{.global_batch_size = 4, .from = stream.position()};
  CHECK_THROWS_WITH((ry::EpochReader{stream_of(10).shuffle_window(3), options}.next()),
                    ContainsSubstring("does not belong to this dataset"));
  CHECK_THROWS_WITH((ry::EpochReader{stream_of(2), options}.next()), ContainsSubstring("ends before the position"));
}

namespace {

// A source of large samples that counts how many bytes of them are in use.
class WeighedSource {
 public:
  WeighedSource(std::size_t count, std::size_t bytes) : count_(count), bytes_(bytes) {}

  ry::Schema schema() const { return {{"data", ry::Dtype::u8, {static_cast<std::int64_t>(bytes_)}}}; }
  std::optional<std::uint64_t> count() const { return count_; }
  std::string describe() const { return "weighed"; }
  std::unique_ptr<ry::BlockReader> open(std::uint64_t from) const;
  std::size_t peak() const { return weight_->peak; }

  ry::Block block(std::uint64_t first, std::size_t rows) const {
    const std::size_t size = rows * bytes_;
    const std::size_t now = weight_->now += size;
    std::size_t peak = weight_->peak;
    while (peak < now && !weight_->peak.compare_exchange_weak(peak, now)) {
    }
    // Not by new: a sanitizer looks at every byte that it sets to zero.
    std::shared_ptr<const std::byte> data{static_cast<std::byte*>(std::calloc(size, 1)),
                                          [weight = weight_, size](std::byte* bytes) {
                                            weight->now -= size;
                                            std::free(bytes);
                                          }};
    std::vector<std::uint64_t> ids(rows);
    std::iota(ids.begin(), ids.end(), first);
    return {std::make_shared<const ry::Schema>(schema()), {ry::Column{data, rows, bytes_}}, ids};
  }

 private:
  struct Weight {
    std::atomic<std::size_t> now = 0;
    std::atomic<std::size_t> peak = 0;
  };
  std::size_t count_;
  std::size_t bytes_;
  std::shared_ptr<Weight> weight_ = std::make_shared<Weight>();
};

class WeighedReader final : public ry::BlockReader {
 public:
  WeighedReader(WeighedSource source, std::uint64_t at) : source_(std::move(source)), at_(at) {}
  ry::Block next(std::size_t most_rows) override {
    const std::size_t rows = std::min<std::size_t>(most_rows, *source_.count() - at_);
    at_ += rows;
    return source_.block(at_ - rows, rows);
  }

 private:
  WeighedSource source_;
  std::uint64_t at_;
};

std::unique_ptr<ry::BlockReader> WeighedSource::open(std::uint64_t from) const {
  return std::make_unique<WeighedReader>(*this, from);
}

class WeighedIndexedSource : public WeighedSource {
 public:
  using WeighedSource::WeighedSource;
  ry::Block read(std::span<const std::uint64_t> ids) const { return block(ids.front(), ids.size()); }
};
static_assert(ry::IndexedSource<WeighedIndexedSource>);

// Ten times as much as its readers may hold; less where a sanitizer watches all memory, which makes it slow to get.
struct Tenfold {
  static constexpr std::size_t scale = railyard_test::is_sanitized ? 1 : 4;
  static constexpr std::size_t sample_bytes = 10240;
  static constexpr std::size_t count = scale * 2000;
  static constexpr std::size_t bound_bytes = scale << 21U;
  static constexpr std::size_t batch_size = scale * 10;
};

template <class Source, class Operations>
void check_bound(const Operations& operations, std::size_t world_size = 1) {
  for (const std::size_t threads : {0U, 1U, 3U}) {
    const Source source{Tenfold::count, Tenfold::sample_bytes};
    ry::EpochReader reader{operations(ry::Dataset{source}),
                           {.global_batch_size = Tenfold::batch_size * world_size,
                            .world_size = world_size,
                            .threads = threads,
                            .prefetch = 1000,
                            .bound_bytes = Tenfold::bound_bytes}};
    std::size_t largest_use = 0;
    std::size_t samples = 0;
    while (const auto step = reader.next()) {
      samples += step->samples;
      largest_use = std::max(largest_use, reader.used_bytes());
    }
    CAPTURE(threads);
    CHECK(samples == Tenfold::count / world_size);
    CHECK(largest_use <= Tenfold::bound_bytes * 11 / 10);
    CHECK(source.peak() <= Tenfold::bound_bytes * 11 / 10);
    CHECK(reader.used_bytes() == 0);
  }
}

}  // namespace

TEST_CASE("EpochReader: keeps to the bound on data ten times as large") {
  const auto every = [](const ry::Sample&) { return true; };
  const auto same = [](const ry::Sample&, ry::SampleWriter&) {};
  check_bound<WeighedIndexedSource>([](const ry::Dataset& dataset) { return dataset; });
  check_bound<WeighedIndexedSource>([&](const ry::Dataset& dataset) { return dataset.filter(every).map(same); });
  check_bound<WeighedSource>([](const ry::Dataset& dataset) { return dataset; });
  check_bound<WeighedSource>([&](const ry::Dataset& dataset) { return dataset.map(same); }, 4);
  check_bound<WeighedSource>(
      [&](const ry::Dataset& dataset) { return dataset.map(same).shuffle_window(Tenfold::scale * 50).map(same); });
}

TEST_CASE("EpochReader: refuses a window that does not fit into the bound") {
  ry::EpochReader reader{ry::Dataset{WeighedSource{Tenfold::count, Tenfold::sample_bytes}}.shuffle_window(2000),
                         {.global_batch_size = Tenfold::batch_size, .bound_bytes = Tenfold::bound_bytes}};
  const auto read = [&] {
    while (reader.next()) {
    }
  };
  CHECK_THROWS_WITH(read(), ContainsSubstring("shuffle_window(2000): the window takes more than ") &&
                                ContainsSubstring(std::to_string(Tenfold::bound_bytes / 4 * 3)));
}
