// SPDX-License-Identifier: MIT
// Loaders of datasets that are given whole to each worker.
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/train/train_state.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"
#include "unit/train/scratch.hpp"
#include "unit/workers/support.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace ry = railyard;
using workers_test::SharedNumber;

namespace {

constexpr std::int64_t num_decoded = 203;

ry::Dataset decoded(const SharedNumber& decodes) {
  return ry::Dataset::from_function({{"x", ry::Dtype::f32}, {"y", ry::Dtype::i64}}, num_decoded,
                                    [&decodes](std::uint64_t id, ry::SampleWriter& out) {
                                      ++*decodes;
                                      out.set("x", static_cast<float>(id));
                                      out.set("y", static_cast<std::int64_t>(id));
                                    })
      .with_label("y");
}

std::vector<std::int64_t> labels_of(ry::Loader& loader, std::size_t most_batches = 1000) {
  std::vector<std::int64_t> all;
  std::size_t batches = 0;
  for (const ry::Batch& batch : loader) {
    for (std::int64_t row = 0; row < batch.target.size(0); ++row) {
      all.push_back(batch.target[row].item<std::int64_t>());
    }
    if (++batches == most_batches) break;
  }
  return all;
}

// Runs with a dataset that each worker is given whole, and others.
template <class Backend, class Scaling>
ry::Result run_with_whole(int num_workers, const ry::Datasets& datasets, std::function<void(ry::Worker&)> function) {
  std::string folder = (std::filesystem::temp_directory_path() / "railyard_whole_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  ry::RunConfig config{.storage_path = folder, .seed = 3, .data = {.split = {}}, .progress = ry::Progress::quiet};
  config.collective_timeout = std::chrono::seconds{60};
  ry::Trainer<Backend, Scaling> trainer{std::move(function), {.num_workers = num_workers}, config, datasets};
  ry::Result result = trainer.fit();
  std::filesystem::remove_all(folder);
  return result;
}

void on_threads_and_processes(
    int num_workers, const ry::Datasets& datasets, const std::function<void(ry::Worker&)>& function,
    const std::function<void()>& check = [] {}) {
  for (const bool forks : {false, true}) {
    CAPTURE(forks);
    const ry::Result result = forks ? run_with_whole<ry::Gloo, ry::Processes>(num_workers, datasets, function)
                                    : run_with_whole<ry::SharedMemory, ry::Threads>(num_workers, datasets, function);
    REQUIRE(result.error() == "");
    CHECK(result.warnings().empty());
    check();
  }
}

}  // namespace

TEST_CASE("Loader of a whole Dataset: it is decoded once per host and epoch, and each worker sees all of it") {
  const SharedNumber decodes;
  std::vector<std::vector<std::int64_t>> alone;
  on_threads_and_processes(1, {{"valid", decoded(decodes)}}, [&](ry::Worker& worker) {
    if (alone.size() == 3) return;  // known already
    auto loader = ry::prepare_loader(worker, worker.dataset("valid"), {.batch_size_per_worker = 10, .shuffle = true});
    for (int epoch = 0; epoch < 3; ++epoch) alone.push_back(labels_of(loader));
  });
  REQUIRE(alone.size() == 3);
  CHECK(alone[0] != alone[1]);
  static_cast<void>((*decodes).exchange(0));
  const auto read = [&](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, worker.dataset("valid"), {.batch_size_per_worker = 10, .shuffle = true});
    for (const auto& epoch : alone) {
      worker.barrier();
      EXPECT(labels_of(loader) == epoch);
    }
  };
  on_threads_and_processes(3, {{"valid", decoded(decodes)}}, read,
                           [&] { CHECK((*decodes).exchange(0) == 3 * num_decoded); });
}

TEST_CASE("Loader of a whole Dataset: what each worker leaves out of it for itself is decoded once per host as well") {
  const SharedNumber decodes;
  const auto read = [](ry::Worker& worker) {
    const int rank = worker.rank();
    const auto mine = worker.dataset("valid").filter(
        [rank](const ry::Sample& in) { return in.id() % 3 != static_cast<std::uint64_t>(rank); });
    auto loader = ry::prepare_loader(worker, mine, {.batch_size_per_worker = static_cast<std::size_t>(5 + rank)});
    std::vector<std::int64_t> expected;
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(num_decoded); ++at) {
      if (at % 3 != rank) expected.push_back(at);
    }
    for (int epoch = 0; epoch < 2; ++epoch) {
      worker.barrier();
      EXPECT(labels_of(loader) == expected);
    }
  };
  on_threads_and_processes(3, {{"valid", decoded(decodes)}}, read,
                           [&] { CHECK((*decodes).exchange(0) == 2 * num_decoded); });
}

