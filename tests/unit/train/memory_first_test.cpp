// SPDX-License-Identifier: MIT
// Restarts that go on from the copy of the state in memory, without a checkpoint or from behind the last one.
#include "support/catch.hpp"
#include "support/sanitizers.hpp"
#include "unit/train/copied_training.hpp"
#include "unit/train/toy_training.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

namespace ry = railyard;
using namespace toy;  // its names stand in nearly every line

namespace {

// Trains without a report of its state; fail is called in every step, before it changes anything.
template <class W, class Part, class Fail>
void train_quietly(W& worker, Part& part, Weights& weights, const Fail& fail) {
  ry::TrainState state{worker, {{"weights", part}}};
  if (state.is_resumed()) worker.report({{"resumed_at", worker.steps()}, {"from", worker.resumes_from()}});
  while (worker.steps() < last_step) {
    worker.samples(1);
    fail(worker, worker.steps());
    weights.step(worker.steps());
    worker.end_step();
  }
  worker.report({{"sum", weights.sum()}, {"steps", worker.steps()}});
}

double straight_sum() {
  Weights weights;
  for (std::uint64_t step = 0; step < last_step; ++step) weights.step(step);
  return weights.sum();
}

// Weights of which each rank holds half.
struct HalfWeights {
  Weights* all = nullptr;
  int rank = 0;
  std::function<void()> on_read{};

  [[nodiscard]] ry::State state() const {
    ry::State state = all->state();
    ry::StateTensor& tensor = state.tensors.front();
    tensor.is_piece = true;
    tensor.begin = 500 * rank;
    tensor.end = 500 * (rank + 1);
    tensor.read = [this, read = tensor.read](std::int64_t begin, std::int64_t end, std::byte* to) {
      read(begin, (begin + end) / 2, to);
      if (on_read) on_read();  // in the middle of a copy
      read((begin + end) / 2, end, to + ((begin + end) / 2 - begin) * 8);
    };
    return state;
  }
  void load_state(const ry::State& state) { all->load_state(state); }
};

// Holds up the first checkpoint of a run before its first byte: the writer makes run.json durable first, and before
// that the reports, without which a checkpoint is written all the same.
class StuckDisk {
 public:
  explicit StuckDisk(const std::filesystem::path& run, const std::string& name = "run.json")
      : file_(run / name), kept_(run / (name + ".kept")) {}
  void stick() const {
    std::filesystem::rename(file_, kept_);
    if (::mkfifo(file_.c_str(), 0666) != 0) throw std::runtime_error{"mkfifo failed"};
  }
  void free() const {
    const int fifo = ::open(file_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    std::filesystem::rename(kept_, file_);
    ::close(fifo);
  }

 private:
  std::filesystem::path file_;
  std::filesystem::path kept_;
};

// Trains in a program of its own, whose process number the training function gets as well; returns its exit status.
template <class Train>
int status_of_program(const Scratch& scratch, const Train& train_it, const ry::RunConfig& config) {
  const pid_t program = ::fork();
  if (program == 0) {
    for (const int one : {SIGINT, SIGTERM, SIGUSR1}) ::signal(one, SIG_DFL);  // Catch2 has handlers
    const auto train_here = [&, program_id = ::getpid()](auto& worker) { train_it(worker, program_id); };
    ::_exit(run_in<ry::SharedMemory, ry::Processes>(scratch, 2, train_here, config).exit_status());
  }
  int status = 0;
  ::waitpid(program, &status, 0);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace

TEMPLATE_TEST_CASE("Memory first: a restart without any checkpoint goes on a step before the failure (TRAPS 37)", "",
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.attempt() == 0 && step == 9 && worker.rank() == 1) throw std::runtime_error{"a test"};
    if (worker.attempt() == 1 && step == 21 && worker.rank() == 0) throw std::runtime_error{"a test"};
  };
  const ry::Result result = run_in<typename TestType::B, typename TestType::S>(
      scratch, 2,
      [fail](auto& worker) {
        Weights weights;
        HalfWeights half{.all = &weights, .rank = worker.rank()};
        train_quietly(worker, half, weights, fail);
      },
      {.failure = {.max_failures = 2, .memory_percent = every_step}});
  INFO(result.error());
  REQUIRE(result);
  REQUIRE(result.attempts().size() == 3);
  CHECK(result.attempts()[0].lost_steps <= 1);
  CHECK(result.attempts()[1].begin_step >= 8);
  CHECK(result.attempts()[1].lost_steps <= 1);
  CHECK_FALSE(result.checkpoint());
  CHECK(result.history()[0].at("from").as<std::string>() == "memory");
  CHECK(result.metrics().at("sum").as<double>() == straight_sum());
}

TEST_CASE("Memory first: what a restart has put back serves the next one, without another copy") {
  const Scratch scratch;
  constexpr double rarely = 1e-6;  // percent: a copy that takes a microsecond is worth 100 seconds
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.attempt() < 2 && step == 9 && worker.rank() == 1) throw std::runtime_error{"a test"};
  };
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [fail](auto& worker) {
                                                Weights weights;
                                                HalfWeights half{.all = &weights, .rank = worker.rank()};
                                                train_quietly(worker, half, weights, fail);
                                              },
                                              {.failure = {.max_failures = 2, .memory_percent = rarely}});
  INFO(result.error());
  REQUIRE(result);
  REQUIRE(result.attempts().size() == 3);
  const std::uint64_t copied = result.attempts()[1].begin_step;
  CHECK(copied > 0);
  CHECK(copied < 9);
  CHECK(result.attempts()[2].begin_step == copied);
  CHECK(result.metrics().at("sum").as<double>() == straight_sum());
}

