// SPDX-License-Identifier: MIT
// Where a loader stands, and that who is told goes on there.
#include "railyard/torch/loader.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using test::batches_of;
using test::numbered;
using test::Numbers;

namespace {

using Place = std::pair<std::int64_t, std::int64_t>;

Place place_of(const ry::Loader& loader) {
  ry::EpochPosition position;
  position.load_state(loader.state());
  return {static_cast<std::int64_t>(position.epoch()), static_cast<std::int64_t>(position.consumed())};
}

Numbers flat(const std::vector<Numbers>& batches) {
  Numbers all;
  for (const Numbers& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

const ry::LoaderOptions driving{.global_batch_size = 8, .shuffle = true, .drives_step = true};

}  // namespace

TEST_CASE("state of a loader: other workers and batch sizes go on with what is left, each sample once (FAULTS E9)") {
  ry::State saved;
  Numbers first_part;
  Numbers whole;
  Numbers next;
  test::on_threads(1, [&](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(37), driving);
    whole = flat(batches_of(worker, loader));
    next = flat(batches_of(worker, loader));
  });
  test::on_threads(2, [&](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(37), driving);
    int count = 0;
    for (auto& batch : loader) {
      static_cast<void>(batch);
      if (++count == 2) break;
    }
    worker.end_step();
    EXPECT(loader.next_epoch() == 0);
    if (worker.rank() == 0) saved = loader.state();
  });
  CHECK(saved.at("consumed").as<std::string>() == "0-16");
  CHECK_FALSE(saved.is_own);
  for (const int workers : {1, 2, 3}) {
    test::on_threads(workers, [&](auto& worker) {
      ry::LoaderOptions options = driving;
      options.global_batch_size = 5;
      auto loader = ry::prepare_loader(worker, numbered(37), options);
      loader.load_state(saved);
      EXPECT(place_of(loader) == Place(0, 16));
      EXPECT(loader.next_epoch() == 0);
      EXPECT(flat(batches_of(worker, loader)) == Numbers(whole.begin() + 16, whole.end()));
      EXPECT(loader.epoch() == 0);
      EXPECT(place_of(loader) == Place(1, 0));
      EXPECT(flat(batches_of(worker, loader)) == next);
      EXPECT(loader.epoch() == 1);
    });
  }
}

TEST_CASE(
    "state of a loader: a batch is consumed when its step has ended, and an exhausted loader is at the next epoch "
    "(TRAPS 37)") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), driving);
    std::vector<Place> at_step_end;
    worker.on_step_end([&] { at_step_end.push_back(place_of(loader)); });
    EXPECT(place_of(loader) == Place(0, 0));
    std::vector<Place> inside;
    for (auto& batch : loader) {
      static_cast<void>(batch);
      inside.push_back(place_of(loader));
    }
    EXPECT(inside == std::vector<Place>{{0, 0}, {0, 8}, {0, 16}});
    EXPECT(at_step_end == std::vector<Place>{{0, 8}, {0, 16}});  // the last one is not over before the epoch is
    EXPECT(place_of(loader) == Place(1, 0));
    EXPECT(loader.epoch() == 0);
    EXPECT(loader.next_epoch() == 1);
    static_cast<void>(loader.begin());
    EXPECT(at_step_end == std::vector<Place>{{0, 8}, {0, 16}, {1, 0}});
  });
}

TEST_CASE("state of a loader: the end of a step counts wherever it is said") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), driving);
    auto other = ry::prepare_loader(worker, numbered(20), {.global_batch_size = 3, .shuffle = true});
    auto iterator = other.begin();
    std::vector<Place> places;
    worker.on_step_end([&] { places.push_back(place_of(other)); });
    for (auto& batch : loader) {
      static_cast<void>(batch);
      EXPECT(place_of(other).second == 3 * place_of(loader).second / 8);
      worker.end_step();  // as a report with the state does
      EXPECT(place_of(loader).second == std::min<std::int64_t>(8 * std::ssize(places), 20));
      ++iterator;
    }
    EXPECT(places == std::vector<Place>{{0, 3}, {0, 6}, {0, 9}});
    EXPECT(place_of(loader) == Place(1, 0));
  });
}