TEST_CASE("Loader of a whole Dataset: workers meet in new loaders of it too, however many each has made") {
  const SharedNumber decodes;
  const auto read = [](ry::Worker& worker) {
    for (int round = 0; round < 3; ++round) {
      if (worker.rank() == round) {
        static_cast<void>(ry::prepare_loader(worker, worker.dataset("valid"), {.batch_size_per_worker = 10}));
      }
      auto loader = ry::prepare_loader(worker, worker.dataset("valid"), {.batch_size_per_worker = 10});
      worker.barrier();
      EXPECT(labels_of(loader).size() == num_decoded);
    }
  };
  on_threads_and_processes(3, {{"valid", decoded(decodes)}}, read,
                           [&] { CHECK((*decodes).exchange(0) == 3 * num_decoded); });
}

TEST_CASE("Loader of a whole Dataset: some workers may read it alone, to the middle, or not at all") {
  const SharedNumber decodes;
  const auto read = [](ry::Worker& worker) {
    const int rank = worker.rank();
    auto valid = ry::prepare_loader(worker, worker.dataset("valid"), {.batch_size_per_worker = 4});
    std::vector<std::int64_t> expected(static_cast<std::size_t>(num_decoded));
    for (std::size_t at = 0; at < expected.size(); ++at) expected[at] = static_cast<std::int64_t>(at);
    for (const int reader : {0, 2}) {  // one alone
      if (rank == reader) EXPECT(labels_of(valid) == expected);
      worker.barrier();
    }
    for (int leaver = 0; leaver < 3; ++leaver) {  // one leaves, and keeps its loader as it is
      worker.barrier();
      const auto seen = labels_of(valid, rank == leaver ? 2 : 1000);
      EXPECT(rank == leaver ? seen.size() == 8 : seen == expected);
    }
    worker.barrier();
    EXPECT(labels_of(valid) == expected);
    auto first =
        ry::prepare_loader(worker, worker.dataset(rank == 0 ? "valid" : "other"), {.batch_size_per_worker = 3});
    auto second =
        ry::prepare_loader(worker, worker.dataset(rank == 0 ? "other" : "valid"), {.batch_size_per_worker = 3});
    EXPECT(labels_of(first) == expected);
    EXPECT(labels_of(second) == expected);
  };
  const ry::Datasets datasets{{"valid", decoded(decodes)}, {"other", decoded(decodes)}};
  const ry::Result result = run_with_whole<ry::Gloo, ry::Processes>(3, datasets, read);
  CHECK(result.error() == "");
  CHECK(result.warnings().empty());
}

TEST_CASE("Loader of a cached Dataset: forked workers decode it once for all epochs, and those of a later run not") {
  const SharedNumber decodes;
  const ry::Datasets datasets{{"valid", decoded(decodes).cache()}};
  const auto read = [](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, worker.dataset("valid"), {.batch_size_per_worker = 10});
    for (int epoch = 0; epoch < 2; ++epoch) EXPECT(labels_of(loader).size() == num_decoded);
  };
  for (const std::int64_t expected : {num_decoded, std::int64_t{0}}) {
    const ry::Result result = run_with_whole<ry::Gloo, ry::Processes>(3, datasets, read);
    CHECK(result.error() == "");
    CHECK((*decodes).exchange(0) == expected);
  }
}

TEST_CASE(
    "Loader of a whole Dataset: what take() and the like make of it goes on with other workers, parts by rank do not") {
  const SharedNumber decodes;
  const Scratch scratch;
  const auto fit = [&](const std::string& name, int num_workers, bool is_by_rank, bool fails) {
    const auto train = [=](ry::Worker& worker) {
      const auto first = is_by_rank ? static_cast<std::uint64_t>(worker.rank()) : 1U;
      const auto same = worker.dataset("valid").map([](const ry::Sample&, ry::SampleWriter&) {});
      auto loader = ry::prepare_loader(worker, same.skip(first).take(40).shuffle(),
                                       {.batch_size_per_worker = 8, .drives_step = true});
      ry::TrainState state{worker, {{"loader", loader}}};
      int batches = 0;
      for ([[maybe_unused]] const int epoch : state.epochs(1)) {
        for ([[maybe_unused]] const auto& batch : loader) {
          if (fails && worker.steps() == 3) {
            worker.barrier();  // all have saved the third step
            throw std::runtime_error{"as planned"};
          }
          ++batches;
        }
      }
      worker.report({{"batches", batches}});
    };
    ry::RunConfig config{.name = name,
                         .storage_path = scratch.path(),
                         .checkpoint = {.every_steps = 1},
                         .data = {.split = {}},
                         .progress = ry::Progress::quiet};
    return ry::Trainer<ry::SharedMemory, ry::Threads>{
        train, {.num_workers = num_workers}, std::move(config), {{"valid", decoded(decodes)}}}
        .fit();
  };
  for (const bool is_by_rank : {false, true}) {
    const std::string name = is_by_rank ? "own" : "alike";
    CHECK_THAT(fit(name, 2, is_by_rank, true).error(), Catch::ContainsSubstring("as planned"));
    const ry::Result other = fit(name, 3, is_by_rank, false);
    if (is_by_rank) {
      CHECK_THAT(other.error(), Catch::ContainsSubstring("a part of rank") &&
                                    Catch::ContainsSubstring("arguments that differ between ranks") &&
                                    Catch::ContainsSubstring("give the run 2 workers"));
    } else {
      REQUIRE(other.error() == "");
      CHECK(other.metrics().at("batches").number() == 2);
    }
  }
}

