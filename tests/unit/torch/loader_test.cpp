// SPDX-License-Identifier: MIT
#include "railyard/torch/loader.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"

#include <mutex>
#include <numeric>
#include <set>

namespace ry = railyard;
using Catch::ContainsSubstring;
using test::batches_of;
using test::numbered;
using test::Numbers;
using test::numbers_of;

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

TEST_CASE("Loader: cuts every batch, the last too, into parts that differ by at most one (FAULTS A1, A2)") {
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

TEST_CASE("Loader: a batch with fewer samples than workers gives the others a sample that does not count (TRAPS 18)") {
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

TEST_CASE("Loader: only one that drives steps states samples (TRAPS 17)") {
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

TEST_CASE("Loader::set_epoch: refuses epochs below 0") {
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader = ry::prepare_loader(worker, numbered(4), {.global_batch_size = 4});
                              loader.set_epoch(-1);
                            }),
             ContainsSubstring("count from 0"));
}

TEST_CASE("Loader: sums weighted with size() are those of the whole dataset, repeated samples or not") {
  for (const int workers : {1, 2, 4}) {
    test::on_threads(workers, [](auto& worker) {
      auto loader = ry::prepare_loader(worker, numbered(9), {.global_batch_size = 4});
      ry::Mean by_mean;
      ry::Mean by_sum;
      for (const auto& batch : loader) {
        const auto size = static_cast<double>(batch.size());
        by_mean.add(batch.data.mean().template item<double>(), size);
        by_sum.add_sum(batch.data.sum().template item<double>(), size);
      }
      EXPECT(worker.mean(by_mean) == 4.0 && worker.mean(by_sum) == 4.0);
    });
  }
}
