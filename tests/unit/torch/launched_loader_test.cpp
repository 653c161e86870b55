// SPDX-License-Identifier: MIT
// Named datasets and loaders in runs of several processes that something else has started.
#include "railyard/torch/prepare_loader.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"

#ifdef RAILYARD_WITH_LAUNCHED  // elsewhere there are no such runs
#include "railyard/train/train_state.hpp"
#include "railyard/workers/launched.hpp"

#include "unit/train/launched_processes.hpp"
#include "unit/train/scratch.hpp"
#include "unit/workers/support.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;
using launched_runs::LaunchedProcesses;
using workers_test::SharedNumber;

namespace launched_loader {

// A run as all of its processes, and one that is started by hand, describe it.
struct Plan {
  ry::Dataset dataset;
  std::size_t batch_size = 0;
  bool is_shuffled = false;
  bool is_whole = false;           // each worker is given all of it
  std::uint64_t last_step = 1000;  // in which the first attempt ends
};

// What all workers together, or rank 0 of what each has as a whole, have seen in the surviving lineage.
class Seen {
 public:
  void add(std::int64_t number) { text_ += std::to_string(number) + " "; }
  void end_epoch() { text_ += "| "; }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] ry::State state() const { return {{"text", text_}}; }
  void load_state(const ry::State& state) { text_ = state.at("text").as<std::string>(); }

 private:
  std::string text_{};
};

constexpr int num_epochs = 2;

void train(ry::Worker& worker, const Plan& plan) {
  const auto num_parts = static_cast<std::size_t>(plan.is_whole ? worker.world_size() : 1);
  const ry::LoaderOptions options{
      .global_batch_size = plan.batch_size * num_parts, .shuffle = plan.is_shuffled, .drives_step = true};
  auto loader = ry::prepare_loader(worker, worker.dataset("train"), options);
  Seen seen;
  ry::TrainState state{worker, {{"loader", loader}, {"seen", seen}}};
  for ([[maybe_unused]] const int epoch : state.epochs(num_epochs)) {
    for (const auto& batch : loader) {
      if (worker.steps() == plan.last_step && worker.rank() == worker.world_size() - 1) {
        throw std::runtime_error{"as planned"};
      }
      const auto numbers = plan.is_whole ? test::numbers_of(batch) : test::whole_of(worker, batch);
      for (const auto number : numbers) seen.add(number);
    }
    seen.end_epoch();
  }
  worker.report({{"seen", seen.text()}, {"workers", worker.world_size()}}, state);
}

template <class Backend, class Scaling>
std::string run(const Scratch& scratch, const std::string& name, int num_workers, const Plan& plan) {
  ry::RunConfig config{.name = name,
                       .storage_path = scratch.path(),
                       .seed = 5,
                       .checkpoint = {.every_steps = 1},
                       .progress = ry::Progress::quiet,
                       .start_timeout = std::chrono::seconds{30}};
  if (plan.is_whole) config.data.split = {};
  const ry::Result result = ry::Trainer<Backend, Scaling>{
      [&plan](ry::Worker& worker) { train(worker, plan); },
      {.num_workers = num_workers},
      std::move(config),
      {{"train", plan.dataset}}}.fit();
  return result ? result.metrics().at("seen").as<std::string>() : "failed: " + result.error();
}

// Of two processes with so many workers each, as each of them has it.
std::vector<std::string> run_launched(const Scratch& scratch, const std::string& name, int num_workers,
                                      const Plan& plan) {
  LaunchedProcesses launched{scratch, 2,
                             [&](int) { return run<ry::Gloo, ry::Launched>(scratch, name, num_workers, plan); }};
  return {launched.words(0), launched.words(1)};
}

// The numbers from 0 on; as a stream, those that are no multiples of 3.
ry::Dataset numbers(std::int64_t count, bool is_stream) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  const auto dataset = ry::Dataset::from_columns({{"n", all}}).with_label("n");
  if (!is_stream) return dataset;
  return dataset.filter([](const ry::Sample& sample) { return sample.id() % 3 != 0; }).shuffle_window(8);
}

