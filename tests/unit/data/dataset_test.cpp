// SPDX-License-Identifier: MIT
#include "railyard/data/dataset.hpp"

#include "railyard/data/dataset_stats.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/fit.hpp"
#include "railyard/data/scalers.hpp"
#include "railyard/data/split.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/waiting.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

ry::Dataset people() {
  return ry::Dataset::from_columns({{"age", std::vector<float>{20, 30, 40, 50}},
                                    {"name", std::vector<std::string>{"Ada", "Bob", "", "Dörte"}},
                                    {"pixels", {2, 2}, std::vector<std::uint8_t>(16, 7)},
                                    {"class", std::vector<std::int64_t>{0, 1, 1, 0}}});
}

ry::Block all_of(const ry::Dataset& dataset) {
  ry::EpochReader reader{dataset, {.global_batch_size = 1000000}};
  auto step = reader.next();
  REQUIRE(step);
  CHECK(!reader.next());
  return step->block;
}

std::vector<float> ages(const ry::Dataset& dataset) {
  const auto block = all_of(dataset);
  const auto values = block.column("age").values<float>();
  return {values.begin(), values.end()};
}

ry::Dataset as_stream(const ry::Dataset& dataset) {
  return dataset.filter([](const ry::Sample&) { return true; });
}

}  // namespace

TEST_CASE("Dataset: says what it holds without reading") {
  const auto dataset = people();
  CHECK(dataset.count() == 4);
  CHECK(dataset.is_indexed());
  CHECK(dataset.schema().names() == R"("age", "name", "pixels", "class")");
  CHECK(dataset.schema()[2] == ry::Field{"pixels", ry::Dtype::u8, {2, 2}});
  CHECK(dataset.label().empty());
  const auto stream = as_stream(dataset).map([](const ry::Sample&, ry::SampleWriter&) {}).take(3);
  CHECK(!stream.count());
  CHECK(!stream.is_indexed());
  CHECK(stream.describe() == "columns in memory -> filter -> map -> take(3)");
  CHECK(!dataset.repeat().count());
  CHECK(!dataset.repeat().is_indexed());
  CHECK(dataset.repeat(3).count() == 12);
  CHECK(dataset.skip(3).count() == 1);
  CHECK(dataset.skip(9).count() == 0);
  CHECK(ry::concat({dataset, dataset.take(1)}).count() == 5);
}

TEST_CASE("Dataset: map keeps columns that the function does not set") {
  const auto block = all_of(people().map([](const ry::Sample& in, ry::SampleWriter& out) {
    out.set("age", in.number("age") / 10);
    out.set("name", std::string{in.text("name")} + "!");
  }));
  CHECK(block.column("age").values<float>(3)[0] == 5);
  CHECK(block.column("name").text(2) == "!");
  CHECK(block.column("name").text(3) == "Dörte!");
  CHECK(block.column("pixels").values<std::uint8_t>(1).size() == 4);
  CHECK(block.column("class").values<std::int64_t>(1)[0] == 1);
}

TEST_CASE("Dataset: map makes other columns of any dtype") {
  const ry::Schema to{{"half", ry::Dtype::f16}, {"list", ry::Dtype::i32, {-1}}, {"age", ry::Dtype::f32}};
  const auto mapped = people().map(to, [](const ry::Sample& in, ry::SampleWriter& out) {
    out.set("half", in.number(0) / 2);
    out.set(1, std::vector<std::int64_t>(in.id(), 9));
  });
  CHECK(mapped.schema() == to);
  const auto block = all_of(mapped);
  CHECK(static_cast<float>(block[0].values<ry::Float16>(1)[0]) == 15);
  CHECK(block[1].values<std::int32_t>(0).empty());
  CHECK(block[1].values<std::int32_t>(3)[2] == 9);
  CHECK(block[2].values<float>(3)[0] == 50);
}

