// SPDX-License-Identifier: MIT
#include "railyard/torch/prepare_loader.hpp"

#include "railyard/data/fit.hpp"
#include "railyard/data/scalers.hpp"
#include "railyard/train/train_state.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;
using test::batches_of;
using test::numbered;
using test::Numbers;
using test::numbers_of;

namespace {

struct OwnDataset : torch::data::Dataset<OwnDataset> {
  explicit OwnDataset(std::size_t count_) : count(count_) {}
  torch::data::Example<> get(std::size_t index) override {
    return {torch::full({1}, static_cast<float>(index)), torch::tensor(static_cast<std::int64_t>(index))};
  }
  torch::optional<std::size_t> size() const override {
    return count == 0 ? torch::optional<std::size_t>{} : torch::optional<std::size_t>{count};
  }
  std::size_t count;
};

// Samples of a type of the user's own, which differ in length.
struct Walk {
  std::vector<float> steps;
  std::string name;
};

struct Walks : torch::data::Dataset<Walks, Walk> {
  Walk get(std::size_t index) override {
    return {std::vector<float>(index % 3 + 1, static_cast<float>(index)), std::to_string(index)};
  }
  torch::optional<std::size_t> size() const override { return 7; }
};

// One row for each: its steps, and zeros behind them. The target is what its name says.
struct PaddedWalks : torch::data::transforms::Collation<torch::data::Example<>, std::vector<Walk>> {
  torch::data::Example<> apply_batch(std::vector<Walk> walks) override {
    const auto rows = static_cast<std::int64_t>(walks.size());
    torch::data::Example<> made{torch::zeros({rows, 3}), torch::zeros({rows}, torch::kLong)};
    for (std::int64_t row = 0; row < rows; ++row) {
      const Walk& walk = walks[static_cast<std::size_t>(row)];
      for (std::size_t at = 0; at < walk.steps.size(); ++at) {
        made.data[row][static_cast<std::int64_t>(at)] = walk.steps[at];
      }
      made.target[row] = std::stol(walk.name);
    }
    return made;
  }
};

// It throws something where it is asked for sample 11.
template <class Fault>
struct FaultyDataset : torch::data::Dataset<FaultyDataset<Fault>> {
  explicit FaultyDataset(Fault fault_) : fault(std::move(fault_)) {}
  torch::data::Example<> get(std::size_t index) override {
    if (index == 11) throw fault;
    return {torch::full({1}, static_cast<float>(index)), torch::tensor(static_cast<std::int64_t>(index))};
  }
  torch::optional<std::size_t> size() const override { return 20; }
  Fault fault;
};

}  // namespace

TEST_CASE("prepare_loader: batch_size_per_worker is a batch for each worker") {
  test::on_threads(3, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), {.batch_size_per_worker = 2});
    EXPECT(loader.global_batch_size() == 6 && loader.num_batches() == 4 && loader.num_samples() == 20);
    EXPECT(numbers_of(*loader.begin()) == Numbers{2 * worker.rank(), 2 * worker.rank() + 1});
  });
}

TEST_CASE("prepare_loader: takes a huge batch for all samples, and refuses one that cannot be counted") {
  const std::size_t huge = std::numeric_limits<std::size_t>::max() - 1;
  test::on_threads(2, [huge](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), {.global_batch_size = huge});
    EXPECT(loader.num_batches() == 1);
    EXPECT(batches_of(worker, loader).size() == 1);
    auto halves = ry::prepare_loader(worker, numbered(20), {.batch_size_per_worker = huge / 2});
    EXPECT(halves.num_batches() == 1);
  });
  CHECK_THAT(test::error_of(3,
                            [huge](auto& worker) {
                              auto loader = ry::prepare_loader(worker, numbered(4), {.batch_size_per_worker = huge});
                            }),
             ContainsSubstring("batch_size_per_worker") && ContainsSubstring("at most"));
}