// Whether each epoch has each number of the dataset once.
bool is_exact(const std::string& seen, const ry::Dataset& dataset) {
  std::map<std::int64_t, int> expected;
  ry::EpochReader reader{dataset, {.global_batch_size = 1000}};
  while (const auto step = reader.next()) {
    for (const auto number : step->block[0].values<std::int64_t>()) expected[number] += num_epochs;
  }
  std::string text = seen;
  std::replace(text.begin(), text.end(), '|', ' ');
  std::istringstream words{text};
  for (std::int64_t number = 0; words >> number;) --expected[number];
  return std::all_of(expected.begin(), expected.end(), [](const auto& one) { return one.second == 0; });
}

ry::Dataset decoded(std::int64_t count, const SharedNumber& decodes) {
  return ry::Dataset::from_function({{"n", ry::Dtype::i64}}, static_cast<std::uint64_t>(count),
                                    [&decodes](std::uint64_t id, ry::SampleWriter& out) {
                                      ++*decodes;
                                      out.set("n", static_cast<std::int64_t>(id));
                                    })
      .with_label("n");
}

TEST_CASE("Launched: workers of several processes see each sample once per epoch, in the order of one worker") {
  std::mt19937 random{7};
  for (int round = 0; round < 6; ++round) {
    const bool is_stream = round % 2 == 1;
    const auto count = std::uniform_int_distribution<std::int64_t>{4, 90}(random);
    const Plan plan{.dataset = numbers(count, is_stream),
                    .batch_size = std::uniform_int_distribution<std::size_t>{4, 16}(random),
                    .is_shuffled = !is_stream};
    CAPTURE(count, plan.batch_size, is_stream);
    const Scratch scratch;
    const auto expected = run<ry::SharedMemory, ry::Threads>(scratch, "alone", 1, plan);
    CHECK(is_exact(expected, plan.dataset));
    const int num_workers = 1 + round / 2 % 2;
    CHECK(run_launched(scratch, "launched", num_workers, plan) == std::vector<std::string>(2, expected));
  }
}

TEST_CASE("Launched: a run goes on in the middle of an epoch with another number of workers") {
  const bool is_stream = GENERATE(false, true);
  const Scratch scratch;
  Plan plan{.dataset = numbers(61, is_stream), .batch_size = 7, .is_shuffled = !is_stream};
  const auto expected = run<ry::SharedMemory, ry::Threads>(scratch, "alone", 1, plan);
  REQUIRE(is_exact(expected, plan.dataset));
  for (const auto& [before, after] : {std::pair{1, 2}, std::pair{2, 1}}) {
    const auto name = std::to_string(before);
    plan.last_step = is_stream ? 8 : 12;  // in the second epoch
    for (const auto& words : run_launched(scratch, name, before, plan)) {
      CHECK_THAT(words, ContainsSubstring("as planned"));
    }
    plan.last_step = 1000;
    CHECK(run_launched(scratch, name, after, plan) == std::vector<std::string>(2, expected));
  }
}

TEST_CASE("Launched: a cache in a file is made once for all processes of a host, and again for none of them") {
  const Scratch scratch;
  const SharedNumber decodes;
  const Plan plan{.dataset = decoded(83, decodes).cache((scratch.path() / "samples.cache").string()),
                  .batch_size = 8,
                  .is_shuffled = true};
  const auto first = run_launched(scratch, "first", 2, plan);
  CHECK(*decodes == 83);
  CHECK(is_exact(first[0], plan.dataset));
  CHECK(run_launched(scratch, "second", 1, plan) == first);
  CHECK(*decodes == 83);
}

TEST_CASE("Launched: what each worker has as a whole is decoded once per host and epoch for all processes") {
  const Scratch scratch;
  const SharedNumber decodes;
  const Plan plan{.dataset = decoded(67, decodes), .batch_size = 8, .is_shuffled = true, .is_whole = true};
  const auto alone = run<ry::SharedMemory, ry::Threads>(scratch, "alone", 1, plan);
  *decodes = 0;
  CHECK(run_launched(scratch, "launched", 2, plan) == std::vector<std::string>(2, alone));
  CHECK(*decodes == 67 * num_epochs);
}

}  // namespace launched_loader
#endif