TEST_CASE("state of a loader: saved after the last batch of its loop, what follows the epoch is still to be done") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), driving);
    ry::State saved;
    for (auto& batch : loader) {
      static_cast<void>(batch);
      worker.end_step();  // as a report with the state does
      saved = loader.state();
    }
    loader.load_state(saved);
    EXPECT(loader.next_epoch() == 0);
    EXPECT(batches_of(worker, loader).empty());
    EXPECT(place_of(loader) == Place(1, 0));
    EXPECT(flat(batches_of(worker, loader)).size() == 20);
  });
}

TEST_CASE("state of a loader: positions are those of whole steps, not of micro-batches") {
  test::on_threads(2, [](auto& worker) {
    ry::LoaderOptions options = driving;
    options.micro_batches = 4;
    auto loader = ry::prepare_loader(worker, numbered(20), options);
    std::vector<Place> at_step_end;
    worker.on_step_end([&] { at_step_end.push_back(place_of(loader)); });
    int count = 0;
    for (auto& batch : loader) {
      const std::int64_t steps_before = count++ / 4;
      EXPECT(place_of(loader) == Place(0, 8 * steps_before));
      EXPECT(batch.completes_step() == (count % 4 == 0));
      if (count == 6) break;
    }
    const ry::State saved = loader.state();
    EXPECT(at_step_end == std::vector<Place>{{0, 8}});
    loader.load_state(saved);
    EXPECT(flat(batches_of(worker, loader)).size() == 12);
    worker.end_step();
    EXPECT(at_step_end == std::vector<Place>{{0, 8}, {0, 16}, {1, 0}});
  });
}

TEST_CASE("state of a loader: an epoch left half way is over at the next begin()") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), driving);
    std::vector<Place> at_step_end;
    worker.on_step_end([&] { at_step_end.push_back(place_of(loader)); });
    for (auto& batch : loader) {
      static_cast<void>(batch);
      break;
    }
    EXPECT(place_of(loader) == Place(0, 0));
    const auto iterator = loader.begin();
    EXPECT(at_step_end == std::vector<Place>{{1, 0}});
    EXPECT(place_of(loader) == Place(1, 0));
    EXPECT(loader.epoch() == 1);
    EXPECT(iterator != loader.end());
    loader.load_state(loader.state());
    EXPECT(iterator == loader.end());
  });
}

TEST_CASE("state of a loader: set_epoch() keeps the place in the epoch that it names, and leaves that of another") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered(20), driving);
    auto saved = loader.state();
    saved.values.set("epoch", "3");
    saved.values.set("consumed", "0-8");
    loader.load_state(saved);
    loader.set_epoch(3);
    EXPECT(place_of(loader) == Place(3, 8));
    loader.set_epoch(4);
    EXPECT(place_of(loader) == Place(4, 0));
    EXPECT(flat(batches_of(worker, loader)).size() == 20);
    EXPECT(loader.epoch() == 4);
  });
}

TEST_CASE("state of a loader: another order is refused, with both values named") {
  ry::State saved;
  test::on_threads(
      1, [&](auto& worker) { saved = ry::prepare_loader(worker, numbered(20), driving).state(); }, 5);
  const auto error_with = [&](std::int64_t count, bool shuffle, std::uint64_t seed, const ry::State& state) {
    std::string error;
    test::on_threads(
        1,
        [&](auto& worker) {
          auto loader = ry::prepare_loader(worker, numbered(count), {.global_batch_size = 8, .shuffle = shuffle});
          try {
            loader.load_state(state);
          } catch (const ry::ConfigError& caught) {
            error = caught.what();
          }
        },
        seed);
    return error;
  };
  CHECK(error_with(20, true, 5, saved).empty());
  CHECK_THAT(error_with(21, true, 5, saved), ContainsSubstring("num_samples was 20 and is 21"));
  CHECK_THAT(error_with(20, false, 5, saved), ContainsSubstring("shuffle was true and is false"));
  CHECK_THAT(error_with(20, true, 6, saved), ContainsSubstring("seed was 5 and is 6"));
  const std::uint64_t large = 0xFFFFFFFFFFFFFFFEU;
  CHECK_THAT(error_with(20, true, large, saved), ContainsSubstring("seed was 5 and is 18446744073709551614"));
  ry::State damaged = saved;
  damaged.values.set("consumed", "0-21");
  CHECK_THAT(error_with(20, true, 5, damaged), ContainsSubstring("sample 21 of epoch 0"));
}