TEST_CASE("prepare_loader: takes datasets, LibTorch datasets, mapped ones and such without target") {
  test::on_processes(2, [](auto& worker) {
    const ry::LoaderOptions options{.global_batch_size = 4, .shuffle = true};
    const auto columns = ry::Dataset::from_columns(
        {{"x", std::vector<float>{0, 1, 2, 3, 4}}, {"y", std::vector<std::int64_t>{0, 1, 2, 3, 4}}});
    auto of_columns = ry::prepare_loader(worker, columns.with_label("y"), options);
    auto of_tensors = ry::prepare_loader(worker, numbered(5), options);
    auto of_dataset = ry::prepare_loader(worker, OwnDataset(5), options);
    auto of_mapped = ry::prepare_loader(worker, OwnDataset(5).map(torch::data::transforms::Stack<>()), options);
    const auto expected = batches_of(worker, of_tensors);
    EXPECT(batches_of(worker, of_columns) == expected);
    EXPECT(batches_of(worker, of_dataset) == expected);
    EXPECT(batches_of(worker, of_mapped) == expected);
    auto bare = ry::prepare_loader(worker, torch::data::datasets::TensorDataset(numbered(5).first), options);
    for (const auto& batch : bare) EXPECT(!batch.target.defined() && batch.data.dim() == 2);
  });
}

TEST_CASE("prepare_loader: samples of a user's own type are collated by a user's Collation") {
  test::on_threads(2, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, Walks{}.map(PaddedWalks{}), {.global_batch_size = 4});
    Numbers seen;
    for (const auto& batch : loader) {
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(batch.size()); ++row) {
        const auto number = batch.target[row].template item<std::int64_t>();
        const auto sum = static_cast<float>(number * (number % 3 + 1));
        EXPECT(batch.data[row].sum().template item<float>() == sum);
        seen.push_back(number);
      }
    }
    EXPECT(seen == (worker.rank() == 0 ? Numbers{0, 1, 4, 5} : Numbers{2, 3, 6}));
  });
}

TEST_CASE("prepare_loader: what a LibTorch dataset throws comes with its samples, as an Error of ours") {
  test::on_threads(1, [](auto& worker) {
    const auto read = [&worker](const auto& fault, std::size_t batch_size) {
      auto loader = ry::prepare_loader(worker, FaultyDataset{fault}, {.global_batch_size = batch_size});
      static_cast<void>(batches_of(worker, loader));
    };
    const std::string asked = "the LibTorch dataset was asked for ";
    const std::runtime_error lost{"no cable"};
    CHECK_THROWS_WITH(read(lost, 1), asked + "sample 11: no cable");
    CHECK_THROWS_WITH(read(lost, 4), asked + "samples 8, 9, 10, 11: no cable");
    CHECK_THROWS_WITH(read(7, 20), asked + "samples 0, 1, 2, 3, 4 and 15 more: an exception that is no std::exception");
    CHECK_THROWS_AS(read(lost, 4), ry::DataError);
    CHECK_THROWS_AS(read(ry::ConfigError{"no path"}, 4), ry::ConfigError);
    CHECK_THROWS_WITH(read(ry::DataError{"damaged"}, 1), asked + "sample 11: damaged");
  });
}

TEST_CASE("prepare_loader: a shuffled batch of tensors is the loop's own, one that is not is a slice of them") {
  test::on_threads(1, [](auto& worker) {
    const auto tensors = numbered(4);
    auto shuffled = ry::prepare_loader(worker, tensors, {.global_batch_size = 4, .shuffle = true});
    for (auto& batch : shuffled) batch.data.zero_();
    auto sliced = ry::prepare_loader(worker, tensors, {.global_batch_size = 2});
    for (auto& batch : sliced)
      EXPECT(batch.data.is_alias_of(tensors.first) && batch.target.is_alias_of(tensors.second));
    EXPECT(tensors.first.sum().template item<double>() == 6);
  });
}

