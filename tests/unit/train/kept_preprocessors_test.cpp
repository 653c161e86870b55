// SPDX-License-Identifier: MIT
// What datasets are changed by is in every checkpoint and in the Result, without a word in the training function.
#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"
#include "unit/train/toy_training.hpp"

#include "railyard/data/chain.hpp"
#include "railyard/data/concatenator.hpp"
#include "railyard/data/detail/numbers.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/fit.hpp"
#include "railyard/data/memory_source.hpp"
#include "railyard/data/scalers.hpp"
#include "railyard/data/split.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace kept_preprocessors_test {

ry::Dataset numbers(std::vector<double> x) {
  const std::vector<double> y(x.size(), 4);
  return ry::Dataset::from_columns({{"x", std::move(x)}, {"y", y}});
}

ry::StandardScaler scaler_of(const ry::Dataset& dataset) {
  ry::StandardScaler scaler{{.columns = {"x"}}};
  ry::fit(scaler, dataset);
  return scaler;
}

// What a preprocessor makes of the column of the samples.
template <ry::Preprocessor P>
std::vector<double> made_by(const P& preprocessor, const ry::Dataset& samples, const std::string& column = "x") {
  std::vector<double> all;
  ry::EpochReader reader{samples.transform(preprocessor), {.global_batch_size = 100}};
  while (const auto step = reader.next()) {
    const std::size_t number = step->block.schema().index_of(column);
    std::vector<double> some;
    ry::detail::read_numbers(step->block.schema()[number], step->block[number], some);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// Reports once, with a state that names no preprocessor.
void report_once(ry::Worker& worker) {
  ry::Mean mean;
  ry::TrainState state{worker, {{"mean", mean}}};
  worker.report({{"done", true}}, state);
}

template <class B = ry::SharedMemory, class S = ry::Threads, class F = void (*)(ry::Worker&)>
ry::Result run(const Scratch& scratch, ry::Datasets datasets, F function = report_once, std::string name = "run",
               int num_workers = 2) {
  ry::RunConfig config{.name = std::move(name), .storage_path = scratch.path(), .progress = ry::Progress::quiet};
  return ry::Trainer<B, S>{std::move(function), {.num_workers = num_workers}, std::move(config), std::move(datasets)}
      .fit();
}

const std::vector<double> few{1, 2, 3, 6};

TEST_CASE("Preprocessors: those of the Trainer's datasets are in each checkpoint and in the Result") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const ry::StandardScaler scaler = scaler_of(samples);
  const ry::Datasets datasets{{"train", samples.transform(scaler)}, {"rest/1", samples.skip(1)}};
  const bool forks = GENERATE(false, true);
  const ry::Result result = forks ? run<ry::SharedMemory, ry::Processes>(scratch, datasets) : run(scratch, datasets);
  REQUIRE(result.error() == "");

  const auto expected = made_by(scaler, samples);
  ry::StandardScaler loaded{{.columns = {"x"}}};
  ry::Checkpoint::open(result.checkpoint()->path()).load_preprocessor("train", loaded);
  CHECK(made_by(loaded, samples) == expected);
  CHECK(made_by(result.preprocessor("train"), samples) == expected);

  CHECK_THROWS_WITH(result.checkpoint()->load_preprocessor("rest/1", loaded),
                    ContainsSubstring("no preprocessor for the dataset \"rest/1\": it has them for train"));
  CHECK_THROWS_WITH(result.preprocessor("rest/1"),
                    ContainsSubstring("preprocessor(\"rest/1\")") && ContainsSubstring("it was of \"train\""));
}

TEST_CASE("Preprocessors: several are a Chain, of which a checkpoint holds those that learn") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const ry::StandardScaler first = scaler_of(samples);
  const ry::Concatenator side_by_side{{.columns = {"x", "y"}, .output = "both", .keeps_columns = true}};
  const ry::Dataset scaled = samples.transform(first);
  ry::MinMaxScaler second{{.columns = {"y"}}};
  ry::fit(second, scaled);
  const ry::Result result =
      run(scratch,
          {{"one", scaled.transform(side_by_side)},
           {"two", ry::split(scaled.transform(second).transform(side_by_side), std::vector<double>{0.5, 0.5})[0]}});
  REQUIRE(result.error() == "");

  ry::StandardScaler one{{.columns = {"x"}}};
  result.checkpoint()->load_preprocessor("one", one);
  CHECK(made_by(one, samples) == made_by(first, samples));
  ry::Chain two{ry::StandardScaler{{.columns = {"x"}}}, ry::MinMaxScaler{{.columns = {"y"}}}};
  result.checkpoint()->load_preprocessor("two", two);
  CHECK(made_by(two, samples, "y") == made_by(ry::Chain{first, second}, samples, "y"));
  CHECK(made_by(result.preprocessor("two"), samples, "both") ==
        made_by(ry::Chain{first, second, side_by_side}, samples, "both"));
}

