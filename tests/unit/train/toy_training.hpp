// SPDX-License-Identifier: MIT
// A training without LibTorch that tests of failures and checkpoints run, and the policies that they run it with.
#pragma once

#include "railyard/train/train_state.hpp"
#include "railyard/train/trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/core/mean.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "unit/train/quick_trainer.hpp"
#include "unit/train/scratch.hpp"

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

namespace toy {

namespace ry = railyard;

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

inline const auto never = [](auto&, std::uint64_t) {};

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

}  // namespace toy
