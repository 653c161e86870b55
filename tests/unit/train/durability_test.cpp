// SPDX-License-Identifier: MIT
// Runs that fail, start again and go on from checkpoints.
#include "railyard/train/train_state.hpp"
#include "railyard/train/trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/core/mean.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"
#include "unit/train/scratch.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

/// Stands for a model: numbers that every step changes in a way that no other order of steps gives.
struct Weights {
  std::vector<double> values = std::vector<double>(1000, 1.0);

  void step(std::uint64_t number) {
    for (double& value : values) value = value * 1.25 + static_cast<double>(number % 7) - 0.001 * value * value;
    for (double& value : values) value = value > 1e3 ? value / 1e3 : value;
  }
  [[nodiscard]] ry::State state() const {
    ry::State state;
    state.tensors.push_back({.name = "values",
                             .dtype = ry::Dtype::f64,
                             .shape = {static_cast<std::int64_t>(values.size())},
                             .read = [this](std::int64_t begin, std::int64_t end, std::byte* to) {
                               std::memcpy(to, values.data() + begin, static_cast<std::size_t>(end - begin) * 8);
                             }});
    return state;
  }
  void load_state(const ry::State& state) {
    const ry::StateTensor* tensor = state.find_tensor("values");
    tensor->read(0, tensor->count(), reinterpret_cast<std::byte*>(values.data()));
  }
  [[nodiscard]] double sum() const {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
};

constexpr int num_epochs = 6;
constexpr int steps_per_epoch = 5;

/// Stands for a loader.
struct Data {
  std::int64_t epoch = 0;
  int position = 0;

  [[nodiscard]] static bool drives_step() { return true; }
  [[nodiscard]] std::int64_t next_epoch() const { return position == steps_per_epoch ? epoch + 1 : epoch; }
  [[nodiscard]] ry::State state() const { return {{"epoch", next_epoch()}, {"position", position % steps_per_epoch}}; }
  void load_state(const ry::State& state) {
    epoch = state.at("epoch").as<std::int64_t>();
    position = static_cast<int>(state.at("position").as<std::int64_t>());
  }
};

/// Trains; fail is called with the number of each step of the first attempts.
template <class W, class Fail>
void train(W& worker, const Fail& fail) {
  Weights weights;
  ry::Mean loss;
  Data data;
  ry::TrainState state{worker, {{"weights", weights}, {"loss", loss}, {"data", data}}};
  for (const int epoch : state.epochs(num_epochs)) {
    if (data.epoch != epoch) data = {.epoch = epoch};
    while (data.position < steps_per_epoch) {
      worker.end_step();
      ++data.position;
      worker.samples(1);
      fail(worker, worker.steps());
      worker.barrier();
      weights.step(worker.steps());
      loss.add(weights.values[0], 1);
    }
    worker.report({{"epoch", epoch}, {"sum", weights.sum()}, {"loss", loss.value()}}, state);
  }
}

const auto never = [](auto&, std::uint64_t) {};

struct LocalThreads {
  using B = ry::Local;
  using S = ry::Threads;
};
struct SharedThreads {
  using B = ry::SharedMemory;
  using S = ry::Threads;
};
struct SharedProcesses {
  using B = ry::SharedMemory;
  using S = ry::Processes;
};

template <class P, class Fail>
ry::Result run(const Scratch& scratch, const Fail& fail, ry::RunConfig config = {}, int num_workers = 2) {
  return run_in<typename P::B, typename P::S>(
      scratch, num_workers, [fail](auto& worker) { train(worker, fail); }, std::move(config));
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEMPLATE_TEST_CASE("Run: starts again after failures and ends as if nothing had happened", "", LocalThreads,
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result whole = run<TestType>(scratch, never);
  REQUIRE(whole);
  REQUIRE(whole.history().size() == num_epochs);
  const auto fail = [](auto& worker, std::uint64_t step) {
    const bool is_due = (worker.attempt() == 0 && step == 7) || (worker.attempt() == 1 && step == 23);
    if (is_due && worker.rank() == worker.attempt()) throw std::runtime_error{"a test"};
  };
  const ry::Result result = run<TestType>(scratch, fail, {.failure = {.max_failures = 2}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  REQUIRE(result.attempts().size() == 3);
  CHECK(result.attempts()[0].failed_rank == 0);
  CHECK(result.attempts()[0].end_step == 7);
  CHECK(result.attempts()[0].lost_steps == 2);
  CHECK_THAT(result.attempts()[0].error, ContainsSubstring("rank 0 of 2") && ContainsSubstring("a test"));
  CHECK(result.attempts()[1].failed_rank == 1);
  CHECK(result.attempts()[1].begin_step == 5);
  CHECK(result.attempts()[1].lost_steps == 3);
  CHECK(result.attempts()[2].error.empty());
  CHECK(read_lines(result.path() / "metrics.jsonl").size() == num_epochs);
  CHECK(names_in(result.path() / "checkpoints").size() == num_epochs);
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->manifest().step == num_epochs * steps_per_epoch);
}

TEST_CASE("Run: starts again after kill -9 of a worker, of the process that starts them, and after exit()") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.rank() != 1) return;
    if (worker.attempt() == 0 && step == 8) ::kill(::getpid(), SIGKILL);
    if (worker.attempt() == 1 && step == 13) ::kill(::getppid(), SIGKILL);
    if (worker.attempt() == 2 && step == 21) ::exit(3);
  };
  const ry::Result result = run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = -1}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  CHECK(result.attempts().size() == 4);
}

