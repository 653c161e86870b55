// SPDX-License-Identifier: MIT
// What checkpoints and copies to memory cost, and what a killed worker does. Two processes train an MLP of 18.9 million
// parameters, eight one of 0.9 million; beside them, where run.sh has found them, PyTorch's distributed checkpoint and
// Ray Train: the arguments are the folder of their scripts, that of PyTorch, and that of Ray. Prints `name value unit`.
#include <railyard/railyard.hpp>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
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

// When steps have ended, of rank 0. Kept of the newest.
class StepEnds {
 public:
  void note(std::uint64_t step) noexcept { ms_[step % ms_.size()] = now_ms(); }
  [[nodiscard]] double ms(std::uint64_t step) const noexcept { return ms_[step % ms_.size()]; }

 private:
  std::array<std::atomic<double>, 1024> ms_;
};

// What workers tell the program that started them.
struct Notes {
  std::atomic<int> pid[max_workers];
  std::atomic<std::uint64_t> steps;    // rank 0's
  std::atomic<std::uint64_t> resumed;  // from which step the last attempt has gone on
  StepEnds step_ends;
  std::atomic<int> attempt;
  std::atomic<int> is_enough;
  std::atomic<double> begin_ms;
  std::atomic<double> end_ms;
  std::atomic<double> stall_ms;
  std::atomic<double> stall_over_copy;
  std::atomic<double> wall_percent;
  std::atomic<double> durable_ms;
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
    notes().step_ends.note(worker.steps());
  }
  const auto data = torch::randn({64, widths.front()});
  const auto target = torch::randint(widths.back(), {64});
  do {
    worker.samples(64);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(data), target).backward();
    optimizer.step();
    worker.end_step();
    if (worker.rank() == 0) {
      notes().step_ends.note(worker.steps());
      notes().steps = worker.steps();
    }
  } while (after(worker, state));
}

template <class Body>
std::vector<ry::Attempt> fit(int num_workers, const Body& body, ry::RunConfig config = {}) {
  config.storage_path = std::filesystem::current_path() / "runs";
  config.progress = ry::Progress::quiet;
  ry::Trainer<ry::SharedMemory, ry::Processes> trainer{body, {.num_workers = num_workers}, config};
  const ry::Result result = trainer.fit();
  if (!result) throw std::runtime_error{"the run failed: " + result.error()};
  std::filesystem::remove_all(result.path());
  return result.attempts();
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

// Is a run whose workers are killed at random moments.
struct Torment {
  int num_workers = 2;
  const std::vector<std::int64_t>& widths;
  bool has_adam = false;
  int num_kills = 100;
  double longest_ms = 0;  // from three steps after one kill until the next; 0: four steps
  ry::CheckpointConfig checkpoint{};
};

struct Recovery {
  std::vector<double> ms;  // until progress passed the step at which it was, without the lost steps' own time
  std::vector<double> lost_steps;
};

// Ends before its time where the run has failed.
std::vector<double> kill_often(const std::stop_token& run_is_over, const Torment& torment, double step_ms) {
  constexpr std::uint64_t most_lost = 1000;
  const auto sleep_ms = [](double time) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(time));
  };
  const double longest_ms = torment.longest_ms > 0 ? torment.longest_ms : 4 * step_ms;
  std::mt19937 random{1};
  std::vector<double> recovered;
  for (int kill = 0; kill < torment.num_kills; ++kill) {
    const std::uint64_t begin = notes().steps;
    while (notes().steps < begin + 3 && !run_is_over.stop_requested()) sleep_ms(1);
    sleep_ms(std::uniform_real_distribution<>{0, longest_ms}(random));
    const int attempt = notes().attempt;
    const std::uint64_t killed_at = notes().steps;
    const double killed_ms = now_ms();
    std::array<double, most_lost> ends;  // they end once more: of steps killed_at, killed_at - 1, ...
    for (std::uint64_t back = 0; back < std::min(most_lost, killed_at + 1); ++back) {
      ends.at(back) = notes().step_ends.ms(killed_at - back);
    }
    if (run_is_over.stop_requested()) break;
    ::kill(notes().pid[random() % static_cast<unsigned>(torment.num_workers)], SIGKILL);
    while ((notes().attempt == attempt || notes().steps <= killed_at) && !run_is_over.stop_requested()) sleep_ms(0.2);
    // The step under way would have taken as long as the one before. It may have ended, and been saved, before the end.
    const std::uint64_t resumed = notes().resumed;
    const double own_ms = resumed > killed_at ? 0 : ends[0] - ends.at(killed_at - resumed) + ends[0] - ends[1];
    recovered.push_back(now_ms() - killed_ms - own_ms);
  }
  notes().is_enough = 1;
  return recovered;
}

