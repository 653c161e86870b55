// SPDX-License-Identifier: MIT
// What checkpoints cost, and how long a run takes to go on after a worker has been killed. Two processes train an MLP
// of 18.9 million parameters, eight one of 0.9 million. Prints `name value unit`.
#include <railyard/railyard.hpp>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

const std::vector<std::int64_t> large{1024, 4096, 3072, 512, 10};  // 18.9 million parameters
const std::vector<std::int64_t> small{784, 512, 512, 512, 10};     // 0.9 million
constexpr int max_workers = 8;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.at(std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size()))));
}

void figure(const std::string& name, double value, const std::string& unit) {
  fmt::print("{} {:.4g} {}\n", name, value, unit);
  std::fflush(stdout);
}

// What workers tell the program that started them.
struct Notes {
  std::atomic<int> pid[max_workers];
  std::atomic<std::uint64_t> steps;    // rank 0's
  std::atomic<std::uint64_t> resumed;  // from which step the last attempt has gone on
  std::atomic<int> attempt;
  std::atomic<int> is_enough;
  std::atomic<double> begin_ms;
  std::atomic<double> end_ms;
  std::atomic<double> stall_ms;
  std::atomic<double> copy_ms;
  std::atomic<double> durable_over_raw;
};

Notes& notes() {
  static Notes* const shared = [] {
    void* memory = mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error{"mmap failed"};
    return new (memory) Notes{};
  }();
  return *shared;
}

torch::nn::Sequential mlp(const std::vector<std::int64_t>& widths) {
  torch::nn::Sequential net;
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    if (layer > 0) net->push_back(torch::nn::ReLU());
    net->push_back(torch::nn::Linear(widths[layer], widths[layer + 1]));
  }
  return net;
}

// Trains until after, which is called when each step has ended, returns false.
template <class After>
void train(ry::Worker& worker, const std::vector<std::int64_t>& widths, bool has_adam, const After& after) {
  at::set_num_threads(1);
  notes().pid[worker.rank()] = getpid();
  auto net = ry::prepare_model(worker, [&] { return mlp(widths); });
  torch::optim::Adam adam{net->parameters(), torch::optim::AdamOptions(1e-4)};
  torch::optim::SGD sgd{net->parameters(), torch::optim::SGDOptions(0.01)};
  torch::optim::Optimizer& optimizer = has_adam ? static_cast<torch::optim::Optimizer&>(adam) : sgd;
  ry::TrainState state{worker, {{"net", net}, {"adam", adam}, {"sgd", sgd}}};
  if (worker.rank() == 0) {
    notes().resumed = worker.steps();
    notes().steps = worker.steps();
    notes().attempt = worker.attempt();
  }
  const auto data = torch::randn({64, widths.front()});
  const auto target = torch::randint(widths.back(), {64});
  do {
    worker.samples(64);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(data), target).backward();
    optimizer.step();
    worker.end_step();
    if (worker.rank() == 0) notes().steps = worker.steps();
  } while (after(worker, state));
}

template <class Body>
void fit(int num_workers, const Body& body, ry::RunConfig config = {}) {
  config.storage_path = std::filesystem::current_path() / "runs";
  config.progress = ry::Progress::quiet;
  ry::Trainer<ry::SharedMemory, ry::Processes> trainer{body, {.num_workers = num_workers}, config};
  const ry::Result result = trainer.fit();
  if (!result) throw std::runtime_error{"the run failed: " + result.error()};
  std::filesystem::remove_all(result.path());
}

// Trains so many steps and returns how long they took, from the first to the last.
double train_steps(int num_workers, const std::vector<std::int64_t>& widths, bool has_adam, std::uint64_t num_steps,
                   const ry::RunConfig& config = {}) {
  fit(
      num_workers,
      [&](ry::Worker& worker) {
        train(worker, widths, has_adam, [num_steps](ry::Worker& one, ry::TrainState&) {
          if (one.steps() == 2) notes().begin_ms = now_ms();
          notes().end_ms = now_ms();
          return one.steps() < num_steps;
        });
      },
      config);
  return notes().end_ms - notes().begin_ms;
}

// Kills workers at random moments and returns how long each time the run took to come beyond the step at which it was,
// without the time that the lost steps take by themselves.
std::vector<double> kill_often(int num_workers, int num_kills, double step_ms) {
  const auto sleep_ms = [](double time) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(time));
  };
  std::mt19937 random{1};
  std::vector<double> recovered;
  for (int kill = 0; kill < num_kills; ++kill) {
    for (const std::uint64_t begin = notes().steps; notes().steps < begin + 3;) sleep_ms(1);
    sleep_ms(std::uniform_real_distribution<>{0, 4 * step_ms}(random));
    const int attempt = notes().attempt;
    const std::uint64_t killed_at = notes().steps;
    const double killed_ms = now_ms();
    ::kill(notes().pid[random() % static_cast<unsigned>(num_workers)], SIGKILL);
    while (notes().attempt == attempt || notes().steps <= killed_at) sleep_ms(0.2);
    recovered.push_back(now_ms() - killed_ms - static_cast<double>(killed_at + 1 - notes().resumed) * step_ms);
  }
  notes().is_enough = 1;
  return recovered;
}

