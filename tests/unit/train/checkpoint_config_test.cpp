// SPDX-License-Identifier: MIT
// When checkpoints are made and which are kept.
#include "railyard/train/checkpoint_config.hpp"

#include "support/catch.hpp"
#include "unit/train/copied_training.hpp"
#include "unit/train/toy_training.hpp"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

#include <sys/resource.h>

namespace ry = railyard;
using namespace toy;  // its names stand in nearly every line

TEMPLATE_TEST_CASE("Checkpoints: are made every so many steps, and lose no more than those", "", SharedThreads,
                   SharedProcesses) {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.attempt() == 0 && step == 9) throw std::runtime_error{"a test"};
  };
  const ry::Result result = run_in<typename TestType::B, typename TestType::S>(
      scratch, 2,
      [fail](auto& worker) {
        Weights weights;
        ry::TrainState state{worker, {{"weights", weights}}};
        while (worker.steps() < 20) {
          worker.samples(3);
          fail(worker, worker.steps());
          weights.step(worker.steps());
          worker.end_step();
        }
        worker.report({{"sum", weights.sum()}});
      },
      {.checkpoint = {.keep = 2, .every_steps = 2}, .failure = {.max_failures = 1, .memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts()[0].lost_steps == 1);
  CHECK(names_in(result.path() / "checkpoints").size() == 2);
  CHECK(result.checkpoint()->manifest().step == 20);
  CHECK(result.checkpoint()->manifest().samples == 120);
  Weights straight;
  for (std::uint64_t step = 0; step < 20; ++step) straight.step(step);
  CHECK(result.metrics().at("sum").as<double>() == straight.sum());
}

TEST_CASE("Checkpoints: a score that no report has is told of once, with what there is") {
  const Scratch scratch;
  for (const std::string score : {"acuracy", "accuracy"}) {
    const auto train = [](auto& worker) {
      Weights weights;
      ry::TrainState state{worker, {{"weights", weights}}};
      for (const double accuracy : {0.1, 0.9, 0.5}) {
        worker.samples(1);
        worker.end_step();  // with checkpoints that have no metrics at all
        worker.report({{"accuracy", accuracy}, {"loss", 1}}, state);
      }
    };
    const ry::Result result = run_in<ry::Local, ry::Threads>(
        scratch, 1, train, {.checkpoint = {.keep = 2, .score = score, .every_steps = 1}});
    REQUIRE(result);
    std::vector<std::string> told = result.warnings();
    std::erase_if(told, [](const std::string& text) { return text.find("CheckpointConfig::score") == text.npos; });
    REQUIRE(told.size() == (score == "acuracy" ? 1 : 0));
    if (told.empty()) continue;
    CHECK_THAT(told[0], ContainsSubstring("\"acuracy\"") && ContainsSubstring("its report has \"accuracy\", \"loss\""));
  }
}

TEST_CASE("Checkpoints: the best by a metric are kept, and the newest") {
  const Scratch scratch;
  const ry::Result result = run_in<ry::Local, ry::Threads>(scratch, 2,
                                                           [](auto& worker) {
                                                             Weights weights;
                                                             ry::TrainState state{worker, {{"weights", weights}}};
                                                             for (const double score : {0.1, 0.9, 0.5, 0.7, 0.2}) {
                                                               worker.samples(1);
                                                               worker.report({{"score", score}}, state);
                                                             }
                                                           },
                                                           {.checkpoint = {.keep = 2, .score = "score"}});
  REQUIRE(result);
  CHECK(names_in(result.path() / "checkpoints").size() == 3);
  REQUIRE(result.best_checkpoints().size() == 2);
  CHECK(result.best_checkpoints()[0].manifest().metrics.at("score").as<double>() == 0.9);
  CHECK(result.best_checkpoints()[1].manifest().metrics.at("score").as<double>() == 0.7);
  CHECK(result.checkpoint()->manifest().metrics.at("score").as<double>() == 0.2);
}

TEST_CASE("Checkpoints: one of the best in which a bit has turned is told of, and its place is another's") {
  const Scratch scratch;
  const auto scored = [&](const std::vector<double>& scores, bool fails) {
    return run_in<ry::Local, ry::Threads>(scratch, 1,
                                          [&](auto& worker) {
                                            Weights weights;
                                            ry::TrainState state{worker, {{"weights", weights}}};
                                            for (const double score : scores) {
                                              worker.samples(1);
                                              worker.report({{"score", score}}, state);
                                            }
                                            if (fails) throw std::runtime_error{"a test"};
                                          },
                                          {.name = "scored", .checkpoint = {.keep = 1, .score = "score"}});
  };
  const ry::Result first = scored({0.9, 0.1}, true);
  const auto damaged = first.best_checkpoints().at(0).path() / "weights.safetensors";
  std::string content = read_text(damaged);
  content.back() = static_cast<char>(content.back() ^ 1);
  std::ofstream{damaged, std::ios::binary} << content;
  const auto tells = [&](const ry::Result& result) {
    return std::any_of(result.warnings().begin(), result.warnings().end(),
                       [&](const std::string& text) { return text.find(damaged.string()) != std::string::npos; });
  };
  const ry::Result result = scored({0.5, 0.7, 0.2}, false);
  REQUIRE(result);
  REQUIRE(result.best_checkpoints().size() == 1);
  CHECK(result.best_checkpoints()[0].manifest().metrics.at("score").as<double>() == 0.7);
  CHECK(tells(result));
  const ry::Result recorded = scored({}, true);
  REQUIRE(recorded.is_recorded());
  REQUIRE(recorded.best_checkpoints().size() == 1);
  CHECK(recorded.best_checkpoints()[0].manifest().metrics.at("score").as<double>() == 0.7);
  CHECK(tells(recorded));
}

TEST_CASE("Checkpoints: training goes on when one cannot be written, and says so (FAULTS F6)") {
  const Scratch scratch;
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [](auto& worker) {
                                                Weights weights;
                                                ry::TrainState state{worker, {{"weights", weights}}};
                                                if (worker.rank() == 0)
                                                  std::ofstream{worker.run_path() / "checkpoints"} << "in the way";
                                                worker.barrier();
                                                worker.samples(1);
                                                worker.report({{"sum", weights.sum()}}, state);
                                              },
                                              {.checkpoint = {.synchronous = true}});
  INFO(result.error());
  CHECK(result);
  CHECK_FALSE(result.checkpoint());
  CHECK(result.failed_checkpoints() == 1);
  CHECK_FALSE(result.is_state_saved());
  CHECK(std::any_of(result.warnings().begin(), result.warnings().end(), [](const std::string& warning) {
    return warning.find("could not be written") != std::string::npos &&
           warning.find("checkpoints") != std::string::npos;
  }));
}

