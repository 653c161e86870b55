// SPDX-License-Identifier: MIT
#include "railyard/torch/prepare_loader.hpp"

#include "railyard/torch/collectives.hpp"
#include "railyard/torch/detail/agreement.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <numeric>
#include <set>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

using Numbers = std::vector<std::int64_t>;

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}
#define EXPECT(...) expect((__VA_ARGS__), #__VA_ARGS__)

std::pair<torch::Tensor, torch::Tensor> numbered(std::int64_t count) {
  return {torch::arange(count).to(torch::kFloat).view({count, 1}), torch::arange(count)};
}

Numbers numbers_of(const ry::Batch& batch) {
  Numbers numbers;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(batch.size()); ++i)
    numbers.push_back(batch.target[i].item<std::int64_t>());
  return numbers;
}

// Returns the samples of one epoch as all ranks together see them: batch after batch, rank after rank.
std::vector<Numbers> batches_of(ry::Worker& worker, ry::Loader& loader) {
  std::vector<Numbers> batches;
  for (const auto& batch : loader) {
    EXPECT(torch::equal(batch.data.view(-1).to(torch::kLong), batch.target));
    EXPECT(batch.size() == 0 ? batch.data.size(0) == 1 : batch.data.size(0) == static_cast<std::int64_t>(batch.size()));
    Numbers padded(16, -1);
    const Numbers mine = numbers_of(batch);
    std::copy(mine.begin(), mine.end(), padded.begin());
    Numbers whole;
    for (const auto number : ry::detail::gather_values(worker, padded)) {
      if (number >= 0) whole.push_back(number);
    }
    batches.push_back(whole);
  }
  return batches;
}

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

}  // namespace

TEST_CASE("Loader: the order of an epoch does not depend on the number of workers, and holds every sample once") {
  for (const std::int64_t count : {1, 3, 16, 31}) {
    std::vector<std::vector<Numbers>> by_world;  // of the lone worker first
    std::mutex mutex;
    for (const int workers : {1, 2, 3, 4, 7}) {
      test::on_threads(workers, [&, count](auto& worker) {
        auto loader = ry::prepare_loader(worker, numbered(count), {.global_batch_size = 8, .shuffle = true});
        const auto batches = batches_of(worker, loader);
        EXPECT(batches.size() == loader.num_batches());
        const std::lock_guard lock{mutex};
        by_world.push_back(batches);
      });
    }
    for (const auto& batches : by_world) CHECK(batches == by_world.front());
    std::multiset<std::int64_t> all;
    for (const auto& batch : by_world.front()) all.insert(batch.begin(), batch.end());
    Numbers expected(static_cast<std::size_t>(count));
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(all == std::multiset<std::int64_t>(expected.begin(), expected.end()));
  }
}

TEST_CASE("Loader: every epoch has another order without a call of set_epoch (FAULTS E1, E2, E3)") {
  test::on_threads(2, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(40), {.global_batch_size = 8, .shuffle = true});
    EXPECT(loader.epoch() == -1);
    const auto first = batches_of(worker, loader);
    const auto second = batches_of(worker, loader);
    EXPECT(loader.epoch() == 1);
    EXPECT(first != second);
    loader.set_epoch(0);
    EXPECT(batches_of(worker, loader) == first);
    EXPECT(loader.epoch() == 0);
  });
}

TEST_CASE("Loader: another seed gives another order, and without shuffle it is the dataset's") {
  std::vector<std::vector<Numbers>> orders;
  for (const std::uint64_t seed : {1U, 2U}) {
    test::on_threads(
        1,
        [&](auto& worker) {
          auto loader = ry::prepare_loader(worker, numbered(40), {.global_batch_size = 8, .shuffle = true});
          orders.push_back(batches_of(worker, loader));
          auto plain = ry::prepare_loader(worker, numbered(10), {.global_batch_size = 4});
          EXPECT(batches_of(worker, plain) == std::vector<Numbers>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}});
        },
        seed);
  }
  CHECK(orders[0] != orders[1]);
}

