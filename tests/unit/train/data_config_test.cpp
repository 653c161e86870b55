// SPDX-License-Identifier: MIT
#include "railyard/train/data_config.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/data/split.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

ry::Dataset numbers(std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t at = 0; at < count; ++at) all.push_back(at);
  return ry::Dataset::from_columns({{"n", all}});
}

ry::Datasets both() { return {{"train", numbers(10)}, {"validation", numbers(4)}}; }

// Runs a function on two workers with the datasets.
template <class B, class S, class F>
ry::Result run_with(const Scratch& scratch, F function, ry::DataConfig data = {}, ry::Datasets datasets = both()) {
  ry::RunConfig run{.storage_path = scratch.path(), .data = std::move(data), .progress = ry::Progress::quiet};
  return ry::Trainer<B, S>{std::move(function), {.num_workers = 2}, std::move(run), std::move(datasets)}.fit();
}

// Tells of both datasets how large they are, and whether loaders divide them.
void tell(ry::Worker& worker) {
  const ry::Dataset train = worker.dataset("train").map([](const ry::Sample&, ry::SampleWriter&) {}).take(100);
  const ry::Dataset validation = worker.dataset("validation");
  worker.report({{"train", *train.count()},
                 {"validation", *validation.count()},
                 {"divides_train", train.is_divided()},
                 {"divides_validation", validation.is_divided()}});
}

}  // namespace

TEST_CASE("Trainer: gives its datasets to the workers by name, divided among them if nothing else is said") {
  const Scratch scratch;
  const auto check = [](const ry::Result& result) {
    REQUIRE(result.error() == "");
    CHECK(result.metrics().at("train").number() == 10);
    CHECK(result.metrics().at("validation").number() == 4);
    CHECK(result.metrics().at("divides_train").as<bool>());
    CHECK(result.metrics().at("divides_validation").as<bool>());
  };
  check(run_with<ry::Local, ry::Threads>(scratch, tell));
  check(run_with<ry::SharedMemory, ry::Processes>(scratch, tell));
}

TEST_CASE("DataConfig: what is not named is not divided, whatever operations follow") {
  const Scratch scratch;
  const auto only_train = run_with<ry::Local, ry::Threads>(scratch, tell, {.split = {"train"}});
  CHECK(only_train.metrics().at("divides_train").as<bool>());
  CHECK_FALSE(only_train.metrics().at("divides_validation").as<bool>());
  const auto none = run_with<ry::Local, ry::Threads>(scratch, tell, {.split = {}});
  CHECK_FALSE(none.metrics().at("divides_train").as<bool>());
}

TEST_CASE("DataConfig: a splitter of the user's own gives each worker its part of what is divided") {
  const Scratch scratch;
  const ry::DataConfig config{.split = {"train"},
                              .splitter = [](const ry::Dataset& whole, std::size_t rank, std::size_t world_size) {
                                return rank + 1 == world_size ? whole.skip(7 * rank) : whole.take(7);
                              }};
  const auto result = run_with<ry::Local, ry::Threads>(
      scratch,
      [](ry::Worker& worker) {
        tell(worker);
        const auto part = static_cast<double>(*worker.dataset("train").count());
        worker.report({{"mean", worker.mean(part)}});
      },
      config);
  REQUIRE(result.error() == "");
  CHECK(result.history().front().at("train").number() == 7);
  CHECK_FALSE(result.history().front().at("divides_train").as<bool>());
  CHECK(result.history().front().at("validation").number() == 4);
  CHECK(result.metrics().at("mean").number() == 5);
}

TEST_CASE("DataConfig: a splitter is told which dataset it is to split") {
  const Scratch scratch;
  const ry::DataConfig config{.splitter = [](const ry::Dataset& whole, std::size_t, std::size_t) {
    return whole.take(whole.name() == "train" ? 6 : 2);
  }};
  const auto result = run_with<ry::Local, ry::Threads>(
      scratch,
      [](ry::Worker& worker) {
        tell(worker);
        const ry::Dataset train = worker.dataset("train");
        const ry::Dataset validation = worker.dataset("validation");
        worker.report({{"of_part", train.skip(1).repeat(2).name() + ry::split(train, {0.5, 0.5})[1].name()},
                       {"of_both", ry::concat({train, train}).name() + ry::mix({train, validation}, {1, 1}).name()}});
      },
      config);
  REQUIRE(result.error() == "");
  CHECK(result.history().front().at("train").number() == 6);
  CHECK(result.history().front().at("validation").number() == 2);
  CHECK(result.metrics().at("of_part").as<std::string>() == "traintrain");
  CHECK(result.metrics().at("of_both").as<std::string>() == "train");
}

