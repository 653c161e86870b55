// SPDX-License-Identifier: MIT
// How long a run takes to reach the first line of its training function and to end, what a report costs, and how much
// memory a second worker adds. Links LibTorch, because that is what users' programs do. Prints `name value unit`.
#include "median.hpp"

#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace ry = railyard;

namespace {

constexpr int num_runs = 15;
constexpr int max_workers = 2;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using bench::median;

void figure(const std::string& name, double value, const std::string& unit) {
  fmt::print("{} {:.4g} {}\n", name, value, unit);
  std::fflush(stdout);
}

// What workers leave for the program that started them, in memory that both see whether they are threads or processes.
struct Notes {
  std::atomic<std::int64_t> first_line[max_workers];
  std::atomic<std::int64_t> last_line[max_workers];
  std::atomic<double> report_us;
  std::atomic<double> pss_bytes;
};

Notes& shared_notes() {
  void* memory = mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error{"mmap failed"};
  return *new (memory) Notes{};
}

// A folder for runs that is removed with all in it.
class Scratch {
 public:
  explicit Scratch(const std::filesystem::path& parent) : path_((parent / "railyard-bench-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error{"mkdtemp failed"};
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  [[nodiscard]] std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

template <class Backend, class Scaling>
void fit(const Scratch& storage, int num_workers, const std::function<void(ry::Worker&)>& body) {
  ry::Trainer<Backend, Scaling> trainer{
      body, {.num_workers = num_workers}, {.storage_path = storage.path(), .seed = 1, .progress = ry::Progress::quiet}};
  const ry::Result result = trainer.fit();
  if (!result) throw std::runtime_error{"the run failed: " + result.error()};
}

std::int64_t latest(const std::atomic<std::int64_t> (&times)[max_workers]) {
  return std::max(times[0].load(), times[1].load());
}

struct Edges {
  double first_line_ms;
  double teardown_ms;
};

template <class Backend, class Scaling>
Edges measure_edges(const Scratch& storage, Notes& notes) {
  std::vector<double> first_line;
  std::vector<double> teardown;
  for (int run = 0; run < num_runs; ++run) {
    const std::int64_t begin = now_ns();
    fit<Backend, Scaling>(storage, max_workers, [&notes](ry::Worker& worker) {
      notes.first_line[worker.rank()] = now_ns();
      worker.barrier();
      notes.last_line[worker.rank()] = now_ns();
    });
    const std::int64_t end = now_ns();
    first_line.push_back(static_cast<double>(latest(notes.first_line) - begin) / 1e6);
    teardown.push_back(static_cast<double>(end - latest(notes.last_line)) / 1e6);
  }
  return {median(first_line), median(teardown)};
}

double measure_report_us(const Scratch& storage, Notes& notes) {
  fit<ry::Gloo, ry::Processes>(storage, 2, [&notes](ry::Worker& worker) {
    std::vector<double> each;
    for (int i = 0; i < 20'000; ++i) {
      const std::int64_t begin = now_ns();
      worker.report({{"epoch", i}, {"loss", 0.5}, {"accuracy", 0.9}, {"stage", "train"}});
      each.push_back(static_cast<double>(now_ns() - begin) / 1e3);
    }
    if (worker.rank() == 0) notes.report_us = median(each);
  });
  return notes.report_us;
}

// The proportional set size of this process and all below it, so that shared pages count once.
double pss_of_group(pid_t root) {
  std::vector<pid_t> group{root};
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", group[i]))) {
      std::ifstream children{task.path() / "children"};
      for (pid_t child = 0; children >> child;) group.push_back(child);
    }
  }
  double bytes = 0;
  for (const pid_t process : group) {
    std::ifstream rollup{fmt::format("/proc/{}/smaps_rollup", process)};
    for (std::string word; rollup >> word;) {
      if (word != "Pss:") continue;
      double kilobytes = 0;
      rollup >> kilobytes;
      bytes += kilobytes * 1024;
      break;
    }
  }
  return bytes;
}

double measure_pss(const Scratch& storage, Notes& notes, int num_workers) {
  const pid_t root = getpid();
  fit<ry::Gloo, ry::Processes>(storage, num_workers, [&notes, root](ry::Worker& worker) {
    // The quickstart's network and a few steps of training: what a worker needs at the least to be of use.
    auto net = ry::prepare_model(worker, [] {
      return torch::nn::Sequential(torch::nn::Linear(64, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
    });
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
    worker.samples(32);
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(net->forward(torch::rand({32, 64})), torch::randint(10, {32})).backward();
      optimizer.step();
    }
    worker.barrier();
    if (worker.rank() == 0) notes.pss_bytes = pss_of_group(root);
    worker.barrier();
  });
  return notes.pss_bytes;
}

}  // namespace

int main() {
  Notes& notes = shared_notes();
  const Scratch storage{std::filesystem::temp_directory_path()};
  const Edges threads = measure_edges<ry::Gloo, ry::Threads>(storage, notes);
  const Edges local = measure_edges<ry::Local, ry::Threads>(storage, notes);
  const Edges processes = measure_edges<ry::Gloo, ry::Processes>(storage, notes);
  figure("startup.threads.first_line_us", threads.first_line_ms * 1e3, "us");
  // Where making a run's directory costs nothing: it is three files and folders. On ext4 each takes 3 us, or 100 where
  // hundreds of files near it were removed minutes ago: the kernel passes over what they have left, one by one.
  if (const std::filesystem::path memory = "/dev/shm"; std::filesystem::is_directory(memory)) {
    const Edges in_memory = measure_edges<ry::Gloo, ry::Threads>(Scratch{memory}, notes);
    figure("startup.threads.storage_in_memory.first_line_us", in_memory.first_line_ms * 1e3, "us");
  }
  figure("startup.threads.local.first_line_us", local.first_line_ms * 1e3, "us");
  figure("startup.processes.first_line_ms", processes.first_line_ms, "ms");
  figure("startup.threads.teardown_ms", threads.teardown_ms, "ms");
  figure("startup.teardown_ms", processes.teardown_ms, "ms");
  figure("report.us", measure_report_us(storage, notes), "us");
  std::vector<double> ratios;
  for (int run = 0; run < 3; ++run) {
    const double one = measure_pss(storage, notes, 1);
    ratios.push_back(measure_pss(storage, notes, 2) / one);
  }
  figure("memory.two_workers_over_one", median(ratios), "ratio");
}