TEST_CASE("Dataset: names the operation, the sample and the column where a map sets too little or too much") {
  const ry::Schema to{{"new", ry::Dtype::f32, {2}}};
  const auto unset = people().map(to, [](const ry::Sample&, ry::SampleWriter&) {});
  CHECK_THROWS_WITH(all_of(unset), ContainsSubstring("-> map: sample 0: column \"new\" was not set"));
  const auto narrow = people().map(to, [](const ry::Sample&, ry::SampleWriter& out) { out.set("new", 1.0F); });
  CHECK_THROWS_WITH(all_of(narrow), ContainsSubstring("was set to 1 x f32, and a sample has 2"));
  const auto unknown = people().map([](const ry::Sample&, ry::SampleWriter& out) { out.set("old", 1); });
  CHECK_THROWS_WITH(all_of(unknown), ContainsSubstring("no column \"old\"") && ContainsSubstring("\"age\""));
  const auto thrown = people().filter([](const ry::Sample& in) -> bool { throw static_cast<int>(in.id()); });
  CHECK_THROWS_WITH(all_of(thrown), ContainsSubstring("-> filter: sample 0: an exception that is no"));
}

TEST_CASE("Dataset: map_batches changes blocks and must keep their samples") {
  const auto doubled = people().map_batches([](const ry::Block& block) {
    std::vector<float> more;
    for (const float age : block.column("age").values<float>()) more.push_back(2 * age);
    auto columns = block.columns();
    columns[0] = ry::Column{block.schema()[0], more};
    return ry::Block{block.shared_schema(), columns, std::vector<std::uint64_t>(block.rows(), 77)};
  });
  CHECK(ages(doubled) == std::vector<float>{40, 60, 80, 100});
  CHECK(all_of(doubled).ids()[2] == 2);
  const auto shorter = people().map_batches([](const ry::Block& block) { return block.slice(0, 1); });
  CHECK_THROWS_WITH(all_of(shorter), ContainsSubstring("-> map_batches: samples 0 to 3: a block of 4 samples") &&
                                         ContainsSubstring("became one of 1"));
}

TEST_CASE("Dataset: filter and flat_map leave out, keep and multiply samples") {
  CHECK(ages(people().filter([](const ry::Sample& in) { return in.number("class") == 1; })) ==
        std::vector<float>{30, 40});
  const auto more = people().flat_map([](const ry::Sample& in, ry::SampleList& out) {
    for (std::uint64_t time = 0; time < in.id(); ++time)
      out.add().set("age", in.number("age") + static_cast<double>(time));
  });
  CHECK(ages(more) == std::vector<float>{30, 40, 41, 50, 51, 52});
  CHECK(all_of(more).column("name").text(0) == "Bob");
}

TEST_CASE("Dataset: select, drop and rename change columns and follow the label") {
  const auto dataset = people().with_label("class");
  CHECK(dataset.select({"class", "age"}).schema().names() == R"("class", "age")");
  CHECK(dataset.select({"class", "age"}).label() == "class");
  CHECK(dataset.drop({"class", "pixels"}).schema().names() == R"("age", "name")");
  CHECK(dataset.drop({"class"}).label().empty());
  const auto renamed = dataset.rename({{"class", "y"}, {"age", "x"}});
  CHECK(renamed.schema().names() == R"("x", "name", "pixels", "y")");
  CHECK(renamed.label() == "y");
  CHECK(all_of(renamed.select({"x"})).column("x").values<float>()[1] == 30);
  CHECK(dataset.take(2).shuffle().label() == "class");
  CHECK_THROWS_WITH(dataset.select({"y"}), ContainsSubstring("-> select: there is no column \"y\""));
  CHECK_THROWS_WITH(dataset.drop({"y"}), ContainsSubstring("-> drop:"));
  CHECK_THROWS_WITH(dataset.rename({{"age", "class"}}),
                    ContainsSubstring("-> rename: two columns are named \"class\""));
  CHECK_THROWS_WITH(dataset.with_label("y"), ContainsSubstring("-> with_label:"));
}

TEST_CASE("Dataset: take, skip, at, concat, zip and repeat agree for indexed datasets and streams") {
  const auto check = [](const ry::Dataset& dataset, const std::vector<float>& expected) {
    CHECK(dataset.count().value_or(expected.size()) == expected.size());
    CHECK(ages(dataset) == expected);
  };
  check(people().at({3, 0, 3}), {50, 20, 50});
  for (const auto& dataset : {people(), as_stream(people())}) {
    check(dataset.take(2), {20, 30});
    check(dataset.take(9), {20, 30, 40, 50});
    check(dataset.skip(1).take(2), {30, 40});
    check(ry::concat({dataset, dataset.skip(3)}), {20, 30, 40, 50, 50});
    check(dataset.take(2).repeat(2), {20, 30, 20, 30});
    check(dataset.repeat().skip(3).take(3), {50, 20, 30});
    check(ry::zip({dataset.select({"age"}), people().select({"name"})}), {20, 30, 40, 50});
  }
  const auto block = all_of(ry::zip({people().select({"age"}), as_stream(people().select({"name"}))}));
  CHECK(block.column("name").text(1) == "Bob");
}

