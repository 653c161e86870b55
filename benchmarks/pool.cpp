// SPDX-License-Identifier: MIT
// What a training step of a lone LibTorch program costs with a pool and without, step sequences of both in turn. The
// other cores are kept busy by processes that train the same. Prints `name value unit`.
#include "median.hpp"

#include <railyard/torch/pool.hpp>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

constexpr int num_processes = 2;
constexpr int num_rounds = 9;

struct Case {
  std::string name{};
  std::vector<std::int64_t> widths{};
  std::int64_t batch_size = 0;
  int steps = 0;  // of a sequence
};

using bench::median;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

long minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

torch::nn::Sequential make_net(const std::vector<std::int64_t>& widths) {
  torch::nn::Sequential net;
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    if (layer > 0) net->push_back(torch::nn::ReLU());
    net->push_back(torch::nn::Linear(widths[layer], widths[layer + 1]));
  }
  return net;
}

struct Cost {
  double step_us = 0;
  double faults = 0;
  double loss = 0;
};

// A model of its own, trained from the same weights on the same batch: with and without a pool the losses are equal.
class Training {
 public:
  Training(const Case& what, bool pooled)
      : heap_(pooled ? ry::detail::make_private_heap(std::size_t{16} << 30U, ~std::size_t{0}) : nullptr),
        steps_(what.steps) {
    const auto binding = bind();
    torch::manual_seed(1);
    net_ = make_net(what.widths);
    optimizer_.emplace(net_->parameters(), torch::optim::SGDOptions(0.01));
    data_ = torch::randn({what.batch_size, what.widths.front()});
    target_ = torch::randint(what.widths.back(), {what.batch_size}, torch::kLong);
  }

  Cost run() {
    const auto binding = bind();
    double loss = 0;
    const long faults = minor_faults();
    const double begin = now_us();
    for (int step = 0; step < steps_; ++step) {
      optimizer_->zero_grad();
      auto value = torch::nn::functional::cross_entropy(net_->forward(data_), target_);
      value.backward();
      optimizer_->step();
      loss = value.item<double>();
    }
    const double per_step = (now_us() - begin) / steps_;
    return {per_step, static_cast<double>(minor_faults() - faults) / steps_, loss};
  }

 private:
  // A Pool serves its thread as long as it lives; here it takes turns with none.
  [[nodiscard]] std::unique_ptr<ry::detail::PoolBinding> bind() const {
    return heap_ != nullptr ? std::make_unique<ry::detail::PoolBinding>(heap_) : nullptr;
  }

  std::shared_ptr<ry::detail::Heap> heap_;
  int steps_;
  torch::nn::Sequential net_{};
  std::optional<torch::optim::SGD> optimizer_{};
  torch::Tensor data_{};
  torch::Tensor target_{};
};

// What one process leaves for the first, which prints.
struct Notes {
  std::atomic<int> arrived{0};
  double plain_us[num_processes] = {};
  double pool_us[num_processes] = {};
  double plain_faults = 0;
  double pool_faults = 0;
};

void pin(int process) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < num_processes) return;
  int left = process;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
}

void measure(const Case& what, int process, Notes& notes) {
  pin(process);
  torch::set_num_threads(1);
  std::vector<double> times[2];
  std::vector<double> faults[2];
  double losses[2] = {};
  Training trainings[2] = {{what, false}, {what, true}};
  notes.arrived.fetch_add(1);
  while (notes.arrived < num_processes) sched_yield();
  for (int round = -1; round < num_rounds; ++round) {  // the first warms up
    for (int way = 0; way < 2; ++way) {
      const Cost cost = trainings[way].run();
      losses[way] = cost.loss;
      if (round < 0) continue;
      times[way].push_back(cost.step_us);
      faults[way].push_back(cost.faults);
    }
  }
  if (losses[0] != losses[1]) throw std::runtime_error{"the pool changes the loss"};
  notes.plain_us[process] = median(times[0]);
  notes.pool_us[process] = median(times[1]);
  if (process == 0) notes.plain_faults = median(faults[0]), notes.pool_faults = median(faults[1]);
}

void report(const Case& what, const Notes& notes) {
  double plain = 0;
  double pool = 0;
  for (int process = 0; process < num_processes; ++process) {
    plain += notes.plain_us[process] / num_processes;
    pool += notes.pool_us[process] / num_processes;
  }
  const auto figure = [&](const char* name, double value, const char* unit) {
    fmt::print("pool.{}.{} {:.4g} {}\n", what.name, name, value, unit);
  };
  figure("plain_us", plain, "us");
  figure("pool_us", pool, "us");
  figure("plain_faults_per_step", notes.plain_faults, "faults");
  figure("pool_faults_per_step", notes.pool_faults, "faults");
  figure("pool_over_plain", pool / plain, "ratio");
  std::fflush(stdout);
}

// Forks before LibTorch has threads.
void run(const Case& what) {
  void* memory = mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error{"mmap failed"};
  auto& notes = *new (memory) Notes{};
  std::vector<pid_t> children;
  for (int process = 0; process < num_processes; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      measure(what, process, notes);
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) throw std::runtime_error{"a process failed"};
  }
  report(what, notes);
}

}  // namespace

int main() {
  run({"mlp_26k", {64, 256, 32, 32}, 32, 2000});
  run({"mlp_932k", {784, 700, 512, 46}, 64, 150});
  run({"mlp_19m", {1024, 4096, 3072, 640}, 64, 8});
}
