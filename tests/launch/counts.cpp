// SPDX-License-Identifier: MIT
// A run without LibTorch that stands still in the middle until a file is there, so that a test can do something to it:
//   counts FILE FOLDER_OF_RUNS NAME [LEAST_WORKERS MOST_WORKERS]
// Says where it begins and where it stands still, each with the launched process's number, and the sum in the end.
#include <railyard/railyard.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

namespace ry = railyard;

struct Count {
  std::int64_t step = 0;
  std::int64_t sum = 0;

  [[nodiscard]] ry::State state() const { return {{"step", step}, {"sum", sum}}; }
  void load_state(const ry::State& state) {
    step = state.at("step").as<std::int64_t>();
    sum = state.at("sum").as<std::int64_t>();
  }
};

constexpr int num_steps = 20;
constexpr int step_of_pause = 5;

// Steps that count nothing, so that what is told to the run in the meantime is heard.
void pause(ry::Worker& worker, const std::string& file) {
  const auto deadline = ry::Deadline::after(std::chrono::seconds{150});
  while (worker.mean(std::filesystem::exists(file) ? 1.0 : 0.0) < 1.0) {
    if (deadline.expired()) throw ry::Error{fmt::format("{} did not come", file)};
    worker.samples(1);
    worker.end_step();
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
}

void count(ry::Worker& worker, const std::string& file) {
  Count count;
  ry::TrainState state{worker, {{"count", count}}};
  fmt::print("begins at step {}\n", count.step);
  while (count.step < num_steps) {
    if (count.step == step_of_pause) {
      worker.report({{"step", count.step}}, state);
      fmt::print("stands still at step {}\n", count.step);
      pause(worker, file);
    }
    worker.samples(1);
    std::int64_t value = (worker.rank() + 1) * count.step;
    worker.all_reduce(ry::buffer_of_value(value), ry::ReduceOp::sum);
    count.sum += value;
    ++count.step;
    worker.end_step();
  }
  worker.report({{"step", count.step}, {"sum", count.sum}}, state);
}

int main(int argc, char** argv) try {
  const std::string file = argv[1];
  const bool is_elastic = argc > 5;
  const ry::WorkerCount workers =
      is_elastic ? ry::WorkerCount{std::atoi(argv[4]), std::atoi(argv[5])} : ry::WorkerCount{1};
  ry::RunConfig run{.name = argv[3], .storage_path = argv[2]};
  if (is_elastic) run.silence_limit = std::chrono::seconds{5};
  ry::Trainer<ry::Gloo, ry::Launched> trainer{
      [file](ry::Worker& worker) { count(worker, file); }, {.num_workers = workers}, run};
  fmt::print("process {}\n", ::getpid());
  std::fflush(stdout);
  const ry::Result result = trainer.fit();
  if (result.is_leader() && result) fmt::print("sum {}\n", result.metrics().at("sum").as<std::int64_t>());
  if (!result) fmt::print(stderr, "{}\n", result.error());
  return result.exit_status();
} catch (const ry::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
