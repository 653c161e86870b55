// SPDX-License-Identifier: MIT
#include "railyard/train/fit.hpp"

#include "support/catch.hpp"
#include "unit/data/feed_host.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/data/scalers.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace fit_on_workers_test {

inline ry::Dataset numbers(std::size_t count) {
  std::vector<double> x(count);
  std::iota(x.begin(), x.end(), 0.0);
  return ry::Dataset::from_columns({{"x", x}});
}

using Change = std::function<ry::Dataset(const ry::Dataset& dataset, int rank)>;

/// Returns the median that each of the workers has learned. split: as in DataConfig. change: what each learns from.
inline std::vector<double> medians(std::size_t count, int num_workers, std::vector<std::string> split = {"all"},
                                   const Change& change = {}) {
  const Scratch scratch;
  std::vector<double> learned(static_cast<std::size_t>(num_workers));
  const auto train = [&learned, &change](ry::Worker& worker) {
    ry::RobustScaler scaler{{.columns = {"x"}}};
    const ry::Dataset dataset = worker.dataset("train");
    ry::fit(worker, scaler, change ? change(dataset, worker.rank()) : dataset);
    learned[static_cast<std::size_t>(worker.rank())] = scaler.learned()[0].median;
  };
  ry::RunConfig config{.storage_path = scratch.path(), .progress = ry::Progress::quiet};
  config.data.split = std::move(split);
  ry::Trainer<ry::Local, ry::Threads>{
      train, {.num_workers = num_workers}, std::move(config), {{"train", numbers(count)}}}
      .fit()
      .value_or_throw();
  return learned;
}

TEST_CASE("fit: lets all workers learn from all samples, of which each reads its part") {
  const int num_workers = GENERATE(1, 2, 3);
  CAPTURE(num_workers);
  const std::vector<double> learned = medians(5'001, num_workers);
  CHECK(learned == std::vector<double>(learned.size(), 2'500.0));
}

TEST_CASE("fit: is right with fewer samples than workers") { CHECK(medians(1, 3) == std::vector<double>(3, 0.0)); }

TEST_CASE("fit: is right for a dataset that every worker has whole") {
  CHECK(medians(101, 2, {}) == std::vector<double>(2, 50.0));
}

TEST_CASE("fit: is right for what each worker takes of a dataset that it has whole, the same or a part by its rank") {
  const auto same = [](const ry::Dataset& whole, int) { return whole.skip(10).take(11).shuffle(3); };
  CHECK(medians(101, 2, {}, same) == std::vector<double>(2, 15.0));
  const auto by_rank = [](const ry::Dataset& whole, int rank) {
    return rank == 0 ? whole.take(51) : whole.skip(51).take(50);
  };
  CHECK(medians(101, 2, {}, by_rank) == std::vector<double>(2, 50.0));
}

// How often samples were made while two workers, of the program or forked, have learned from the dataset.
template <class B, class S>
std::uint64_t times_made(const ry::Dataset& dataset, const test::SharedCount& made,
                         std::vector<std::string> split = {"all"}) {
  const Scratch scratch;
  ry::RunConfig config{.storage_path = scratch.path(), .progress = ry::Progress::quiet};
  config.data.split = std::move(split);
  const auto train = [](ry::Worker& worker) {
    ry::StandardScaler scaler{{.columns = {"n"}}};
    ry::fit(worker, scaler, worker.dataset("train"));
    worker.report({{"mean", scaler.learned()[0].mean}});
  };
  ry::Trainer<B, S> trainer{train, {.num_workers = 2}, std::move(config), {{"train", dataset}}};
  CHECK(trainer.fit().value_or_throw().metrics().at("mean").number() == 4'999.5);
  return (*made).exchange(0);
}

TEST_CASE("fit: each sample is made once, by all workers of a host together, be it a stream or given whole to each") {
  constexpr std::size_t count = 10'000;
  const test::SharedCount made;
  const auto indexed = ry::Dataset::from_function(
      test::counted_schema(), count,
      [&made](std::uint64_t id, ry::SampleWriter& out) { test::write_counted(id, out, made); });
  for (const ry::Dataset& dataset : {indexed, test::counted_stream(count, made)}) {
    for (const auto& split : {std::vector<std::string>{"all"}, std::vector<std::string>{}}) {
      CAPTURE(dataset.is_indexed(), split);
      CHECK(times_made<ry::SharedMemory, ry::Threads>(dataset, made, split) == count);
      CHECK(times_made<ry::SharedMemory, ry::Processes>(dataset, made, split) == count);
    }
  }
}

}  // namespace fit_on_workers_test
