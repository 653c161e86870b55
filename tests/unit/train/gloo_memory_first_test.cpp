// SPDX-License-Identifier: MIT
// Restarts of several processes that go on from the copies of the state which each of them holds of its workers.
#include "railyard/train/detail/held_state.hpp"

#include "support/catch.hpp"
#include "unit/train/copied_training.hpp"
#include "unit/train/launched_processes.hpp"
#include "unit/train/toy_training.hpp"

#include "railyard/collectives/gloo.hpp"
#include "railyard/workers/launched.hpp"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

using launched_runs::LaunchedProcesses;
using toy::every_step;
using toy::last_step;
using toy::train_unevenly;

constexpr int num_values = 3000;

// Numbers that all ranks have alike, like the weights of a model, or of which each rank holds its piece.
struct HeldNumbers {
  bool is_cut = false;
  int rank = 0;
  int world_size = 1;
  std::function<void()> on_read{};
  toy::Weights weights{.values = std::vector<double>(num_values, 1.0)};

  [[nodiscard]] ry::State state() const {
    ry::State state = weights.state();
    ry::StateTensor& tensor = state.tensors.front();
    tensor.is_piece = is_cut;
    tensor.begin = num_values * rank / world_size;
    tensor.end = num_values * (rank + 1) / world_size;
    tensor.read = [this, read = tensor.read](std::int64_t begin, std::int64_t end, std::byte* to) {
      read(begin, (begin + end) / 2, to);
      if (on_read) on_read();  // in the middle of a copy
      read((begin + end) / 2, end, to + ((begin + end) / 2 - begin) * 8);
    };
    return state;
  }
  void load_state(const ry::State& state) { weights.load_state(state); }
};

// What a rank has for itself.
struct Own {
  std::uint64_t value = 0;

  [[nodiscard]] ry::State state() const {
    ry::State state{{"value", static_cast<std::int64_t>(value)}};
    state.is_own = true;
    return state;
  }
  void load_state(const ry::State& state) { value = static_cast<std::uint64_t>(state.at("value").as<std::int64_t>()); }
};

struct Parts {
  HeldNumbers whole{};
  HeldNumbers cut{.is_cut = true};
  Own own{};

  void step(std::uint64_t number, int rank) {
    whole.weights.step(number);
    cut.weights.step(number + 3);
    own.value = own.value * 31 + number * static_cast<std::uint64_t>(rank + 1);
  }
  // One number of all that there is, to the bit.
  [[nodiscard]] std::int64_t digest() const {
    std::uint64_t digest = own.value;
    for (const HeldNumbers* one : {&whole, &cut}) {
      digest = ry::detail::digest_of(std::as_bytes(std::span{one->weights.values}), digest);
    }
    return static_cast<std::int64_t>(digest >> 1U);
  }
};

// What a test does before a step changes anything, and in the middle of each copy of what all ranks have.
using Event = std::function<void(ry::Worker&, Parts&)>;

// Trains; each rank reports in the end what it has come to, in all one number.
void train(ry::Worker& worker, const Event& before_step, const Event& in_copy, std::uint64_t steps = last_step) {
  Parts parts;
  for (HeldNumbers* one : {&parts.whole, &parts.cut}) {
    one->rank = worker.rank();
    one->world_size = worker.world_size();
  }
  parts.whole.on_read = parts.cut.on_read = [&] { in_copy(worker, parts); };
  ry::TrainState state{worker, {{"whole", parts.whole}, {"cut", parts.cut}, {"own", parts.own}}};
  if (state.is_resumed()) worker.report({{"from", worker.resumes_from()}, {"at", worker.steps()}});
  while (worker.steps() < steps) {
    worker.samples(1);
    before_step(worker, parts);
    parts.step(worker.steps(), worker.rank());
    worker.end_step();
  }
  std::vector<std::int64_t> digests(static_cast<std::size_t>(worker.world_size()));
  std::int64_t own = parts.digest();
  worker.all_gather(ry::buffer_of_value(own), ry::buffer_of(digests));
  std::string all;
  for (const std::int64_t one : digests) all += fmt::format(" {:x}", one);
  worker.report({{"digests", all}});
}

const Event nothing = [](ry::Worker&, Parts&) {};

// What ranks come to that nothing happens to.
std::string unharmed_digests(int num_workers, std::uint64_t steps = last_step) {
  std::string all;
  for (int rank = 0; rank < num_workers; ++rank) {
    Parts parts;
    for (std::uint64_t step = 0; step < steps; ++step) parts.step(step, rank);
    all += fmt::format(" {:x}", parts.digest());
  }
  return all;
}