Recovery recover(const Torment& torment) {
  const double step_ms = train_steps(torment.num_workers, torment.widths, torment.has_adam, 22) / 20;
  notes().steps = 0;
  notes().is_enough = 0;
  ry::RunConfig config;
  config.checkpoint = torment.checkpoint;
  config.failure = {.max_failures = -1, .max_failures_at_same_step = 1'000'000};
  Recovery recovery;
  std::jthread killer{
      [&](const std::stop_token& run_is_over) { recovery.ms = kill_often(run_is_over, torment, step_ms); }};
  const std::vector<ry::Attempt> attempts = fit(
      torment.num_workers,
      [&](ry::Worker& worker) {
        train(worker, torment.widths, torment.has_adam, [](ry::Worker& one, ry::TrainState&) {
          std::int32_t is_enough = notes().is_enough;
          one.all_reduce(ry::buffer_of_value(is_enough), ry::ReduceOp::max);
          return is_enough == 0;
        });
      },
      config);
  killer.join();
  for (const ry::Attempt& attempt : attempts) {
    if (!attempt.error.empty()) recovery.lost_steps.push_back(static_cast<double>(attempt.lost_steps));
  }
  return recovery;
}

// Returns the median, in milliseconds.
double measure_restart(const std::string& name, const Torment& torment) {
  const Recovery recovery = recover(torment);
  figure(name + ".recovered_ms.p50", quantile(recovery.ms, 0.5), "ms");
  figure(name + ".recovered_ms.p99", quantile(recovery.ms, 0.99), "ms");
  return quantile(recovery.ms, 0.5);
}

// What a kill costs in steps where copies to memory take one percent of the time, and nothing is on disk.
void measure_lost_steps() {
  const Recovery recovery = recover({.widths = large, .has_adam = true, .num_kills = 30, .longest_ms = 6000});
  figure("memory_first.steps_lost_at_1_percent", quantile(recovery.lost_steps, 0.5), "steps");
  figure("memory_first.steps_lost_at_1_percent.most", quantile(recovery.lost_steps, 1), "steps");
}

constexpr std::size_t num_bytes = 3 * 18'900'000 * sizeof(float);  // of the large model with Adam