TEST_CASE("Dataset: keeps ids of parts and passes apart") {
  for (const auto& dataset : {people(), as_stream(people())}) {
    for (const auto& joined :
         {ry::concat({dataset, dataset}), dataset.repeat(2), ry::mix({dataset, dataset}, {1, 1})}) {
      const auto block = all_of(joined);
      CHECK(std::set(block.ids().begin(), block.ids().end()).size() == 8);
    }
  }
}

TEST_CASE("Dataset: refuses to join what does not fit") {
  CHECK_THROWS_WITH(ry::concat({people(), people().select({"age"})}), ContainsSubstring("concat("));
  CHECK_THROWS_WITH(ry::concat({}), ContainsSubstring("no dataset"));
  CHECK_THROWS_WITH(ry::zip({people(), people()}), ContainsSubstring("two columns are named"));
  const auto names = people().select({"name"});
  CHECK_THROWS_WITH(ry::zip({people().select({"age"}), names.take(3)}),
                    ContainsSubstring("3 samples beside others of 4"));
  CHECK_THROWS_WITH(all_of(ry::zip({as_stream(people().select({"age"})), as_stream(names).take(3)})),
                    ContainsSubstring("dataset 2 of the zip ends before or after"));
  CHECK_THROWS_WITH(all_of(ry::zip({as_stream(people().select({"age"})).take(3), as_stream(names)})),
                    ContainsSubstring("dataset 2 of the zip ends before or after"));
  CHECK_THROWS_WITH(ry::mix({people()}, {0}), ContainsSubstring("weights {0}"));
  CHECK_THROWS_WITH(ry::mix({people()}, {1, 2}), ContainsSubstring("mix() of 1 datasets"));
  CHECK_THROWS_WITH(as_stream(people()).shuffle(),
                    ContainsSubstring("shuffle_window()") && ContainsSubstring("-> shuffle:"));
  CHECK_THROWS_WITH(people().shuffle_window(0), ContainsSubstring("a window of 0"));
  CHECK_THROWS_WITH(people().at({4}), ContainsSubstring("there is no sample 4: there are 4"));
}

TEST_CASE("Dataset: mix draws from each dataset as often as its weight says") {
  const auto constant = [](float value) {
    return ry::Dataset::from_columns({{"age", std::vector<float>{value}}}).repeat();
  };
  const auto drawn = ages(ry::mix({constant(0), constant(1), constant(2)}, {1, 2, 5}).take(8000));
  std::array<double, 3> counts{};
  for (const float value : drawn) ++counts[static_cast<std::size_t>(value)];
  CHECK(std::abs(counts[0] - 1000) < 180);  // six standard deviations of 30
  CHECK(std::abs(counts[1] - 2000) < 240);  // of 39
}

TEST_CASE("Dataset: shuffle_window mixes within windows whose borders differ from epoch to epoch") {
  const auto dataset = ry::Dataset::from_columns({{"age", std::vector<float>(1000)}}).shuffle_window(100);
  std::set<std::uint64_t> displaced;
  std::map<std::uint64_t, std::set<std::uint64_t>> first_ids;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    ry::EpochReader reader{dataset, {.global_batch_size = 1000, .epoch = epoch}};
    const auto block = reader.next()->block;
    std::uint64_t highest = 0;
    for (std::uint64_t place = 0; place < 1000; ++place) {
      const std::uint64_t id = block.ids()[place];
      CHECK((id < place + 100 && place < id + 100));
      if (highest == place && place > 0) displaced.insert(place);  // a window begins here
      highest = std::max(highest, id + 1);
    }
  }
  CHECK(displaced.size() > 100);  // 10 borders in each of 20 epochs, and hardly ever the same
}