void end_by_kill(const ry::Worker& worker, int attempt, std::uint64_t step, int victim) {
  if (worker.attempt() == attempt && worker.steps() == step && worker.rank() == victim) ::kill(::getpid(), SIGKILL);
}

ry::RunConfig config_of(int max_failures) {
  ry::RunConfig run{.name = "run", .failure = {.max_failures = max_failures, .memory_percent = every_step}};
  run.start_timeout = 30s;
  return run;
}

// Attempts, where each of them has begun, from what the last has gone on, and what all ranks have come to.
std::string story_of(const ry::Result& result) {
  std::string text = fmt::format("{}{} attempts", result.error(), result.attempts().size());
  for (const ry::Attempt& attempt : result.attempts()) text += fmt::format(" {}", attempt.begin_step);
  std::string last;
  for (const ry::Metrics& report : result.history()) {
    if (const ry::Value* from = report.find("from")) last = " " + from->as<std::string>();
  }
  text += last;
  const ry::Value* digests = result.metrics().find("digests");
  return text + (digests == nullptr ? std::string{} : digests->as<std::string>());
}

std::string fit(const Scratch& scratch, int num_workers, const ry::RunConfig& run, const Event& before_step,
                const Event& in_copy) {
  return story_of(run_in<ry::Gloo, ry::Launched>(
      scratch, num_workers, [&](ry::Worker& worker) { train(worker, before_step, in_copy); }, run));
}

// Ends the worker by force after some time.
struct Killer {
  static constexpr std::string_view extension_name = "test.killer";
  std::thread thread{};

  Killer() = default;
  Killer(const Killer&) = delete;
  Killer& operator=(const Killer&) = delete;
  ~Killer() {
    if (thread.joinable()) thread.join();
  }
  void begin(std::chrono::microseconds after) {
    if (thread.joinable()) return;
    thread = std::thread{[after] {
      std::this_thread::sleep_for(after);
      ::kill(::getpid(), SIGKILL);
    }};
  }
};

}  // namespace

TEST_CASE("Memory first, Launched: a worker killed on any host costs one step, without any checkpoint") {
  const Scratch scratch;
  const int victim = GENERATE(0, 1, 3);
  const auto kill = [victim](ry::Worker& worker, Parts&) {
    worker.barrier();  // all have copied what is before
    end_by_kill(worker, 0, 9, victim);
    end_by_kill(worker, 1, 21, 3 - victim);
  };
  LaunchedProcesses launched{scratch, 2, [&](int) { return fit(scratch, 2, config_of(2), kill, nothing); }};
  const std::string expected = "3 attempts 0 9 21 memory" + unharmed_digests(4);
  for (const int process : {0, 1}) CHECK(launched.words(process) == expected);
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "run/checkpoints/checkpoint-000001"));
}

TEST_CASE(
    "Memory first, Launched: a restart from memory that fails before its first step is followed by one from disk") {
  const Scratch scratch;
  const int victim = GENERATE(0, 3);
  const auto kill = [victim](ry::Worker& worker, Parts&) {
    worker.barrier();  // all have copied what is before, or have taken it from the others
    end_by_kill(worker, 0, 9, victim);
    if (worker.resumes_from() == "memory") end_by_kill(worker, worker.attempt(), 9, victim);
    worker.barrier();
  };
  LaunchedProcesses launched{scratch, 2, [&](int) { return fit(scratch, 2, config_of(4), kill, nothing); }};
  const std::string expected = fmt::format(
      "3 attempts 0 9 9 {}{}", (scratch.path() / "run/checkpoints/checkpoint-000001").string(), unharmed_digests(4));
  for (const int process : {0, 1}) CHECK(launched.words(process) == expected);
}