TEST_CASE("Checkpoints: training goes on when a rank finds no memory for its part of one, and says so (FAULTS F6)") {
  const Scratch scratch;
  const int poor = GENERATE(0, 1);
  const bool is_synchronous = GENERATE(false, true);
  const auto limit = [](rlim_t most) {  // one that the memory for snapshots falls under as well
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit bytes{.rlim_cur = most, .rlim_max = RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &bytes) != 0) throw std::runtime_error{"setrlimit failed"};
  };
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [&](auto& worker) {
                                                Weights weights;
                                                ry::TrainState state{worker, {{"weights", weights}}};
                                                for (int at = 0; at < 3; ++at) {
                                                  worker.samples(1);
                                                  if (worker.rank() == poor) limit(at == 0 ? 0 : RLIM_INFINITY);
                                                  worker.report({{"at", at}}, state);
                                                }
                                              },
                                              {.checkpoint = {.synchronous = is_synchronous}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history().size() == 3);
  CHECK(result.failed_checkpoints() == 1);
  CHECK(result.is_state_saved());
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->manifest().report == 2);
  const std::string words = "of step 1 could not be written: rank " + std::to_string(poor) + ": ";
  CHECK(std::any_of(result.warnings().begin(), result.warnings().end(),
                    [&](const std::string& warning) { return warning.find(words) != std::string::npos; }));
}