TEST_CASE(
    "Loader of a whole Dataset: one that drives no steps goes on in what each rank has chosen by its own number") {
  const SharedNumber decodes;
  const Scratch scratch;
  const std::int64_t of_second = GENERATE(40, 33);
  const auto train = [of_second](ry::Worker& worker) {
    const std::int64_t rank = worker.rank();
    const ry::Dataset part = worker.dataset("valid")
                                 .skip(static_cast<std::uint64_t>(rank * 40))
                                 .take(static_cast<std::uint64_t>(rank == 0 ? 40 : of_second));
    auto loader = ry::prepare_loader(worker, part, {.batch_size_per_worker = 8, .threads = 0});
    ry::TrainState state{worker, {{"loader", loader}}};
    const std::int64_t consumed = rank == 0 ? 8 : 24;
    if (!state.is_resumed()) {
      static_cast<void>(labels_of(loader, static_cast<std::size_t>(consumed / 8 + 1)));
      worker.report({{"read", true}}, state);
      worker.barrier();
      throw std::runtime_error{"as planned"};
    }
    const auto rest = labels_of(loader);
    EXPECT(rest.size() == static_cast<std::size_t>((rank == 0 ? 40 : of_second) - consumed));
    EXPECT(rest.front() == rank * 40 + consumed);
  };
  const auto fit = [&](int num_workers) {
    ry::RunConfig config{
        .name = "run", .storage_path = scratch.path(), .data = {.split = {}}, .progress = ry::Progress::quiet};
    return ry::Trainer<ry::SharedMemory, ry::Threads>{
        train, {.num_workers = num_workers}, std::move(config), {{"valid", decoded(decodes)}}}
        .fit();
  };
  CHECK_THAT(fit(2).error(), Catch::ContainsSubstring("as planned"));
  CHECK_THAT(fit(3).error(), Catch::ContainsSubstring("give the run 2 workers"));
  CHECK(fit(2).error() == "");
}

TEST_CASE("Loader of a whole Dataset: goes on from states of older releases, which took others for a rank's own") {
  const SharedNumber decodes;
  const ry::Datasets datasets{{"valid", decoded(decodes)}, {"few", decoded(decodes).take(40)}};
  const auto read = [](ry::Worker& worker) {
    const auto loader_of = [&worker](const ry::Dataset& dataset) {
      return ry::prepare_loader(worker, dataset, {.batch_size_per_worker = 8});
    };
    const auto error_of = [](ry::Loader& loader, const ry::State& state) -> std::string {
      try {
        loader.load_state(state);
      } catch (const ry::ConfigError& error) {
        return error.what();
      }
      return "";
    };
    auto before = loader_of(worker.dataset("few"));
    static_cast<void>(labels_of(before, static_cast<std::size_t>(worker.rank()) + 2));
    ry::State state = before.state();
    auto own = loader_of(worker.dataset("valid").take(40));
    EXPECT(error_of(own, state).find("let the Trainer's dataset have what") != std::string::npos);
    state.is_own = true;
    state.values.set("rank", worker.rank());
    state.values.set("world_size", worker.world_size());
    auto alike = loader_of(worker.dataset("few"));
    EXPECT(error_of(alike, state) == "");
    EXPECT(labels_of(alike).front() == 8 * (worker.rank() + 1));
    state.values.set("world_size", 5);
    const std::string error = error_of(alike, state);
    EXPECT(error.find("older release") != std::string::npos &&
           error.find("give the run 5 workers") != std::string::npos);
  };
  const ry::Result result = run_with_whole<ry::SharedMemory, ry::Threads>(2, datasets, read);
  CHECK(result.error() == "");
}

TEST_CASE("Loader of a whole Dataset: what was read with other arguments than those of late is not kept in memory") {
  const SharedNumber decodes;
  std::size_t most = 0;
  const auto read = [&most](ry::Worker& worker) {
    auto kept = ry::prepare_loader(worker, worker.dataset("valid"), {.batch_size_per_worker = 10});
    for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
      auto loader =
          ry::prepare_loader(worker, worker.dataset("valid").shuffle(epoch).take(9), {.batch_size_per_worker = 9});
      EXPECT(labels_of(loader).size() == 9);
      if (worker.rank() == 0) most = std::max(most, worker.extension<ry::detail::WholeFeeds>().size());
    }
    EXPECT(labels_of(kept).size() == num_decoded);
  };
  const ry::Result result = run_with_whole<ry::SharedMemory, ry::Threads>(2, {{"valid", decoded(decodes)}}, read);
  CHECK(result.error() == "");
  CHECK(most > 1);
  CHECK(most <= ry::detail::WholeFeeds::most_feeds + 1);
}