TEST_CASE("Memory first: a worker killed in the middle of a copy leaves the one before (TRAPS 38)") {
  const Scratch scratch;
  for (const int victim : {0, 1}) {
    const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(
        scratch, 2,
        [victim](auto& worker) {
          Weights weights;
          HalfWeights half{.all = &weights, .rank = worker.rank()};
          half.on_read = [&worker, victim] {
            const bool is_due =
                worker.attempt() < 3 && worker.steps() == 7 * (1 + static_cast<std::uint64_t>(worker.attempt()));
            if (is_due && worker.rank() == victim) ::kill(::getpid(), SIGKILL);
          };
          train_quietly(worker, half, weights, never);
        },
        {.failure = {.max_failures = 3, .memory_percent = every_step}});
    INFO(result.error());
    REQUIRE(result);
    REQUIRE(result.attempts().size() == 4);
    for (const std::size_t attempt : {1U, 2U, 3U}) CHECK(result.attempts()[attempt].begin_step == 7 * attempt - 1);
    CHECK(result.metrics().at("sum").as<double>() == straight_sum());
  }
}

TEST_CASE("Memory first: training goes on where a rank finds no memory for copies, and the user is told") {
  const Scratch scratch;
  for (const int poor : {0, 1}) {
    const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(
        scratch, 2,
        [poor](auto& worker) {
          if (worker.attempt() == 0 && worker.rank() == poor) {  // a limit that memory for copies falls under as well
            ::signal(SIGXFSZ, SIG_IGN);
            const rlimit none{.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
            if (::setrlimit(RLIMIT_FSIZE, &none) != 0) throw std::runtime_error{"setrlimit failed"};
          }
          const auto fail = [](auto& one, std::uint64_t step) {
            if (one.attempt() == 0 && step == 9) throw std::runtime_error{"a test"};
            if (one.attempt() == 1 && step == 21) throw std::runtime_error{"a test"};
          };
          Weights weights;
          HalfWeights half{.all = &weights, .rank = worker.rank()};
          train_quietly(worker, half, weights, fail);
        },
        {.failure = {.max_failures = 2, .memory_percent = every_step}});
    INFO(result.error());
    REQUIRE(result);
    REQUIRE(result.attempts().size() == 3);
    CHECK(result.attempts()[1].begin_step == 0);
    CHECK(result.attempts()[2].begin_step >= 20);
    CHECK(std::count_if(result.warnings().begin(), result.warnings().end(), [](const std::string& warning) {
            return warning.find("is not copied to memory") != std::string::npos;
          }) == 1);
    CHECK(result.metrics().at("sum").as<double>() == straight_sum());
  }
}

TEST_CASE("Memory first: no rank makes copies where those of one would not leave enough memory") {
  const Scratch scratch;
  const int rich = GENERATE(0, 1);
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2, [rich](ry::Worker& worker) { train_unevenly(worker, rich); },
                                              {.failure = {.max_failures = 1, .memory_percent = every_step}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.metrics().at("copies").as<std::int64_t>() == 0);
  const auto is_told = [](const std::string& warning) { return warning.find("are to come") != std::string::npos; };
  CHECK(std::count_if(result.warnings().begin(), result.warnings().end(), is_told) == 1);
}

TEST_CASE("Memory first: a checkpoint that is newer than the copy is what a run goes on from") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  const auto fail = [](auto& worker, std::uint64_t step) {
    if (worker.attempt() == 0 && step == 12 && worker.rank() == 1) ::kill(::getpid(), SIGKILL);
  };
  // So little that there is one copy, after the second step, and no other.
  const ry::Result result =
      run<SharedProcesses>(scratch, fail, {.failure = {.max_failures = 1, .memory_percent = 1e-6}});
  REQUIRE(result);
  CHECK(result.attempts().at(1).begin_step == 10);
  CHECK(result.history() == whole.history());
}