TEST_CASE("Preprocessors: of what the training function reads, those of the longest way, and of other ways, are kept") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const ry::StandardScaler scaler = scaler_of(samples);
  const ry::StandardScaler other = scaler_of(samples.take(2));
  ry::MinMaxScaler second{{.columns = {"y"}}};
  ry::fit(second, samples);
  const auto read = [&](ry::Worker& worker) {
    const ry::Dataset train = worker.dataset("train");
    for (const ry::Dataset& dataset :
         {train, train.transform(scaler), train.transform(scaler).transform(second), train.transform(scaler),
          train.transform(other), numbers(few).transform(other)}) {
      worker.keep_preprocessors(dataset);
    }
    report_once(worker);
  };
  const ry::Result result = run(scratch, {{"train", samples}}, read);
  REQUIRE(result.error() == "");
  CHECK(result.checkpoint()->parts() == std::vector<std::string>{"mean", "preprocessor.train", "preprocessor.train-2"});
  ry::Chain loaded{ry::StandardScaler{{.columns = {"x"}}}, ry::MinMaxScaler{{.columns = {"y"}}}};
  result.checkpoint()->load_preprocessor("train", loaded);
  CHECK(made_by(loaded, samples) == made_by(scaler, samples));
  ry::StandardScaler second_way{{.columns = {"x"}}};
  result.checkpoint()->load_preprocessor("train-2", second_way);
  CHECK(made_by(second_way, samples) == made_by(other, samples));
}

TEST_CASE(
    "Preprocessors: a Result gives those of the Trainer alone, also where the training function has added others") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const ry::StandardScaler scaler = scaler_of(samples);
  ry::MinMaxScaler second{{.columns = {"y"}}};
  ry::fit(second, samples);
  const auto read = [&](ry::Worker& worker) {
    worker.keep_preprocessors(worker.dataset("one").transform(second));
    worker.keep_preprocessors(worker.dataset("chain").transform(second));
    report_once(worker);
  };
  const ry::Datasets datasets{{"one", samples.transform(scaler)}, {"chain", samples.transform(ry::Chain{scaler})}};
  const ry::Result result = run(scratch, datasets, read);
  REQUIRE(result.error() == "");
  for (const std::string name : {"one", "chain"}) {
    CHECK(made_by(result.preprocessor(name), samples) == made_by(scaler, samples));
    CHECK(made_by(result.preprocessor(name), samples, "y") == std::vector<double>(4, 4));
  }
}

TEST_CASE("Preprocessors: a Result of a run that has ended before has those of its checkpoint") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const ry::Dataset others = numbers({7, 8, 9});
  REQUIRE(run(scratch, {{"train", samples.transform(scaler_of(samples))}}).error() == "");
  const ry::Result recorded = run(scratch, {{"train", samples.transform(scaler_of(others))}});
  CHECK(recorded.is_recorded());
  CHECK(made_by(recorded.preprocessor("train"), samples) == made_by(scaler_of(samples), samples));
}

TEST_CASE("Preprocessors: without a checkpoint a Result has them as the Trainer was given them") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const ry::Result result = run(scratch, {{"train", samples.transform(scaler_of(samples))}}, [](ry::Worker&) {});
  CHECK_FALSE(result.checkpoint());
  CHECK(made_by(result.preprocessor("train"), samples) == made_by(scaler_of(samples), samples));
}

TEST_CASE("Preprocessors: a run that goes on with others than its checkpoint has is told so") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const auto fail_at_first = [](ry::Worker& worker) {
    report_once(worker);
    worker.barrier();  // the checkpoint is of both
    if (worker.resumes_from().empty()) throw std::runtime_error{"as planned"};
  };
  const auto go_on = [&](const std::string& name, const ry::Dataset& learned_from) {
    REQUIRE_FALSE(run(scratch, {{"train", samples.transform(scaler_of(samples))}}, fail_at_first, name));
    return run(scratch, {{"train", samples.transform(scaler_of(learned_from))}}, fail_at_first, name);
  };
  const ry::Result same = go_on("same", samples);
  REQUIRE(same.error() == "");
  CHECK(same.warnings().empty());
  const ry::Result other = go_on("other", samples.take(2));
  REQUIRE(other.error() == "");
  REQUIRE(other.warnings().size() == 1);
  CHECK_THAT(other.warnings().front(), ContainsSubstring("preprocessors of the dataset \"train\"") &&
                                           ContainsSubstring("checkpoint-") &&
                                           ContainsSubstring("load_preprocessor()"));
}