TEST_CASE("Dataset: cache reads once and draws what is random once") {
  int reads = 0;
  const auto counted = people().map([&](const ry::Sample&, ry::SampleWriter& out, ry::SampleRandom& random) {
    ++reads;
    out.set("age", random.below(1U << 20U));
  });
  const auto cached = as_stream(counted).cache();
  CHECK(reads == 0);
  CHECK(cached.is_indexed());
  CHECK(cached.count() == 4);
  const auto first = ages(cached);
  ry::EpochReader second{cached, {.global_batch_size = 4, .epoch = 1}};
  CHECK(second.next()->block.column("age").values<float>()[2] == first[2]);
  CHECK(reads == 4);
}

TEST_CASE("Dataset: bucket_by_length puts samples of similar length into one group, and groups in no order of length") {
  constexpr std::size_t group = 8;
  const ry::Schema schema{{"tokens", ry::Dtype::u8, {-1}}};
  const auto samples = ry::Dataset::from_function(schema, 1000, [](std::uint64_t id, ry::SampleWriter& out) {
    out.set("tokens", std::vector<std::uint8_t>(static_cast<std::size_t>(id * 37 % 100)));
  });
  const auto padded = [](const ry::Dataset& dataset, std::uint64_t epoch) {
    std::vector<std::size_t> longest;
    std::size_t padding = 0;
    for (ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = group, .epoch = epoch}}) {
      std::size_t most = 0;
      for (std::size_t row = 0; row < step.samples; ++row) most = std::max(most, step.block[0].sample(row).size());
      for (std::size_t row = 0; row < step.samples; ++row) padding += most - step.block[0].sample(row).size();
      longest.push_back(most);
    }
    return std::pair{padding, longest};
  };
  const auto bucketed = samples.shuffle().bucket_by_length("tokens", group, 400);
  const auto [without, lengths] = padded(samples.shuffle(), 0);
  const auto [with, sorted_lengths] = padded(bucketed, 0);
  CHECK(with * 10 < without);
  CHECK(!std::is_sorted(sorted_lengths.begin(), sorted_lengths.begin() + 20));
  CHECK(padded(bucketed, 1).second != sorted_lengths);

  CHECK(bucketed.count() == 1000);
  CHECK(bucketed.describe() == "function -> shuffle -> bucket_by_length(tokens, 8 of 400)");
  CHECK_THROWS_WITH(people().bucket_by_length("age", 8, 64), ContainsSubstring("equally long"));
  CHECK_THROWS_WITH(people().bucket_by_length("nome", 8, 64), ContainsSubstring("\"name\""));
  CHECK_THROWS_WITH(people().bucket_by_length("name", 0, 64), ContainsSubstring("groups of 0"));
}

TEST_CASE("Dataset: refuses what would never end, and names the operation and what to do") {
  const auto endless = people().repeat();
  const auto stream = as_stream(people()).repeat();
  CHECK((endless.is_endless() && stream.is_endless() && !people().is_endless()));
  CHECK(endless.map([](const ry::Sample&, ry::SampleWriter&) {}).skip(2).shuffle_window(5).repeat(2).is_endless());
  CHECK(ry::mix({people(), endless}, {1, 1}).is_endless());
  CHECK(ry::concat({people(), endless}).is_endless());
  CHECK(ry::zip({endless.select({"age"}), stream.select({"name"})}).is_endless());
  CHECK_FALSE(endless.take(3).is_endless());
  CHECK_FALSE(endless.repeat(0).is_endless());

  const auto check_refused = [](const std::string& operation, const auto& call) {
    CHECK_THROWS_WITH(call(),
                      ContainsSubstring(operation) && ContainsSubstring("no end") && ContainsSubstring("take()"));
  };
  check_refused("repeat -> cache", [&] { return endless.cache(); });
  check_refused("repeat -> cache", [&] { return stream.cache("/nowhere/samples"); });
  check_refused("repeat -> shuffle", [&] { return endless.shuffle(); });
  check_refused("repeat -> at", [&] { return endless.at({1}); });
  check_refused("concat()", [&] { return ry::concat({endless, people()}); });
  const auto people_stream = as_stream(people());
  check_refused("zip()", [&] { return ry::zip({people().select({"age"}), endless.select({"name"})}); });
  check_refused("zip()", [&] { return ry::zip({stream.select({"age"}), people_stream.select({"name"})}); });
  CHECK_THROWS_WITH(people().repeat(std::uint64_t{1} << 63U).count(), ContainsSubstring("more than can be counted"));
  ry::EpochOptions shuffled{.global_batch_size = 2, .shuffle = true};
  CHECK_THROWS_WITH(ry::EpochReader(endless, shuffled), ContainsSubstring("shuffle() before repeat()"));
  CHECK(ages(endless.take(5)).size() == 5);
}