TEST_CASE("Memory first: what is only in memory is written when no failure is left, and another program goes on") {
  const Scratch scratch;
  const auto fail = [](auto& worker, std::uint64_t step) {
    const bool is_due = step == 9U + static_cast<std::uint64_t>(worker.attempt());
    if (is_due && worker.rank() == 1) ::kill(::getpid(), SIGKILL);
  };
  const auto train_it = [fail](auto& worker) {
    Weights weights;
    train_quietly(worker, weights, weights, fail);
  };
  ry::RunConfig config{.name = "run", .failure = {.max_failures = 1, .memory_percent = every_step}};
  const ry::Result failed = run_in<ry::SharedMemory, ry::Processes>(scratch, 2, train_it, config);
  CHECK_FALSE(failed);
  REQUIRE(failed.checkpoint());
  // Rank 0 may be ended before it has handed over its part of the last copy; of the one before it has.
  CHECK(failed.checkpoint()->manifest().step >= 8);
  config.failure.max_failures = 0;
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(
      scratch, 2,
      [](auto& worker) {
        Weights weights;
        train_quietly(worker, weights, weights, never);
      },
      config);
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history()[0].at("resumed_at").as<std::int64_t>() >= 8);
  CHECK(result.metrics().at("sum").as<double>() == straight_sum());
}

TEST_CASE("Memory first: a run told to leave in the middle of an evaluation saves its copy in time (FAULTS B10)") {
  const int max_failures = GENERATE(0, 1);  // it is no failure
  const Scratch scratch;
  ry::RunConfig config{.name = "run", .failure = {.max_failures = max_failures, .memory_percent = every_step}};
  config.stop_grace = std::chrono::seconds{railyard_test::is_sanitized ? 6 : 3};
  const auto seen = scratch.path() / "seen";
  const auto train_it = [&](auto& worker, pid_t program) {
    Weights weights;
    const auto evaluate = [&, program](auto& of, std::uint64_t step) {
      if (step != 9) return;
      of.barrier();
      if (of.rank() == 0) ::kill(program, SIGTERM);
      // Longer than the time that is left: it is ended if nobody saves meanwhile.
      while (!ry::newest_checkpoint(scratch.path() / "run")) ::usleep(1000);
      std::ofstream{seen} << "by a worker that was still in the evaluation";
      while (true) ::pause();
    };
    train_quietly(worker, weights, weights, evaluate);
  };
  CHECK(status_of_program(scratch, train_it, config) == 75);
  const auto checkpoint = ry::newest_checkpoint(scratch.path() / "run");
  REQUIRE(checkpoint);
  CHECK(checkpoint->manifest().step >= 8);
  CHECK(std::filesystem::exists(seen));
}

TEST_CASE("Memory first: a copy that is newer than a checkpoint on its way is saved in time as well (FAULTS B10)") {
  const Scratch scratch;
  ry::RunConfig config{.name = "run", .failure = {.memory_percent = every_step}};
  config.failure.max_failures = 1;
  config.stop_grace = std::chrono::seconds{railyard_test::is_sanitized ? 6 : 3};
  const auto seen = scratch.path() / "seen";
  const auto train_it = [&](auto& worker, pid_t program) {
    const StuckDisk disk{worker.run_path(), "metrics.jsonl"};
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    worker.report({{"begins", true}});
    while (!std::filesystem::exists(worker.run_path() / "metrics.jsonl")) ::usleep(1000);
    worker.barrier();
    if (worker.rank() == 0) disk.stick();
    worker.barrier();
    for (std::uint64_t step = 0; step < 9; ++step) {
      worker.samples(1);
      weights.step(step);
      step == 4 ? worker.report({{"step", step}}, state) : worker.end_step();
    }
    worker.barrier();
    if (worker.rank() == 0) {  // it evaluates now
      ::kill(program, SIGTERM);
      while (!worker.page().stop_requested.load()) ::usleep(1000);
      disk.free();
      const auto step = [&] {
        const auto newest = ry::newest_checkpoint(scratch.path() / "run");
        return newest ? newest->manifest().step : 0;
      };
      while (step() < 8) ::usleep(1000);
      std::ofstream{seen} << "by a worker that was still in the evaluation";
    }
    while (true) ::pause();
  };
  CHECK(status_of_program(scratch, train_it, config) == 75);
  CHECK(std::filesystem::exists(seen));
}