TEST_CASE("Checkpoints: where memory has room for one snapshot each is saved once the one before is written") {
  const Scratch scratch;
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [&](auto& worker) {
                                                Weights weights;
                                                ry::TrainState state{worker, {{"weights", weights}}};
                                                std::optional<FileSizeLimit> limit;
                                                for (int at = 0; at < 6; ++at) {
                                                  worker.samples(1);
                                                  worker.report({{"at", at}}, state);
                                                  if (!limit) limit.emplace(0);  // there is memory for no other one
                                                }
                                              },
                                              {.checkpoint = {.keep = 6}, .failure = {.memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.failed_checkpoints() == 0);
  CHECK(names_in(result.path() / "checkpoints").size() == 6);
}

TEMPLATE_TEST_CASE(
    "Checkpoints: one that memory has no room for fails before any is taken, and training goes on (TRAPS 26)", "",
    SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const int rich = GENERATE(0, 1);
  const ry::Result result = run_in<typename TestType::B, typename TestType::S>(
      scratch, 2,
      [rich](auto& worker) {
        std::int64_t num_copies = 0;
        UnevenPart part{.is_huge = worker.rank() == rich, .num_copies = &num_copies};
        ry::TrainState state{worker, {{"part", part}}};
        worker.samples(1);
        worker.report({{"at", 0}}, state);
        part.is_huge = false;
        worker.samples(1);
        worker.report({{"at", 1}}, state);
      },
      {.failure = {.memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history().size() == 2);
  CHECK(result.failed_checkpoints() == 1);
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->manifest().report == 1);
  const auto is_told = [](const std::string& text) {
    return text.find("of step 1 could not be written") != std::string::npos &&
           text.find("does not fit into memory: the 2 workers") != std::string::npos;
  };
  CHECK(std::count_if(result.warnings().begin(), result.warnings().end(), is_told) == 1);
}

TEMPLATE_TEST_CASE("Checkpoints: a synchronous one is there when report() returns, on each rank", "", SharedThreads,
                   SharedProcesses) {
  const Scratch scratch;
  const ry::Result result = run_in<typename TestType::B, typename TestType::S>(
      scratch, 2,
      [](auto& worker) {
        Weights weights;
        ry::TrainState state{worker, {{"weights", weights}}};
        for (int at = 0; at < 5; ++at) {
          worker.samples(1);
          worker.report({{"at", at}}, state);
          const auto newest = ry::newest_checkpoint(worker.run_path());
          if (!newest || newest->manifest().report != at) throw std::runtime_error{"it is not there"};
          worker.barrier();
        }
      },
      {.checkpoint = {.synchronous = true}});
  CHECK(result.error() == "");
}

TEMPLATE_TEST_CASE("Checkpoints: are made although only rank 0 reports", "", SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result result =
      run_in<typename TestType::B, typename TestType::S>(scratch, 2,
                                                         [](auto& worker) {
                                                           Weights weights;
                                                           ry::TrainState state{worker, {{"weights", weights}}};
                                                           for (int at = 0; at < 60; ++at) {
                                                             worker.samples(1);
                                                             worker.barrier();
                                                             worker.end_step();
                                                             if (worker.rank() == 0) worker.report({{"at", at}});
                                                           }
                                                         },
                                                         {.checkpoint = {.keep = 1, .every_steps = 2}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.checkpoint()->manifest().step == 60);
}

TEST_CASE("Checkpoints: micro-batches are one step, also where a report comes between them") {
  const Scratch scratch;
  const ry::Result result = run_in<ry::Local, ry::Threads>(scratch, 1, [](auto& worker) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    worker.samples(1, false);
    worker.report({{"at", 0}}, state);
    worker.samples(1, true);
    worker.report({{"at", 1}}, state);
  });
  REQUIRE(result);
  CHECK(result.checkpoint()->manifest().step == 1);
}

TEMPLATE_TEST_CASE("Checkpoints: are made by rank 0's clock, on all ranks at the end of the same step", "",
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  ry::RunConfig config{.failure = {.max_failures = 1, .memory_percent = 0}};
  config.checkpoint.interval = std::chrono::nanoseconds{1};  // over at the end of every step
  const ry::Result result = run_in<typename TestType::B, typename TestType::S>(
      scratch, 2,
      [](auto& worker) {
        Weights weights;
        ry::TrainState state{worker, {{"weights", weights}}};
        while (worker.steps() < 10) {
          worker.samples(1);
          if (worker.attempt() == 0 && worker.steps() == 7) throw std::runtime_error{"a test"};
          worker.end_step();
        }
      },
      config);
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts()[0].lost_steps <= 1);                     // which waited for memory when the run failed
  CHECK(names_in(result.path() / "checkpoints").size() == 6 + 2);  // known one step later, at first and again
}

TEST_CASE("Checkpoints: what was accepted is committed in order, though the workers have died meanwhile (TRAPS 36)") {
  const Scratch scratch;
  const auto die = [](auto& worker, std::uint64_t step) {
    if (step == 3 * steps_per_epoch + 2 && worker.rank() == 1) ::raise(SIGKILL);
  };
  const ry::Result result = run<SharedProcesses>(scratch, die, {.failure = {.memory_percent = 0}});
  CHECK_FALSE(result);
  const auto all = ry::CheckpointFolder{result.path() / "checkpoints"}.list();
  REQUIRE(all.size() == 3);
  for (std::size_t at = 0; at < all.size(); ++at) {
    all[at].verify();
    CHECK(all[at].manifest().report == static_cast<std::int64_t>(at));
  }
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->path() == all.back().path());
}