// How long a report with a state holds rank 0 up, beside a copy of as many bytes into memory that is there already.
// Returns the median in milliseconds.
double measure_stall() {
  fit(2,
      [](ry::Worker& worker) {
        std::vector<char> from(worker.rank() == 0 ? num_bytes : 0, 1);
        std::vector<char> to(from.size(), 2);
        std::vector<double> stalls;
        std::vector<double> copies;
        train(worker, large, true, [&](ry::Worker& one, ry::TrainState& state) {
          if (one.steps() % 10 == 0) {
            double begin = now_ms();
            std::memcpy(to.data(), from.data(), from.size());
            copies.push_back(now_ms() - begin);
            begin = now_ms();
            one.report({}, state);
            stalls.push_back(now_ms() - begin);
          }
          return one.steps() < 320;
        });
        if (worker.rank() != 0) return;
        constexpr int num_cold = 2;  // each of the two snapshots is made once
        stalls.erase(stalls.begin(), stalls.begin() + num_cold);
        notes().stall_ms = quantile(stalls, 0.5);
        notes().stall_over_copy = quantile(stalls, 0.99) / quantile(copies, 0.5);
      },
      {.checkpoint = {.keep = 1}});
  figure("checkpoint.stall_over_warm_copy", notes().stall_over_copy, "ratio");
  return notes().stall_ms;
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

struct Cost {
  double ms = 0;
  double cpu = 0;
};

Cost cost_of(const ry::RunConfig& config) {
  const double cpu_begin = cpu_seconds();
  const double ms = train_steps(2, large, true, 102, config);
  return {.ms = ms, .cpu = cpu_seconds() - cpu_begin};
}

// How much longer 50 steps take that begin with a checkpoint than the same steps once it is written, in percent. The
// first two are left out: each of the two snapshots is made once.
double wall_percent() {
  fit(2,
      [](ry::Worker& worker) {
        constexpr std::size_t period = 50;
        constexpr std::size_t num_plain = 30;
        std::vector<double> times;  // of all steps; a report counts for the one that follows
        double last = now_ms();
        train(worker, large, true, [&](ry::Worker& one, ry::TrainState& state) {
          const double now = now_ms();
          times.push_back(now - std::exchange(last, now));
          if (one.steps() % period == 0) one.report({}, state);
          return one.steps() < 14 * period;
        });
        if (worker.rank() != 0) return;
        std::vector<double> percents;
        for (std::size_t begin = 3 * period; begin + period <= times.size(); begin += period) {
          const double* const end = times.data() + begin + period;
          const double plain = std::accumulate(end - num_plain, end, 0.0) / num_plain * period;
          percents.push_back(100 * (std::accumulate(end - period, end, 0.0) / plain - 1));
        }
        notes().wall_percent = quantile(percents, 0.5);
      },
      {.checkpoint = {.keep = 1}});
  return notes().wall_percent;
}

// What a checkpoint after every 50 steps costs in wall time and in CPU time, and copies to memory at one percent in
// wall time.
void measure_overhead() {
  figure("checkpoint.overhead_percent", wall_percent(), "%");
  std::vector<double> cpu;
  std::vector<double> memory;
  for (int round = 0; round < 5; ++round) {
    const Cost plain = cost_of({.failure = {.memory_percent = 0}});
    const Cost saved = cost_of({.checkpoint = {.keep = 1, .every_steps = 50}});
    const Cost copied = cost_of({.failure = {.max_failures = -1}});
    cpu.push_back(100 * (saved.cpu / plain.cpu - 1));
    memory.push_back(100 * (copied.ms / plain.ms - 1));
  }
  figure("checkpoint.cpu_percent", quantile(cpu, 0.5), "%");
  figure("memory_first.cost_percent", quantile(memory, 0.5), "%");
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

// How long it takes until a checkpoint is durable, beside a plain write of as many bytes. Returns the median in
// milliseconds.
double measure_durable(int num_workers) {
  fit(num_workers,
      [](ry::Worker& worker) {
        const std::vector<char> bytes(worker.rank() == 0 ? num_bytes : 0, 1);
        std::vector<double> times;
        std::vector<double> ratios;
        train(worker, large, true, [&](ry::Worker& one, ry::TrainState& state) {
          const double plain_ms = write_plainly_ms(bytes);
          one.barrier();
          const double begin = now_ms();
          one.report({}, state);
          times.push_back(now_ms() - begin);
          ratios.push_back(times.back() / plain_ms);
          return times.size() < 10;
        });
        if (worker.rank() != 0) return;
        notes().durable_ms = quantile(times, 0.5);
        notes().durable_over_raw = quantile(ratios, 0.5);
      },
      {.checkpoint = {.keep = 1, .synchronous = true}});
  return notes().durable_ms;
}

// Runs a contestant's script and returns the numbers that it has written to the file that it is given.
std::vector<double> contestant(const std::string& launcher, const std::string& script, const std::string& packages) {
  const std::string command = fmt::format(
      "PYTHONPATH='{}' PYTHONWARNINGS=ignore OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0 {} '{}' numbers 1>&2",
      packages, launcher, script);
  std::remove("numbers");
  if (std::system(command.c_str()) != 0) throw std::runtime_error{script + " has failed; what it says stands above"};
  std::ifstream numbers{"numbers"};
  return {std::istream_iterator<double>{numbers}, {}};
}

void compare_with_dcp(const std::string& scripts, const std::string& packages, double stall_ms) {
  const double durable_ms = measure_durable(2);
  const auto dcp =
      contestant("python3 -m torch.distributed.run --standalone --nproc-per-node=2", scripts + "/dcp.py", packages);
  figure("checkpoint.dcp_over_ours.stall", dcp.at(0) / stall_ms, "ratio");
  figure("checkpoint.dcp_over_ours.stall_reused", dcp.at(1) / stall_ms, "ratio");
  figure("checkpoint.dcp_over_ours.durable", dcp.at(2) / durable_ms, "ratio");
}

}  // namespace

int main(int argc, char** argv) try {
  notes();  // before any fork, so that workers write where this process reads
  const std::vector<std::string> words{argv + 1, argv + argc};
  const double recovered_ms =
      measure_restart("restart.2ranks", {.widths = large, .checkpoint = {.keep = 1, .every_steps = 4}});
  if (words.size() == 3) {
    const auto ray = contestant("python3", words[0] + "/ray_train.py", words[2] + ":" + words[1]);
    figure("restart.ray_over_ours", ray.at(0) / recovered_ms, "ratio");
  }
  measure_restart("restart.8ranks", {.num_workers = 8, .widths = small, .checkpoint = {.keep = 1, .every_steps = 20}});
  measure_lost_steps();
  const double stall_ms = measure_stall();
  measure_overhead();
  measure_durable(1);
  figure("checkpoint.durable_over_raw", notes().durable_over_raw, "ratio");
  if (words.size() >= 2) compare_with_dcp(words[0], words[1], stall_ms);
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