TEST_CASE("Memory first: a run told to leave while its workers start again saves what they were to go on from") {
  const Scratch scratch;
  ry::RunConfig config{.name = "run", .failure = {.max_failures = 1, .memory_percent = every_step}};
  config.stop_grace = std::chrono::seconds{railyard_test::is_sanitized ? 6 : 3};
  const auto seen = scratch.path() / "seen";
  const auto train_it = [&](auto& worker, pid_t program) {
    if (worker.attempt() == 1) {  // it prepares, and has put nothing back yet
      worker.barrier();
      if (worker.rank() == 0) ::kill(program, SIGTERM);
      while (!ry::newest_checkpoint(scratch.path() / "run")) ::usleep(1000);
      std::ofstream{seen} << "by a worker that was still starting";
      while (true) ::pause();
    }
    const auto fail = [](auto& of, std::uint64_t step) {
      if (step == 9 && of.rank() == 1) throw std::runtime_error{"a test"};
    };
    Weights weights;
    train_quietly(worker, weights, weights, fail);
  };
  CHECK(status_of_program(scratch, train_it, config) == 75);
  CHECK(std::filesystem::exists(seen));
  const auto checkpoint = ry::newest_checkpoint(scratch.path() / "run");
  REQUIRE(checkpoint);
  checkpoint->verify();
  CHECK(checkpoint->manifest().step >= 7);
}