TEST_CASE("Preprocessors: with another number of workers those of the Trainer are compared, and no others") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const auto go_on = [&](const std::string& name, const ry::Dataset& learned_from) {
    const auto read = [&samples](ry::Worker& worker) {
      ry::MinMaxScaler second{{.columns = {"x"}}};
      ry::fit(second, samples.take(static_cast<std::uint64_t>(worker.world_size())));
      worker.keep_preprocessors(worker.dataset("train").transform(second));
      report_once(worker);
      worker.barrier();  // the checkpoint is of both
      if (worker.resumes_from().empty()) throw std::runtime_error{"as planned"};
    };
    REQUIRE_FALSE(run(scratch, {{"train", samples.transform(scaler_of(samples))}}, read, name, 2));
    const ry::Result result = run(scratch, {{"train", samples.transform(scaler_of(learned_from))}}, read, name, 3);
    REQUIRE(result.error() == "");
    return std::count_if(result.warnings().begin(), result.warnings().end(), [](const std::string& warning) {
      return warning.find("preprocessors of the dataset \"train\"") != std::string::npos;
    });
  };
  CHECK(go_on("same", samples) == 0);
  CHECK(go_on("other", samples.take(2)) == 1);
}

TEST_CASE(
    "Preprocessors: of one that learns anew in each epoch the newest is kept, and beside it those of other columns") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  ry::StandardScaler of_y{{.columns = {"y"}}};
  ry::fit(of_y, samples);
  ry::MinMaxScaler range_of_y{{.columns = {"y"}}};
  ry::fit(range_of_y, samples);
  const auto read = [&](ry::Worker& worker) {
    const ry::Dataset train = worker.dataset("train");
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      worker.keep_preprocessors(train.transform(scaler_of(samples.take(epoch + 2))));
      worker.keep_preprocessors(train.transform(of_y));
      worker.keep_preprocessors(train.transform(ry::Chain{of_y}));
      worker.keep_preprocessors(train.transform(ry::Chain{range_of_y}));
    }
    report_once(worker);
  };
  const ry::Result result = run(scratch, {{"train", samples}}, read);
  REQUIRE(result.error() == "");
  CHECK(result.checkpoint()->parts() == std::vector<std::string>{"mean", "preprocessor.train", "preprocessor.train-2",
                                                                 "preprocessor.train-3", "preprocessor.train-4"});
  ry::StandardScaler newest{{.columns = {"x"}}};
  result.checkpoint()->load_preprocessor("train", newest);
  CHECK(made_by(newest, samples) == made_by(scaler_of(samples), samples));
}

TEST_CASE("Preprocessors: those of one type that differ in the columns they leave out are kept side by side") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const auto fitted = [&](const std::string& left_out) {
    ry::StandardScaler scaler{{.except = {left_out}}};
    ry::fit(scaler, samples);
    return scaler;
  };
  const auto read = [&](ry::Worker& worker) {
    for (const std::string left_out : {"y", "x", "y"}) {
      worker.keep_preprocessors(worker.dataset("train").transform(fitted(left_out)));
    }
    report_once(worker);
  };
  const ry::Result result = run(scratch, {{"train", samples}}, read);
  REQUIRE(result.error() == "");
  CHECK(result.checkpoint()->parts() == std::vector<std::string>{"mean", "preprocessor.train", "preprocessor.train-2"});
  ry::StandardScaler second{{.except = {"x"}}};
  result.checkpoint()->load_preprocessor("train-2", second);
  CHECK(made_by(second, samples, "y") == made_by(fitted("x"), samples, "y"));
}

// Scales a column, and does not say which.
struct SilentScaler {
  ry::StandardScaler inner;

  ry::Schema schema(const ry::Schema& before) const { return inner.schema(before); }
  ry::Block transform(const ry::Block& block) const { return inner.transform(block); }
  void begin(const ry::Schema& schema) { inner.begin(schema); }
  void add(const ry::Block& block) { inner.add(block); }
  std::vector<std::byte> statistics() const { return inner.statistics(); }
  void merge(std::span<const std::byte> bytes) { inner.merge(bytes); }
  void finish() { inner.finish(); }
  ry::State state() const { return inner.state(); }
  void load_state(const ry::State& state) { inner.load_state(state); }
};
static_assert(ry::LearningPreprocessor<SilentScaler>);

// Tells its options, by a number.
struct NumberedScaler : SilentScaler {
  std::uint64_t number = 0;

  std::uint64_t fingerprint() const { return number; }
};

ry::StandardScaler scaler_of_y(const ry::Dataset& dataset) {
  ry::StandardScaler scaler{{.columns = {"y"}}};
  ry::fit(scaler, dataset);
  return scaler;
}

