// SPDX-License-Identifier: MIT
#include "railyard/data/function_source.hpp"

#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"
#include "support/sanitizers.hpp"
#include "unit/data/feed_host.hpp"
#include "unit/data/resumed.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

const ry::Schema rolls_schema{{"n", ry::Dtype::i64}, {"roll", ry::Dtype::i64}, ry::Field::text("word")};

// Is driven by random numbers, whose state is all of what came before.
struct Rolls {
  std::int64_t count = 0;
  std::int64_t made = 0;
  std::mt19937_64 random{7};

  bool operator()(ry::SampleWriter& out) {
    if (made == count) return false;
    ++resumed::work_done();
    out.set("n", made++);
    out.set("roll", static_cast<std::int64_t>(random() >> 1U));
    out.set("word", std::string(random() % 9, 'w'));
    return true;
  }
  [[nodiscard]] ry::State state() const {
    std::ostringstream text;
    text << random;
    return {{"made", made}, {"random", text.str()}, {"is_late", made > 1000}, {"half", static_cast<double>(made) / 2}};
  }
  void load_state(const ry::State& saved) {
    made = saved.at("made").as<std::int64_t>();
    std::istringstream{saved.at("random").as<std::string>()} >> random;
    if (saved.at("is_late").as<bool>() != (made > 1000)) throw std::runtime_error{"it is another one's"};
    if (saved.at("half").as<double>() != static_cast<double>(made) / 2) throw std::runtime_error{"it is another one's"};
  }
};
static_assert(ry::detail::StatefulGenerator<Rolls>);

ry::Dataset rolls_of(std::int64_t count) {
  return ry::Dataset::from_generator(rolls_schema, [count] { return Rolls{.count = count}; });
}
// The same samples of a generator whose state nobody knows.
ry::Dataset plain_rolls_of(std::int64_t count) {
  return ry::Dataset::from_generator(rolls_schema, [count] {
    return [rolls = Rolls{.count = count}](ry::SampleWriter& out) mutable { return rolls(out); };
  });
}

}  // namespace