TEST_CASE("Memory first: no step of an epoch is left out where no part of the state knows the place in it") {
  const Scratch scratch;
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(
      scratch, 2,
      [](auto& worker) {
        Weights weights;
        ry::TrainState state{worker, {{"weights", weights}}};
        for ([[maybe_unused]] const int epoch : state.epochs(8)) {
          for (int step = 0; step < 5; ++step) {
            worker.samples(1);
            if (worker.attempt() == 0 && worker.steps() == 13 && worker.rank() == 1) throw std::runtime_error{"a test"};
            weights.step(worker.steps());
            worker.end_step();
          }
          worker.report({{"sum", weights.sum()}}, state);
        }
      },
      {.failure = {.max_failures = 1, .memory_percent = every_step}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().at(1).begin_step == 10);
  CHECK(result.metrics().at("sum").as<double>() == straight_sum());
}

TEST_CASE("Memory first: a second TrainState does not go on from copies that the first one has made meanwhile") {
  const Scratch scratch;
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [](auto& worker) {
                                                for (const int stage : {0, 1}) {
                                                  Data data;
                                                  ry::TrainState state{worker, {{"data", data}}};
                                                  if (stage == 1) worker.report({{"begins_at", data.position}});
                                                  for (; data.position < steps_per_epoch - 1; ++data.position) {
                                                    worker.samples(1);
                                                    if (worker.attempt() == 0 && data.position == 3) {
                                                      worker.barrier();  // both have made copies of the steps before
                                                      if (worker.rank() == 1) throw std::runtime_error{"a test"};
                                                    }
                                                    worker.end_step();
                                                  }
                                                }
                                              },
                                              {.failure = {.max_failures = 1, .memory_percent = every_step}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().at(1).begin_step > 0);
  CHECK(result.history().at(0).at("begins_at").as<std::int64_t>() == 0);
}

TEMPLATE_TEST_CASE("Memory first: a restart does not wait for the newest checkpoint to be written", "", SharedThreads,
                   SharedProcesses) {
  const Scratch scratch;
  const ry::Result result = run_in<typename TestType::B, typename TestType::S>(
      scratch, 2,
      [](auto& worker) {
        const StuckDisk disk{worker.run_path()};
        Weights weights;
        HalfWeights half{.all = &weights, .rank = worker.rank()};
        ry::TrainState state{worker, {{"weights", half}}};
        if (worker.rank() == 0 && worker.attempt() < 2) worker.attempt() == 0 ? disk.stick() : disk.free();
        worker.barrier();
        while (worker.steps() < last_step) {
          worker.samples(1);
          weights.step(worker.steps());
          worker.end_step();
          if (worker.attempt() > 0) continue;
          worker.report({{"sum", weights.sum()}}, state);
          worker.barrier();  // all have saved
          if (worker.rank() == 1) throw std::runtime_error{"a test"};
        }
        worker.report({{"sum", weights.sum()}, {"from", worker.resumes_from()}}, state);
      },
      {.failure = {.max_failures = 1, .memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().at(1).begin_step == 1);
  CHECK(result.metrics().at("from").template as<std::string>() == "memory");
  CHECK(result.metrics().at("sum").template as<double>() == straight_sum());
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->manifest().step == last_step);
}

TEMPLATE_TEST_CASE("Memory first: the newest checkpoint is taken from memory also when it has been written", "",
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result result = run_in<typename TestType::B, typename TestType::S>(
      scratch, 2,
      [](auto& worker) {
        Weights weights;
        HalfWeights half{.all = &weights, .rank = worker.rank()};
        ry::TrainState state{worker, {{"weights", half}}};
        worker.report({{"from", worker.resumes_from()}, {"sum", weights.sum()}});
        while (worker.steps() < last_step) {
          worker.samples(1);
          weights.step(worker.steps());
          if (worker.steps() == 4 && worker.attempt() > 0 && worker.attempt() < 3) {
            throw std::runtime_error{"a test"};  // once more from the same memory
          }
          worker.end_step();
          worker.report({{"sum", weights.sum()}}, state);  // waits until it is written
          if (worker.steps() == 4 && worker.attempt() == 0 && worker.rank() == 1) throw std::runtime_error{"a test"};
        }
      },
      {.checkpoint = {.keep = 2, .synchronous = true},
       .failure = {.max_failures = 3, .max_failures_at_same_step = 4, .memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().size() == 4);
  CHECK(result.history()[5].at("from").template as<std::string>() == "memory");
  CHECK(result.metrics().at("sum").template as<double>() == straight_sum());
}

TEST_CASE("Memory first: a second TrainState does not go on from where the first one has saved meanwhile") {
  const Scratch scratch;
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [](auto& worker) {
                                                const StuckDisk disk{worker.run_path()};
                                                for (const int stage : {0, 1}) {
                                                  Weights weights;
                                                  ry::TrainState state{worker, {{"weights", weights}}};
                                                  worker.report({{"resumed", state.is_resumed()}, {"stage", stage}});
                                                  if (worker.rank() == 0 && stage == 0)
                                                    worker.attempt() == 0 ? disk.stick() : disk.free();
                                                  worker.barrier();
                                                  for (int at = 0; at < 3; ++at) {
                                                    worker.samples(1);
                                                    worker.report({{"at", at}}, state);
                                                    worker.barrier();  // both have saved
                                                    if (worker.attempt() == 0) throw std::runtime_error{"a test"};
                                                  }
                                                }
                                              },
                                              {.failure = {.max_failures = 1, .memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  const auto& history = result.history();
  REQUIRE(history.size() == 10);
  CHECK(history[2].at("resumed").as<bool>());
  CHECK_FALSE(history[6].at("resumed").as<bool>());
}

TEST_CASE(
    "Memory first: a restart waits for the newest checkpoint where a state has files, which are found only there") {
  const Scratch scratch;
  const auto notes = scratch.path() / "notes.txt";
  std::ofstream{notes} << "a note";
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(
      scratch, 2,
      [notes](auto& worker) {
        Weights weights;
        ry::TrainState state{worker, {{"weights", weights}}};
        state.add_file(worker.rank() == 0 ? "notes.txt" : "other.txt", notes);
        if (worker.attempt() == 0) {
          worker.samples(1);
          worker.report({{"at", 0}}, state);
          worker.barrier();  // both have saved
          if (worker.rank() == 1) throw std::runtime_error{"a test"};
          worker.barrier();
        }
        worker.report({{"from", worker.resumes_from()}, {"steps", static_cast<std::int64_t>(worker.steps())}});
      },
      {.failure = {.max_failures = 1, .memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  const auto from = result.metrics().at("from").as<std::string>();
  CHECK(std::filesystem::exists(std::filesystem::path{from} / "files/notes.txt"));
  CHECK(result.metrics().at("steps").as<std::int64_t>() == 1);
}

TEST_CASE("Memory first: no copies are made where a state has files") {
  const Scratch scratch;
  const auto notes = scratch.path() / "notes.txt";
  std::ofstream{notes} << "a note";
  const ry::Result result =
      run_in<ry::SharedMemory, ry::Processes>(scratch, 2,
                                              [notes](auto& worker) {
                                                Weights weights;
                                                ry::TrainState state{worker, {{"weights", weights}}};
                                                state.add_file(worker.rank() == 0 ? "notes.txt" : "other.txt", notes);
                                                while (worker.steps() < 6) {
                                                  worker.samples(1);
                                                  if (worker.attempt() == 0 && worker.steps() == 4)
                                                    throw std::runtime_error{"a test"};
                                                  worker.end_step();
                                                }
                                                worker.report({{"from", worker.resumes_from()}}, state);
                                              },
                                              {.failure = {.max_failures = 1, .memory_percent = every_step}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.metrics().at("from").as<std::string>().empty());
}