TEST_CASE("Loader: cuts every batch, the last too, into parts that differ by at most one") {
  for (const int workers : {1, 2, 3, 4, 7}) {
    test::on_threads(workers, [](auto& worker) {
      auto loader = ry::prepare_loader(worker, numbered(21), {.global_batch_size = 8});
      for (const auto& batch : loader) {
        const auto sizes = ry::detail::gather_values<std::int64_t>(worker, {static_cast<std::int64_t>(batch.size())});
        const auto [smallest, largest] = std::minmax_element(sizes.begin(), sizes.end());
        EXPECT(*largest - *smallest <= 1);
      }
    });
  }
}

TEST_CASE("Loader: a batch with fewer samples than workers gives the others a sample that does not count") {
  test::on_threads(4, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(6), {.global_batch_size = 4, .drives_step = true});
    std::vector<std::size_t> sizes;
    for (const auto& batch : loader) {
      sizes.push_back(batch.size());
      EXPECT(worker.step_samples() == batch.size());
      EXPECT(batch.data.size(0) == 1);
    }
    EXPECT(sizes == std::vector<std::size_t>{1, worker.rank() < 2 ? 1U : 0U});
    EXPECT(worker.page().epoch.load() == 0 && worker.page().epoch_size.load() == 6 &&
           worker.page().epoch_done.load() == 6);
    EXPECT(worker.page().samples.load() == (worker.rank() < 2 ? 2U : 1U));
  });
}

TEST_CASE("Loader: only one that drives steps states samples") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(6), {.global_batch_size = 4});
    for (const auto& batch : loader) EXPECT(batch.size() > 0);
    EXPECT(!worker.step_samples());
    EXPECT(worker.page().epoch.load() == -1);
  });
}

TEST_CASE("Loader: begun again half way it starts the next epoch, and the old loop ends") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(10), {.global_batch_size = 4});
    auto old = loader.begin();
    ++old;
    EXPECT(numbers_of(*old) == Numbers{4, 5, 6, 7});
    auto fresh = loader.begin();
    EXPECT(loader.epoch() == 1 && numbers_of(*fresh) == Numbers{0, 1, 2, 3});
    EXPECT(old == loader.end());
    ++old;
    EXPECT(numbers_of(*fresh) == Numbers{0, 1, 2, 3});
    auto moved = std::move(loader);
    ++fresh;
    EXPECT(numbers_of(*fresh) == Numbers{4, 5, 6, 7});
  });
}

TEST_CASE("prepare_loader: batch_size_per_worker is a batch for each worker") {
  test::on_threads(3, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), {.batch_size_per_worker = 2});
    EXPECT(loader.global_batch_size() == 6 && loader.num_batches() == 4 && loader.num_samples() == 20);
    EXPECT(numbers_of(*loader.begin()) == Numbers{2 * worker.rank(), 2 * worker.rank() + 1});
  });
}

TEST_CASE("prepare_loader: takes tables, LibTorch datasets, mapped ones and such without target") {
  test::on_processes(2, [](auto& worker) {
    const ry::LoaderOptions options{.global_batch_size = 4, .shuffle = true};
    const ry::Table table({"x"}, {0, 1, 2, 3, 4}, "y", {0, 1, 2, 3, 4});
    auto of_table = ry::prepare_loader(worker, table, options);
    auto of_tensors = ry::prepare_loader(worker, numbered(5), options);
    auto of_dataset = ry::prepare_loader(worker, OwnDataset(5), options);
    auto of_mapped = ry::prepare_loader(worker, OwnDataset(5).map(torch::data::transforms::Stack<>()), options);
    const auto expected = batches_of(worker, of_tensors);
    EXPECT(batches_of(worker, of_table) == expected);
    EXPECT(batches_of(worker, of_dataset) == expected);
    EXPECT(batches_of(worker, of_mapped) == expected);
    auto bare = ry::prepare_loader(worker, torch::data::datasets::TensorDataset(numbered(5).first), options);
    for (const auto& batch : bare) EXPECT(!batch.target.defined() && batch.data.dim() == 2);
  });
}

TEST_CASE("prepare_loader: a batch is the reader's own: writing to it leaves the dataset alone") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(4), {.global_batch_size = 4});
    for (auto& batch : loader) batch.data.zero_();
    for (auto& batch : loader) EXPECT(batch.data.sum().template item<double>() == 6);
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

TEST_CASE("Loader::set_epoch: refuses epochs below 0") {
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader = ry::prepare_loader(worker, numbered(4), {.global_batch_size = 4});
                              loader.set_epoch(-1);
                            }),
             ContainsSubstring("count from 0"));
}