TEMPLATE_TEST_CASE("Run: goes on in another program where it failed, and gives back what it left when it has ended", "",
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result whole = run<TestType>(scratch, never);
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 17) throw std::runtime_error{"a test"};
  };
  const ry::Result failed = run<TestType>(scratch, fail, {.name = "digits"});
  CHECK_FALSE(failed);
  CHECK(failed.history().size() == 3);
  const ry::Result result = run<TestType>(scratch, never, {.name = "digits", .resume = ry::Resume::required});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().front().begin_step == 15);
  CHECK(result.history() == whole.history());
  CHECK_FALSE(result.is_recorded());
  const auto touch = [](auto&, std::uint64_t) { throw std::runtime_error{"nothing is to be run"}; };
  const ry::Result again = run<TestType>(scratch, touch, {.name = "digits"});
  REQUIRE(again);
  CHECK(again.is_recorded());
  CHECK(again.history() == whole.history());
  CHECK(again.checkpoint()->manifest().step == num_epochs * steps_per_epoch);
}

TEST_CASE("Run: goes on with another number of workers") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 11) throw std::runtime_error{"a test"};
  };
  CHECK_FALSE(run<SharedProcesses>(scratch, fail, {.name = "grows"}, 1));
  const ry::Result result = run<SharedProcesses>(scratch, never, {.name = "grows"}, 3);
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
}

TEST_CASE("Run: refuses another seed half way unless it is accepted, and an existing name where it must be new") {
  const Scratch scratch;
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 11) throw std::runtime_error{"a test"};
  };
  CHECK_FALSE(run<SharedThreads>(scratch, fail, {.name = "run"}));
  CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "run", .seed = 5}),
                    ContainsSubstring("RunConfig::seed is 5") && ContainsSubstring("was started with 0"));
  CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "run", .resume = ry::Resume::never}),
                    ContainsSubstring("exists already"));
  CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "none", .resume = ry::Resume::required}),
                    ContainsSubstring("there is no run in"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "none"));
  CHECK(run<SharedThreads>(scratch, never, {.name = "run", .seed = 5, .accept_changes = {"seed"}}));
}

TEST_CASE("Run: is refused to a second program while the first one has it") {
  const Scratch scratch;
  const ry::Result result =
      run<SharedThreads>(scratch,
                         [&scratch](auto& worker, std::uint64_t step) {
                           if (step != 3 || worker.rank() != 0) return;
                           CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "held"}),
                                             ContainsSubstring("is in use: process " + std::to_string(::getpid())));
                         },
                         {.name = "held"});
  INFO(result.error());
  CHECK(result);
}

TEST_CASE("Run: ends when the failure repeats at one step, when the budget is spent, and at once without one") {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (step == 7 && worker.rank() == 0) throw std::runtime_error{"a test"};
  };
  const ry::Result stuck = run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = -1}});
  CHECK(stuck.attempts().size() == 3);
  CHECK_THAT(stuck.error(), ContainsSubstring("a test") && ContainsSubstring("3 times in a row at step 7"));
  const auto later = [](auto& worker, std::uint64_t step) {
    if (step == 7 + static_cast<std::uint64_t>(worker.attempt())) throw std::runtime_error{"a test"};
  };
  const ry::Result spent = run<SharedProcesses>(scratch, later, {.failure = {.max_failures = 2}});
  CHECK(spent.attempts().size() == 3);
  CHECK_THAT(spent.error(), ContainsSubstring("the budget of 2 failures is spent"));
  CHECK(run<SharedProcesses>(scratch, fail).attempts().size() == 1);
  const ry::Result thrown =
      run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = 5, .retry_exceptions = false}});
  CHECK(thrown.attempts().size() == 1);
  CHECK_THAT(thrown.error(), ContainsSubstring("exceptions are not retried"));
}

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
      {.checkpoint = {.keep = 2, .every_steps = 2}, .failure = {.max_failures = 1}});
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