TEST_CASE("Preprocessors: of one type that tells its options all are kept, and the newest of those with the same") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const auto read = [&](ry::Worker& worker) {
    const ry::Dataset train = worker.dataset("train");
    worker.keep_preprocessors(train.transform(NumberedScaler{{scaler_of(samples.take(2))}, 1}));
    worker.keep_preprocessors(train.transform(NumberedScaler{{scaler_of_y(samples)}, 2}));
    worker.keep_preprocessors(train.transform(NumberedScaler{{scaler_of(samples)}, 1}));
    report_once(worker);
  };
  const ry::Result result = run(scratch, {{"train", samples}}, read);
  REQUIRE(result.error() == "");
  CHECK(result.checkpoint()->parts() == std::vector<std::string>{"mean", "preprocessor.train", "preprocessor.train-2"});
  NumberedScaler newest{{ry::StandardScaler{{.columns = {"x"}}}}, 1};
  result.checkpoint()->load_preprocessor("train", newest);
  CHECK(made_by(newest, samples) == made_by(scaler_of(samples), samples));
}

TEST_CASE("Preprocessors: two of one type that tells nothing of itself are refused, for either would be lost") {
  const Scratch scratch;
  const ry::Dataset samples = numbers(few);
  const bool is_chain = GENERATE(false, true);
  const auto keep = [&](ry::Worker& worker, const ry::StandardScaler& scaler) {
    const ry::Dataset train = worker.dataset("train");
    worker.keep_preprocessors(is_chain ? train.transform(ry::Chain{SilentScaler{scaler}})
                                       : train.transform(SilentScaler{scaler}));
  };
  const auto read_same = [&](ry::Worker& worker) {
    keep(worker, scaler_of(samples));
    keep(worker, scaler_of(samples));
    report_once(worker);
  };
  CHECK(run(scratch, {{"train", samples}}, read_same, "same").error() == "");
  const auto read_others = [&](ry::Worker& worker) {
    keep(worker, scaler_of(samples));
    keep(worker, scaler_of_y(samples));
  };
  CHECK_THAT(run(scratch, {{"train", samples}}, read_others, "others").error(),
             ContainsSubstring("the dataset \"train\"") && ContainsSubstring("SilentScaler a touches()"));
}

TEST_CASE("Preprocessors: their names in a checkpoint are not for parts of a TrainState") {
  const Scratch scratch;
  const auto take_name = [](ry::Worker& worker) {
    ry::Mean mean;
    const ry::TrainState state{worker, {{"preprocessor.train", mean}}};
  };
  CHECK_THAT(run(scratch, {}, take_name).error(),
             ContainsSubstring("part \"preprocessor.train\"") && ContainsSubstring("give it another name"));
}

// How often a source was asked for its files, and whether they are gone.
struct Listings {
  std::atomic<int> count{0};
  std::atomic<bool> is_gone{false};
};

struct ListedSource {
  ry::MemorySource samples;
  std::shared_ptr<Listings> listings;

  ry::Schema schema() const { return samples.schema(); }
  std::optional<std::uint64_t> count() const { return samples.count(); }
  std::string describe() const { return "listed"; }
  std::unique_ptr<ry::BlockReader> open(std::uint64_t from) const { return samples.open(from); }
  std::vector<std::string> files() const {
    ++listings->count;
    if (listings->is_gone) throw ry::DataError{"the files are gone"};
    return {};
  }
};

TEST_CASE("Preprocessors: to know them and the operations of a dataset, its files are neither listed nor needed") {
  const Scratch scratch;
  const auto listings = std::make_shared<Listings>();
  const ry::Dataset samples{ListedSource{ry::MemorySource{std::vector<ry::NamedColumn>{{"x", few}}}, listings}};
  const auto read = [](ry::Worker& worker) {
    worker.keep_preprocessors(worker.dataset("train").take(2));
    static_cast<void>(ry::detail::choice_of(*worker.dataset("train").node()));
    report_once(worker);
  };
  const ry::StandardScaler scaler = scaler_of(samples);
  listings->count = 0;
  REQUIRE(run(scratch, {{"train", samples.transform(scaler)}, {"some", samples.take(1)}}, read, "listed").error() ==
          "");
  CHECK(listings->count == 0);

  const auto cached = [&] { return samples.cache((scratch.path() / "samples").string()); };
  REQUIRE(cached().count() == few.size());
  listings->is_gone = true;
  const ry::Result result = run(scratch, {{"train", cached()}, {"scaled", cached().transform(scaler)}}, read, "gone");
  CHECK(result.error() == "");
}

TEST_CASE("Preprocessors: any name of a dataset makes one of a part") {
  using ry::detail::preprocessor_part;
  CHECK(preprocessor_part("train set-1") == "preprocessor.train set-1");
  CHECK(preprocessor_part("a/b.rank-0") == "preprocessor.a%2fb%2erank-0");
  const std::string longest(300, 'x');
  CHECK(ry::detail::fault_of_part(preprocessor_part(longest + "a")).empty());
  CHECK(preprocessor_part(longest + "a") != preprocessor_part(longest + "b"));
}

}  // namespace kept_preprocessors_test