TEST_CASE("Dataset: repeat goes on after a time that gives nothing") {
  const auto three = ry::Dataset::from_columns({{"age", std::vector<float>{1, 2, 3}}});
  const auto some = three.filter([](const ry::Sample&, ry::SampleRandom& random) { return random.chance(0.3); });
  const auto hundred = ages(some.repeat(100));
  CHECK((hundred.size() > 45 && hundred.size() < 135));  // 90, more than five standard deviations of 8
  const auto never_so_many = ages(some.repeat().take(150));
  CHECK(never_so_many.size() == 150);
  CHECK(std::equal(hundred.begin(), hundred.end(), never_so_many.begin()));
  ry::EpochReader reader{some.repeat(100), {.global_batch_size = 7}};
  std::size_t given = 0;
  while (const auto step = reader.next()) {
    given += step->samples;
    ry::EpochReader rest{some.repeat(100), {.global_batch_size = 1000, .from = step->after}};
    const auto others = rest.next();
    REQUIRE((others ? others->samples : 0) == hundred.size() - given);
  }
  const auto none = [](const ry::Sample&) { return false; };
  CHECK_FALSE(ry::EpochReader(three.filter(none).repeat(5000), {.global_batch_size = 4}).next());
  ry::EpochReader endless{three.filter(none).repeat(), {.global_batch_size = 4}};
  CHECK_THROWS_WITH(endless.next(), ContainsSubstring("columns in memory -> filter -> repeat") &&
                                        ContainsSubstring("1000 times one after another"));
}

TEST_CASE("Dataset: caches that would wait for themselves, or have no name, are refused") {
  const TemporaryFolder folder;
  const auto cached = people().cache(folder / "samples");
  CHECK_THROWS_WITH(cached.take(2).cache(folder / "samples"),
                    ContainsSubstring("samples") && ContainsSubstring("give each cache a file of its own"));
  std::filesystem::create_directory(folder.path() / "inner");
  CHECK_THROWS_WITH(ry::concat({cached, people()}).cache((folder.path() / "inner" / ".." / "samples").string()),
                    ContainsSubstring("give each cache a file of its own"));
  CHECK_THROWS_WITH(people().cache(""), ContainsSubstring("cache") && ContainsSubstring("name of a file"));
  CHECK(ages(cached.take(2).cache(folder / "others")).size() == 2);
  CHECK(cached.skip(1).cache(folder / "third").count() == 3);
}

TEST_CASE("Dataset: concat refuses more samples than can be counted") {
  const auto half = ry::Dataset::from_columns({{"age", std::vector<float>{1, 2}}}).repeat(std::uint64_t{1} << 62U);
  CHECK_THROWS_WITH(ry::concat({half, half}).count(),
                    ContainsSubstring("concat") && ContainsSubstring("can be counted"));
  CHECK_THROWS_WITH(ry::mix({half, half}, {1, 1}).count(), ContainsSubstring("can be counted"));
}

TEST_CASE("Dataset: a generator that is said to have no end is refused where one is needed, and given else") {
  const auto endless = ry::Dataset::from_endless_generator(
      {{"age", ry::Dtype::f32}}, [] { return [at = 0](ry::SampleWriter& out) mutable { out.set("age", at++); }; });
  CHECK(endless.is_endless());
  CHECK_FALSE(endless.count());
  CHECK(endless.filter([](const ry::Sample&) { return true; }).is_endless());
  CHECK_THROWS_WITH(endless.cache(), ContainsSubstring("generator -> cache") && ContainsSubstring("no end"));
  CHECK_THROWS_WITH(endless.shuffle(), ContainsSubstring("no end"));
  CHECK_THROWS_WITH(ry::stats(endless), ContainsSubstring("no end"));
  CHECK_THROWS_WITH(ry::split(endless, {0.5, 0.5}), ContainsSubstring("no end"));
  ry::StandardScaler scaler{{.columns = {"age"}}};
  CHECK_THROWS_WITH(ry::fit(scaler, endless), ContainsSubstring("no end"));
  CHECK(ages(endless.take(5)) == std::vector<float>{0, 1, 2, 3, 4});
}