TEST_CASE("Memory first, Launched: a worker killed in a copy that other hosts have made leaves the one before") {
  const Scratch scratch;
  const int victim = GENERATE(0, 2);
  const auto kill_in_copy = [&scratch, victim](ry::Worker& worker, Parts&) {
    const int attempt = worker.attempt();
    if (attempt == 3 || worker.steps() != 7 * (1 + static_cast<std::uint64_t>(attempt))) return;
    const auto passed = scratch.path() / fmt::format("passed-{}", attempt);
    // The other host's first rank is through with its copy, which is one ahead then, when this one dies in its own.
    if (worker.rank() == victim) {
      if (!launched_runs::comes(passed)) throw std::runtime_error{"the other host has made no copy"};
      ::kill(::getpid(), SIGKILL);
    }
  };
  const auto tell_of_copy = [&scratch, victim](ry::Worker& worker, Parts&) {
    const std::uint64_t number = worker.steps() / 7;
    if (worker.rank() == 2 - victim && worker.steps() % 7 == 0 && number > 0)
      launched_runs::leave(scratch.path() / fmt::format("passed-{}", number - 1));
  };
  LaunchedProcesses launched{scratch, 2,
                             [&](int) { return fit(scratch, 2, config_of(3), tell_of_copy, kill_in_copy); }};
  const std::string expected = "4 attempts 0 6 13 20 memory" + unharmed_digests(4);
  for (const int process : {0, 1}) CHECK(launched.words(process) == expected);
}

TEST_CASE("Memory first, Launched: what should be alike on all ranks is rank 0's after a restart, as in a checkpoint") {
  const Scratch scratch;
  LaunchedProcesses launched{
      scratch, 2, [&](int) {
        const auto stand_still = [&](ry::Worker& worker) {
          Parts parts;
          parts.whole.weights.values[0] = worker.rank();
          parts.cut.rank = worker.rank();
          parts.cut.world_size = worker.world_size();
          ry::TrainState state{worker, {{"whole", parts.whole}, {"cut", parts.cut}}};
          if (state.is_resumed()) {
            std::vector<double> all(4);
            worker.all_gather(ry::buffer_of_value(parts.whole.weights.values[0]), ry::buffer_of(all));
            worker.report({{"from", worker.resumes_from()}, {"sum", std::accumulate(all.begin(), all.end(), 0.0)}});
            return;
          }
          for (int step = 0; step < 5; ++step) {
            worker.samples(1);
            worker.end_step();
            worker.barrier();
          }
          end_by_kill(worker, 0, 5, 3);
          worker.barrier();
        };
        const auto result = run_in<ry::Gloo, ry::Launched>(scratch, 2, stand_still, config_of(1));
        return result.error() + result.metrics().at("from").as<std::string>() +
               fmt::format(" {}", result.metrics().at("sum").number());
      }};
  for (const int process : {0, 1}) CHECK(launched.words(process) == "memory 0");
}

TEST_CASE("Memory first, Launched: no host makes copies where those of one would not leave enough memory") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 2, [&](int) {
                               const auto result = run_in<ry::Gloo, ry::Launched>(
                                   scratch, 2, [](ry::Worker& worker) { train_unevenly(worker, 3); }, config_of(1));
                               std::string text = fmt::format("{}{} copies", result.error(),
                                                              result.metrics().at("copies").as<std::int64_t>());
                               for (const std::string& warning : result.warnings()) {
                                 if (warning.find(" are to come") != std::string::npos) text += ", told";
                               }
                               return text;
                             }};
  for (const int process : {0, 1}) CHECK(launched.words(process) == "0 copies, told");
}