TEST_CASE("GeneratorSource: a run that is killed goes on from the state of a generator that has one") {
  const auto make = [] { return rolls_of(60'000); };
  CHECK(resumed::digests_of(make(), {.global_batch_size = 512, .threads = 0}) ==
        resumed::digests_of(plain_rolls_of(60'000), {.global_batch_size = 512, .threads = 0}));
  // A block of 4096 samples, the batch, and the block in which that ends.
  CHECK(resumed::most_work_to_go_on(make, railyard_test::fewer(12U), 1, {.global_batch_size = 512}) <= 2 * 4096 + 512);
  CHECK(resumed::most_work_to_go_on(make, railyard_test::fewer(5U), 2, {.global_batch_size = 512, .bound_bytes = 1}) <=
        512 + 1);
  CHECK(resumed::most_work_to_go_on([] { return plain_rolls_of(60'000); }, railyard_test::fewer(6U), 3) > 60'000 / 2);
}

TEST_CASE("GeneratorSource: a run that is killed goes on behind operations, from the states of all generators") {
  const auto small = [](const ry::Dataset& from) { return from.shuffle_window(500); };
  const auto is_even = [](const ry::Sample& in) { return in.id() % 2 == 0; };
  const std::vector<std::function<ry::Dataset()>> makers{
      [&] { return small(rolls_of(40'000).filter(is_even)); },
      [&] {
        return ry::mix({rolls_of(30'000), small(rolls_of(20'000))}, {0.7, 0.3});
      },
      [&] {
        return ry::concat({rolls_of(9000), rolls_of(8000), small(rolls_of(9000))}).skip(100).take(25'000);
      },
      [&] { return rolls_of(9000).repeat(3).bucket_by_length("word", 8, 400); },
      [&] {
        return ry::zip({rolls_of(20'000).select({"n"}), rolls_of(20'000).select({"roll"})});
      }};
  for (std::size_t at = 0; at < makers.size(); ++at) {
    CAPTURE(at);
    CHECK(resumed::most_work_to_go_on(makers[at], railyard_test::fewer(10U), static_cast<unsigned>(at),
                                      {.global_batch_size = 64, .bound_bytes = 1U << 20U}) < 6000);
  }
}

TEST_CASE("GeneratorSource: generators that never end go on from their states") {
  struct Counter {
    std::int64_t next = 0;
    void operator()(ry::SampleWriter& out) {
      ++resumed::work_done();
      out.set("n", next++);
    }
    [[nodiscard]] ry::State state() const { return {{"next", next}}; }
    void load_state(const ry::State& saved) { next = saved.at("next").as<std::int64_t>(); }
  };
  const auto endless = ry::Dataset::from_endless_generator({{"n", ry::Dtype::i64}}, [] { return Counter{}; });
  CHECK(endless.is_endless());
  CHECK_FALSE(rolls_of(1).is_endless());
  CHECK(resumed::most_work_to_go_on([&] { return endless.take(50'000); }, 5, 4) <= 2 * 4096 + 512);
}

TEST_CASE(
    "GeneratorSource: a position that was saved without a state is gone on from, and one with it by any generator") {
  ry::EpochOptions options{.global_batch_size = 500, .threads = 0};
  const auto whole = resumed::digests_of(rolls_of(20'000), options);
  const auto position_of = [&](const ry::Dataset& dataset) {
    ry::EpochReader reader{dataset, options};
    for (int step = 0; step < 30; ++step) REQUIRE(reader.next());
    return resumed::saved_and_loaded(reader.position());
  };
  const std::vector<std::uint64_t> rest(whole.begin() + 30, whole.end());
  for (const bool saves : {false, true}) {
    for (const bool loads : {false, true}) {
      ry::EpochOptions later = options;
      later.from = position_of(saves ? rolls_of(20'000) : plain_rolls_of(20'000));
      CHECK(resumed::digests_of(loads ? rolls_of(20'000) : plain_rolls_of(20'000), later) == rest);
    }
  }
}

TEST_CASE("GeneratorSource: a state that is another generator's, or cannot be saved, is an error that says so") {
  const ry::GeneratorSource source{rolls_schema, [] { return Rolls{.count = 5000}; }};
  const auto reader = source.open(0);
  static_cast<void>(reader->next(2000));
  const ry::ReaderPlace place = reader->place();
  CHECK(source.open(2500, place)->next(1).ids()[0] == 2500);
  CHECK(source.open(1500, place)->next(1).ids()[0] == 1500);  // a state after the sample is of no use
  const auto load = [&](std::string bytes) { return source.open(2500, {.state = {2000, std::move(bytes)}}); };
  const std::string saved = place.state.bytes();
  for (const std::string& bytes :
       {std::string{}, saved.substr(0, saved.size() - 1), saved + "x", std::string(50, '\1')}) {
    CHECK_THROWS_WITH(load(bytes), ContainsSubstring("generator cannot go on with sample 2000") &&
                                       ContainsSubstring("another RunConfig::name"));
  }
  std::string other = saved;
  other.replace(other.find("is_late") + 8, 1, 1, '\0');
  CHECK_THROWS_WITH(load(other), ContainsSubstring("it is another one's"));

  struct Large {
    bool operator()(ry::SampleWriter& out) {
      out.set("x", 1);
      return true;
    }
    [[nodiscard]] ry::State state() const { return {{"all", std::string(std::size_t{2} << 20U, 'x')}}; }
    void load_state(const ry::State& /*saved*/) {}
  };
  const auto large = ry::Dataset::from_generator({{"x", ry::Dtype::f32}}, [] { return Large{}; });
  ry::EpochReader large_reader{large, {.global_batch_size = 4, .threads = 0}};
  REQUIRE(large_reader.next());
  CHECK_THROWS_WITH(large_reader.position().state(),
                    ContainsSubstring("generator: its state before sample") && ContainsSubstring("may take 1048576"));
}

TEST_CASE("HostFeed: whoever is given samples of a generator with a state can go on from where it stands") {
  const std::int64_t count = 6000;
  const auto dataset = [] { return rolls_of(6000).shuffle_window(200); };
  const ry::EpochOptions options{.global_batch_size = 20, .world_size = 3, .threads = 1, .bound_bytes = 1U << 16U};
  const auto positions = test::on_host(3, [&](std::size_t rank, ry::detail::HostFeed& feed) {
    ry::EpochOptions mine = options;
    mine.rank = rank;
    std::vector<ry::EpochPosition> seen;
    for (const ry::EpochStep& step : ry::EpochReader{dataset(), mine, test::through(feed)}) seen.push_back(step.after);
    return seen;
  });
  ry::EpochOptions alone{.global_batch_size = 20, .threads = 0, .bound_bytes = 1U << 16U};
  const auto whole = resumed::digests_of(dataset(), alone);
  for (const auto& of_worker : positions) {
    REQUIRE(of_worker.size() == static_cast<std::size_t>(count / 20));
    CHECK((of_worker == positions[0]));
    for (const std::size_t step : {0U, 7U, 155U, 298U}) {
      alone.from = resumed::saved_and_loaded(of_worker[step]);
      resumed::work_done() = 0;
      ry::EpochReader reader{dataset(), alone};
      const auto next = reader.next();
      REQUIRE(next);
      CHECK(resumed::digest_of(*next) == whole[step + 1]);
      CHECK(resumed::work_done() <= 2000);
    }
  }
}