TEST_CASE("Checkpoints: an error names the rank that reports without a state where another has one") {
  const Scratch scratch;
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(scratch, 2, [](auto& worker) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    for (int at = 0; at < 10; ++at) {
      if (worker.rank() == 0) worker.report({{"at", at}}, state);
      if (worker.rank() == 1) worker.report({{"at", at}});
    }
  });
  CHECK_FALSE(result);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 2") && ContainsSubstring("has not saved where rank 0 has"));
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
  REQUIRE_FALSE(result.warnings().empty());
  CHECK_THAT(result.warnings().front(), ContainsSubstring("could not be written") && ContainsSubstring("checkpoints"));
}

TEST_CASE("Checkpoints: hold files of the user's, and what a run began with is found by a Trainer that restores it") {
  const Scratch scratch;
  std::ofstream{scratch.path() / "vocabulary.txt"} << "a b c";
  const auto training = [&](auto& worker) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    if (worker.rank() == 0) state.add_file("vocabulary.txt", scratch.path() / "vocabulary.txt");
    for ([[maybe_unused]] const int epoch : state.epochs(3)) {
      worker.samples(1);
      weights.step(worker.steps());
      worker.report({{"resumed", state.is_resumed()}}, state);
      if (!state.is_resumed()) throw std::runtime_error{"a test"};
    }
  };
  const ry::Result failed = run_in<ry::SharedMemory, ry::Processes>(scratch, 2, training);
  REQUIRE(failed.checkpoint());
  REQUIRE(failed.checkpoint()->files().size() == 1);
  CHECK(read_text(failed.checkpoint()->files().front()) == "a b c");
  const ry::Result result = ry::Trainer<ry::SharedMemory, ry::Processes>::restore(
                                failed.path(), training, {.num_workers = 2}, {.progress = ry::Progress::quiet})
                                .fit();
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history().size() == 3);
  CHECK(result.metrics().at("resumed").as<bool>());
}

TEST_CASE("Run: goes on after kill -9 of the whole program (FAULTS F1)") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  for (const int at : {3, 8, 18, 26}) {
    const pid_t program = ::fork();
    if (program == 0) {
      const ry::Result ignored =
          run<SharedProcesses>(scratch,
                               [at, program_id = ::getpid()](auto& worker, std::uint64_t step) {
                                 if (worker.rank() == 1 && step == static_cast<std::uint64_t>(at))
                                   ::kill(program_id, SIGKILL);
                               },
                               {.name = "killed"});
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(program, &status, 0) == program);
    CHECK(WIFSIGNALED(status));
  }
  const ry::Result result = run<SharedProcesses>(scratch, never, {.name = "killed"});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  for (const std::string& name : names_in(result.path() / "checkpoints")) CHECK(name.rfind("checkpoint-", 0) == 0);
}

namespace {

/// Runs a program that gets a signal in its sixth step, and returns its exit status.
template <class P>
int status_after(const Scratch& scratch, int signal, const ry::RunConfig& config) {
  const pid_t program = ::fork();
  if (program == 0) {
    for (const int one : {SIGINT, SIGTERM, SIGUSR1}) ::signal(one, SIG_DFL);  // Catch2 has handlers
    const auto fail = [signal, program_id = ::getpid()](auto& worker, std::uint64_t step) {
      if (worker.rank() == 1 && step == 5 && signal != 0) ::kill(program_id, signal);
      if (step < 6) return;
      // The signal is on its way: no step beyond the one that it reaches must be needed to hear of it.
      const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
      while (!worker.page().stop_requested.load() && !deadline.expired()) std::this_thread::yield();
    };
    ::_exit(run<P>(scratch, fail, config).exit_status());
  }
  int status = 0;
  ::waitpid(program, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

TEMPLATE_TEST_CASE(
    "Preemption: all ranks save at the end of one step and leave, and the run goes on (FAULTS B7 to B12)", "",
    SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  CHECK(status_after<TestType>(scratch, SIGTERM, {.name = "term"}) == 75);
  CHECK(status_after<TestType>(scratch, SIGUSR1, {.name = "usr", .preemption = {.exit_status = 99}}) == 99);
  CHECK(status_after<TestType>(scratch, SIGINT, {.name = "int"}) == 128 + SIGINT);
  std::ofstream{scratch.path() / "drain"};
  CHECK(status_after<TestType>(scratch, 0, {.name = "file", .preemption = {.file = scratch.path() / "drain"}}) == 75);
  for (const std::string name : {"term", "usr", "int", "file"}) {
    INFO(name);
    const auto checkpoint = ry::newest_checkpoint(scratch.path() / name);
    REQUIRE(checkpoint);
    if (name != "file") CHECK((checkpoint->manifest().step == 6 || checkpoint->manifest().step == 7));
    const ry::Result result = run<TestType>(scratch, never, {.name = name});
    REQUIRE(result);
    CHECK(result.history() == whole.history());
  }
}