void measure_restart(const std::string& name, int num_workers, const std::vector<std::int64_t>& widths, int num_kills,
                     std::uint64_t every_steps) {
  const double step_ms = train_steps(num_workers, widths, false, 22) / 20;
  notes().steps = 0;
  notes().is_enough = 0;
  ry::RunConfig config;
  config.checkpoint = {.keep = 1, .every_steps = every_steps};
  config.failure = {.max_failures = -1, .max_failures_at_same_step = 1'000'000};
  std::vector<double> recovered;
  std::thread killer{[&] { recovered = kill_often(num_workers, num_kills, step_ms); }};
  fit(
      num_workers,
      [&](ry::Worker& worker) {
        train(worker, widths, false, [](ry::Worker& one, ry::TrainState&) {
          std::int32_t is_enough = notes().is_enough;
          one.all_reduce(ry::buffer_of_value(is_enough), ry::ReduceOp::max);
          return is_enough == 0;
        });
      },
      config);
  killer.join();
  figure(name + ".recovered_ms.p50", quantile(recovered, 0.5), "ms");
  figure(name + ".recovered_ms.p99", quantile(recovered, 0.99), "ms");
}

// How long a report with a state holds rank 0 up, beside a copy of as many bytes into memory that is there already.
void measure_stall() {
  constexpr std::size_t num_bytes = 3 * 18'900'000 * sizeof(float);
  fit(2,
      [](ry::Worker& worker) {
        std::vector<char> from(worker.rank() == 0 ? num_bytes : 0, 1);
        std::vector<char> to(from.size(), 2);
        std::vector<double> stalls;
        std::vector<double> copies;
        train(worker, large, true, [&](ry::Worker& one, ry::TrainState& state) {
          if (one.steps() % 20 == 0) {
            double begin = now_ms();
            std::memcpy(to.data(), from.data(), from.size());
            copies.push_back(now_ms() - begin);
            begin = now_ms();
            one.report({}, state);
            stalls.push_back(now_ms() - begin);
          }
          return one.steps() < 600;
        });
        if (worker.rank() != 0) return;
        constexpr int num_cold = 2;  // each of the two snapshots is made once
        notes().stall_ms = quantile({stalls.begin() + num_cold, stalls.end()}, 0.99);
        notes().copy_ms = quantile(copies, 0.5);
      },
      {.checkpoint = {.keep = 1}});
  figure("checkpoint.stall_over_warm_copy", notes().stall_ms / notes().copy_ms, "ratio");
}

double cpu_seconds() {
  double seconds = 0;
  for (const int whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(whose, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    }
  }
  return seconds;
}

// Wall and CPU time of training with a checkpoint after every 50 steps, beside the same training without.
void measure_overhead() {
  std::vector<double> wall;
  std::vector<double> cpu;
  for (int round = 0; round < 5; ++round) {
    double cpu_begin = cpu_seconds();
    const double plain_ms = train_steps(2, large, true, 152);
    const double plain_cpu = cpu_seconds() - cpu_begin;
    cpu_begin = cpu_seconds();
    const double saved_ms = train_steps(2, large, true, 152, {.checkpoint = {.keep = 1, .every_steps = 50}});
    const double saved_cpu = cpu_seconds() - cpu_begin;
    wall.push_back(100 * (saved_ms / plain_ms - 1));
    cpu.push_back(100 * (saved_cpu / plain_cpu - 1));
  }
  figure("checkpoint.overhead_percent", quantile(wall, 0.5), "%");
  figure("checkpoint.cpu_percent", quantile(cpu, 0.5), "%");
}

double write_plainly_ms(const std::vector<char>& bytes) {
  const double begin = now_ms();
  const int file = ::open("plain", O_WRONLY | O_CREAT | O_TRUNC, 0666);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(file, bytes.data() + done, bytes.size() - done);
    if (written <= 0) throw std::runtime_error{"writing a plain file failed"};
    done += static_cast<std::size_t>(written);
  }
  if (::fsync(file) != 0) throw std::runtime_error{"fsync of a plain file failed"};
  ::close(file);
  const double time = now_ms() - begin;
  ::unlink("plain");
  return time;
}

// How long it takes until a checkpoint is durable, beside a plain write of as many bytes.
void measure_durable() {
  fit(1,
      [](ry::Worker& worker) {
        std::vector<char> bytes(3 * 18'900'000 * sizeof(float), 1);
        std::vector<double> ratios;
        train(worker, large, true, [&](ry::Worker& one, ry::TrainState& state) {
          const double plain_ms = write_plainly_ms(bytes);
          const double begin = now_ms();
          one.report({}, state);
          ratios.push_back((now_ms() - begin) / plain_ms);
          return ratios.size() < 15;
        });
        notes().durable_over_raw = quantile(ratios, 0.5);
      },
      {.checkpoint = {.keep = 1, .synchronous = true}});
  figure("checkpoint.durable_over_raw", notes().durable_over_raw, "ratio");
}

}  // namespace

int main() try {
  measure_restart("restart.2ranks", 2, large, 100, 4);
  measure_restart("restart.8ranks", 8, small, 100, 20);
  measure_stall();
  measure_overhead();
  measure_durable();
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