TEST_CASE("Memory first, Launched: workers killed at random moments on any host, beside checkpoints on their way") {
  const Scratch scratch;
  constexpr int num_kills = 12;
  constexpr std::uint64_t steps = 300;
  const auto kill_sometime = [](ry::Worker& worker, Parts&) {
    std::mt19937 random{static_cast<unsigned>(worker.attempt())};
    const int victim = static_cast<int>(random() % 4);
    if (worker.attempt() == num_kills) return;
    if (worker.rank() == victim) worker.extension<Killer>().begin(std::chrono::microseconds{random() % 30'000});
    while (worker.steps() + 1 == steps) worker.barrier();  // until it is killed
  };
  LaunchedProcesses launched{
      scratch, 2, [&](int) {
        ry::RunConfig run = config_of(num_kills);
        run.checkpoint = {.keep = 2, .every_steps = 10};
        run.failure.max_failures_at_same_step = num_kills + 1;
        const auto result = run_in<ry::Gloo, ry::Launched>(
            scratch, 2, [&](ry::Worker& worker) { train(worker, kill_sometime, nothing, steps); }, run);
        std::uint64_t most_lost = 0;
        int num_from_memory = 0;
        for (const ry::Attempt& attempt : result.attempts()) most_lost = std::max(most_lost, attempt.lost_steps);
        for (const ry::Metrics& report : result.history()) {
          const ry::Value* from = report.find("from");
          if (from != nullptr && from->as<std::string>() == "memory") ++num_from_memory;
        }
        return fmt::format("{}{} attempts, fewer than 10 steps lost: {}, from memory: {},{}", result.error(),
                           result.attempts().size(), most_lost<10, num_from_memory> 0,
                           result.metrics().at("digests").as<std::string>());
      }};
  const std::string expected = fmt::format("{} attempts, fewer than 10 steps lost: true, from memory: true,{}",
                                           num_kills + 1, unharmed_digests(4, steps));
  for (const int process : {0, 1}) CHECK(launched.words(process) == expected);
}

TEST_CASE("Memory first, Launched: a run told to leave in the middle of an evaluation saves the copies of all hosts") {
  const Scratch scratch;
  const auto evaluate = [&scratch](ry::Worker& worker, Parts&) {
    if (worker.steps() != 9) return;
    worker.barrier();
    if (worker.rank() == 0) launched_runs::leave(scratch.path() / "running");
    while (true) ::pause();  // it is ended if nobody saves meanwhile
  };
  LaunchedProcesses launched{scratch, 2, [&](int) {
                               ry::RunConfig run = config_of(0);
                               run.stop_grace = 6s;
                               const auto result = run_in<ry::Gloo, ry::Launched>(
                                   scratch, 2, [&](ry::Worker& worker) { train(worker, evaluate, nothing); }, run);
                               const auto checkpoint = result.checkpoint();
                               return fmt::format("status {}, step {}", result.exit_status(),
                                                  checkpoint ? checkpoint->manifest().step : 0);
                             }};
  REQUIRE(launched_runs::comes(scratch.path() / "running"));
  for (const int process : {1, 0}) ::kill(launched.pid(process), SIGTERM);
  for (const int process : {0, 1}) CHECK(launched.words(process) == "status 75, step 9");
  LaunchedProcesses again{scratch, 2, [&](int) { return fit(scratch, 2, config_of(0), nothing, nothing); }};
  for (const int process : {0, 1}) CHECK_THAT(again.words(process), ContainsSubstring(unharmed_digests(4)));
}

TEST_CASE("Memory first, Launched: without a process, those that are left go on from the copy if that is whole there") {
  const Scratch scratch;
  const bool is_cut = GENERATE(false, true);
  const auto train_it = [&](ry::Worker& worker) {
    HeldNumbers numbers{.is_cut = is_cut, .rank = worker.rank(), .world_size = worker.world_size()};
    ry::TrainState state{worker, {{"numbers", numbers}}};
    while (worker.steps() < last_step) {
      worker.samples(1);
      worker.barrier();
      if (worker.world_size() == 3 && worker.steps() == 9) {
        if (worker.rank() == 0) launched_runs::leave(scratch.path() / "running");
        for (;;) worker.barrier();
      }
      numbers.weights.step(worker.steps());
      worker.end_step();
      if (worker.steps() == 5) worker.report({{"at", 5}}, state);
      if (worker.steps() == 5 && worker.rank() == 0) {  // so that it is known what there is on the disk
        if (!launched_runs::comes(worker.run_path() / "checkpoints/checkpoint-000001"))
          throw std::runtime_error{"there is no checkpoint"};
      }
    }
    worker.report({{"sum", numbers.weights.sum()}});
  };
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               ry::RunConfig run = config_of(1);
                               run.storage_path = scratch.path();
                               run.progress = ry::Progress::quiet;
                               ry::Trainer<ry::Gloo, ry::Launched> trainer{train_it, {.num_workers = {2, 3}}, run};
                               const auto result = trainer.fit();
                               return fmt::format("{}{} failed, begins at {}, sum {}", result.error(),
                                                  result.failed_checkpoints(), result.attempts().back().begin_step,
                                                  result.metrics().at("sum").number());
                             }};
  REQUIRE(launched_runs::comes(scratch.path() / "running"));
  ::kill(launched.pid(1), SIGKILL);
  toy::Weights weights{.values = std::vector<double>(num_values, 1.0)};
  for (std::uint64_t step = 0; step < last_step; ++step) weights.step(step);
  const auto words = [&](int step) { return fmt::format("0 failed, begins at {}, sum {}", step, weights.sum()); };
  for (const int process : {0, 2}) {
    // The copy of the last step may be on its way when the process is killed; then the one before is whole.
    const std::string said = launched.words(process);
    if (said != words(8) || is_cut) CHECK(said == words(is_cut ? 5 : 9));
  }
}