TEST_CASE("Dataset: what reads a generator of unknown length to its end tells of it, and hears that nobody wants it") {
  const auto stream = as_stream(people());
  const auto forever = ry::Dataset::from_generator({{"x", ry::Dtype::f32}}, [] {
    return [](ry::SampleWriter& out) {
      out.set("x", 1);
      return true;
    };
  });
  std::vector<std::string> said;
  const ry::detail::WaitWatch watch{
      [&](ry::detail::WaitFor) { return said.size() < 2 ? std::string{} : std::string{"a test"}; },
      [&](const std::string& text) { said.push_back(text); }};
  const ry::detail::WatchedThread watched{watch};
  ry::detail::ReadingToEnd reading{forever.node(), std::chrono::nanoseconds{1}};
  const auto read = [&] {
    while (true) reading.note(10);
  };
  CHECK_THROWS_WITH(read(), ContainsSubstring("nobody wants it any more: a test"));
  REQUIRE(said.size() == 2);
  CHECK_THAT(said[0], ContainsSubstring("generator is read to its end and has given 10 samples so far") &&
                          ContainsSubstring("from_endless_generator()"));
  CHECK_THROWS_WITH(ry::stats(forever), ContainsSubstring("any more: a test"));
  said.clear();
  ry::detail::ReadingToEnd silent{people().filter([](const ry::Sample&) { return true; }).node(),
                                  std::chrono::nanoseconds{1}};
  silent.note(10);
  CHECK(said.empty());
  CHECK(stream.node()->ending() == ry::detail::Ending::certain);
}

TEST_CASE("Dataset: cache in memory refuses what does not fit") {
  const auto never_ends = ry::Dataset::from_generator({{"x", ry::Dtype::f64, {1024}}}, [] {
    return [](ry::SampleWriter& out) {
      out.set("x", std::vector<double>(1024));
      return true;
    };
  });
  const auto cached = ry::Dataset::from_node(
      std::make_shared<const ry::detail::CacheNode<>>(never_ends.node(), std::size_t{16} << 20U), "");
  CHECK_THROWS_WITH(cached.count(), ContainsSubstring("generator -> cache") && ContainsSubstring("16 MiB") &&
                                        ContainsSubstring("cache(path)") && ContainsSubstring("take()"));
}

TEST_CASE("Dataset: mix takes any finite weights, and no others") {
  const std::vector<ry::Dataset> both{people(), people()};
  constexpr double largest = std::numeric_limits<double>::max();
  const auto infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {infinity, -infinity, std::nan(""), -1.0, 0.0}) {
    CHECK_THROWS_WITH(ry::mix(both, {1, wrong}), ContainsSubstring("above 0, not infinite"));
  }
  const auto endless = [](float x) { return ry::Dataset::from_columns({{"age", std::vector<float>{x}}}).repeat(); };
  const auto drawn = ages(ry::mix({endless(0), endless(1)}, {largest, largest}).take(1000));
  const auto of_second = std::count(drawn.begin(), drawn.end(), 1.0F);
  CHECK((of_second > 400 && of_second < 600));
}

TEST_CASE("EpochReader: ends while a stream without end is looked through for samples that are not there") {
  const auto none = ry::Dataset::from_columns({{"x", std::vector<float>(10)}}).repeat().filter([](const ry::Sample&) {
    return false;
  });
  const auto never_ends = ry::Dataset::from_generator({{"x", ry::Dtype::f32}}, [] {
    return [](ry::SampleWriter& out) {
      out.set("x", 1);
      return true;
    };
  });
  for (const auto& dataset : {none, none.shuffle_window(4), ry::mix({none, none}, {1, 1}).take(2),
                              never_ends.skip(std::uint64_t{1} << 60U)}) {
    for (const std::size_t threads : {1U, 3U}) {
      ry::EpochReader reader{dataset, {.global_batch_size = 4, .threads = threads}};
      CHECK_THROWS_WITH(reader.next(ry::Deadline::after(std::chrono::milliseconds{20})),
                        ContainsSubstring("gave no batch"));
    }
  }
}