TEST_CASE("DataConfig: what is joined or split in a worker is divided as it was before") {
  const Scratch scratch;
  const auto join_and_split = [](ry::Worker& worker) {
    const ry::Dataset train = worker.dataset("train");
    const bool is_divided = train.is_divided();
    const auto check = [](bool holds) {
      if (!holds) throw std::runtime_error{"another division than before"};
    };
    check(ry::concat({train, train}).is_divided() == is_divided);
    check(ry::zip({train, train.rename({{"n", "m"}})}).is_divided() == is_divided);
    check(ry::mix({train, train}, {1, 2}).is_divided() == is_divided);
    const ry::Dataset stream = train.filter([](const ry::Sample&) { return true; });
    for (const ry::Dataset& whole : {train, stream}) {
      for (const ry::Dataset& part : ry::split(whole, {0.5, 0.5})) check(part.is_divided() == is_divided);
    }
    for (const ry::Dataset& part : ry::split_stratified(train, "n", std::vector<double>{1})) {
      check(part.is_divided() == is_divided);
    }
    worker.report({{"is_divided", is_divided}});
  };
  const auto halves = [](const ry::Dataset& whole, std::size_t rank, std::size_t) {
    return whole.skip(5 * rank).take(5);
  };
  const auto divides = [&](const ry::DataConfig& data) {
    const ry::Result result = run_with<ry::Local, ry::Threads>(scratch, join_and_split, data);
    REQUIRE(result.error() == "");
    return result.metrics().at("is_divided").as<bool>();
  };
  CHECK(divides({}));
  CHECK_FALSE(divides({.split = {}}));
  CHECK_FALSE(divides({.splitter = halves}));
}

TEST_CASE("DataConfig: what loaders divide is not joined with what each worker has as a whole") {
  const ry::Dataset divided = numbers(4);
  const ry::Dataset whole = numbers(4).rename({{"n", "m"}}).undivided();
  for (const auto& both_ways : {std::vector{divided, whole}, std::vector{whole, divided}}) {
    CHECK_THROWS_WITH(ry::zip(both_ways), ContainsSubstring("zip() was given " + divided.describe()) &&
                                              ContainsSubstring("beside " + whole.describe()) &&
                                              ContainsSubstring("RunConfig::data.split"));
  }
  const std::vector<ry::Dataset> alike{divided, divided.undivided()};
  CHECK_THROWS_WITH(ry::concat(alike), ContainsSubstring("concat() was given"));
  CHECK_THROWS_WITH(ry::mix(alike, {1, 1}), ContainsSubstring("mix() was given"));
}

TEST_CASE("Worker::dataset: a name that does not exist is answered with those that do") {
  const Scratch scratch;
  const auto ask = [](ry::Worker& worker) { static_cast<void>(worker.dataset("test")); };
  CHECK_THAT((run_with<ry::Local, ry::Threads>(scratch, ask).error()),
             ContainsSubstring(R"(worker.dataset("test") on rank)") && ContainsSubstring(R"("train", "validation")"));
  CHECK_THAT(
      (run_with<ry::Local, ry::Threads>(scratch, ask, {}, {}).error()),
      ContainsSubstring("the Trainer has no datasets: give it some") && ContainsSubstring(R"({{"test", dataset}})"));
}

TEST_CASE("DataConfig: names of no dataset, and two datasets of one name, are refused before anything is started") {
  const Scratch scratch;
  CHECK_THROWS_WITH((run_with<ry::Local, ry::Threads>(scratch, tell, {.split = {"train", "test"}})),
                    ContainsSubstring(R"(names "test")") && ContainsSubstring(R"("train", "validation")"));
  CHECK_THROWS_WITH((run_with<ry::Local, ry::Threads>(scratch, tell, {}, {{"a", numbers(1)}, {"a", numbers(2)}})),
                    ContainsSubstring(R"(named "a")"));
  CHECK(std::filesystem::is_empty(scratch.path()));
}