TEST_CASE("prepare_loader: says which batch size is missing, twice there, or too small") {
  const auto error = [](ry::LoaderOptions options, int workers = 1) {
    return test::error_of(workers,
                          [options](auto& worker) { auto loader = ry::prepare_loader(worker, numbered(4), options); });
  };
  CHECK_THAT(error({}), ContainsSubstring("global_batch_size is 0 and batch_size_per_worker is 0") &&
                            ContainsSubstring("exactly one"));
  CHECK_THAT(error({.global_batch_size = 4, .batch_size_per_worker = 2}), ContainsSubstring("exactly one"));
  CHECK_THAT(error({.global_batch_size = 2}, 3), ContainsSubstring("at least 3"));
}

TEST_CASE("prepare_loader: what the training function changes a dataset of the Trainer by is in the checkpoints") {
  const Scratch scratch;
  const auto samples = ry::Dataset::from_columns({{"x", std::vector<double>{1, 2, 6}}});
  ry::RobustScaler scaler{{.columns = {"x"}}};
  ry::fit(scaler, samples);
  const auto train = [&scaler](ry::Worker& worker) {
    auto loader =
        ry::prepare_loader(worker, worker.dataset("train").transform(scaler).take(2), {.global_batch_size = 2});
    ry::TrainState state{worker, {{"loader", loader}}};
    worker.report({{"done", true}}, state);
  };
  ry::RunConfig run{.storage_path = scratch.path(), .progress = ry::Progress::quiet};
  const auto result =
      ry::Trainer<ry::SharedMemory, ry::Threads>{train, {.num_workers = 2}, std::move(run), {{"train", samples}}}.fit();
  REQUIRE(result.error() == "");
  ry::RobustScaler loaded{{.columns = {"x"}}};
  result.checkpoint()->load_preprocessor("train", loaded);
  CHECK(loaded.learned()[0].median == 2);
}

TEST_CASE("prepare_loader: tensors and LibTorch datasets refuse options that they do not know, and take no threads") {
  const auto error = [](const ry::LoaderOptions& options, bool is_dataset) {
    return test::error_of(1, [options, is_dataset](auto& worker) {
      auto loader = is_dataset ? ry::prepare_loader(worker, OwnDataset(5), options)
                               : ry::prepare_loader(worker, numbered(5), options);
    });
  };
  for (const bool is_dataset : {false, true}) {
    CHECK(error({.global_batch_size = 4, .threads = 0}, is_dataset) == "");
    CHECK_THAT(error({.global_batch_size = 4, .threads = 4}, is_dataset),
               ContainsSubstring("LoaderOptions::threads is for loaders of a railyard::Dataset") &&
                   ContainsSubstring(is_dataset ? "from_function()" : "from_tensors()"));
    CHECK_THAT(error({.global_batch_size = 4,
                      .collate = [](const ry::Block&) { return std::pair<at::Tensor, at::Tensor>{}; },
                      .padding = -1,
                      .bucket_by = "x",
                      .bucket_window = 3,
                      .prefetch = 3,
                      .bound_bytes = 3},
                     is_dataset),
               ContainsSubstring("collate, padding, bucket_by, bucket_window, prefetch, bound_bytes are for"));
  }
}

TEST_CASE("prepare_loader: refuses datasets without size or samples, and tensors that do not fit") {
  CHECK_THAT(
      test::error_of(
          1, [](auto& worker) { auto loader = ry::prepare_loader(worker, OwnDataset(0), {.global_batch_size = 4}); }),
      ContainsSubstring("does not know its size"));
  CHECK_THAT(
      test::error_of(
          1, [](auto& worker) { auto loader = ry::prepare_loader(worker, numbered(0), {.global_batch_size = 4}); }),
      ContainsSubstring("is empty"));
  CHECK_THAT(
      test::error_of(
          1,
          [](auto& worker) {
            auto loader = ry::prepare_loader(worker, {torch::ones({3}), torch::ones({4})}, {.global_batch_size = 2});
          }),
      ContainsSubstring("Float[3]") && ContainsSubstring("Float[4]"));
}
