// SPDX-License-Identifier: MIT
// What training costs on a GPU by Nccl: beside the bare loop of LibTorch in the same process, and beside PyTorch's
// DistributedDataParallel where its script and the folder of its packages are given, in turns. Prints `name value
// unit`, medians of the rounds; the microseconds themselves go to standard error. Without a GPU it says so and
// exits 77. benchmark_gpu --versions prints of which libraries.
#include "gpu/host_waits.hpp"
#include "gpu/nets.hpp"
#include "gpu/one_gpu_nccl.hpp"
#include "median.hpp"
#include "training/ddp.hpp"

#include <railyard/railyard.hpp>

#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

namespace ry = railyard;

namespace {

using bench::GpuNet;
using bench::median;

constexpr int num_runs = 3;    // each in a process of its own
constexpr int num_rounds = 3;  // of a run
constexpr double learning_rate = 0.01;

struct Case {
  std::string name{};
  std::function<std::shared_ptr<GpuNet>()> make{};
  int warm_up = 0;  // steps
  int steps = 0;    // of a turn
  bool in_bf16 = false;
};

double seconds_of(const std::function<void()>& steps) {
  const auto begin = std::chrono::steady_clock::now();
  steps();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::shared_ptr<GpuNet> with_weights(const Case& what, torch::Device gpu) {
  torch::manual_seed(1);
  auto net = what.make();
  net->to(gpu);
  return net;
}
std::pair<torch::Tensor, torch::Tensor> batch_for(const GpuNet& net, torch::Device gpu) {
  torch::manual_seed(100);
  const auto [data, target] = net.draw_batch();
  return {data.to(gpu), target.to(gpu)};
}

// A contestant: what it trains by, on one batch that is there already.
struct Contestant {
  std::shared_ptr<GpuNet> net{};
  std::function<void()> zero_grad{};
  std::function<void()> step{};
  std::function<void()> begin{};  // of a step
};

torch::Tensor train_step(const Case& what, Contestant& one, const torch::Tensor& data, const torch::Tensor& target) {
  one.begin();
  one.zero_grad();
  torch::Tensor loss;
  {
    std::optional<ry::Autocast> autocast;
    if (what.in_bf16) autocast.emplace(data.device());
    loss = torch::cross_entropy_loss(one.net->forward(data), target.view(-1));
  }
  loss.backward();
  one.step();
  return loss;
}

// Returns the last loss, for which it waits.
double train(const Case& what, Contestant& one, const torch::Tensor& data, const torch::Tensor& target, int steps) {
  torch::Tensor loss;
  for (int step = 0; step < steps; ++step) loss = train_step(what, one, data, target);
  return loss.item<double>();
}

template <class Optimizer, class Options>
Contestant bare(const Case& what, torch::Device gpu, const Options& options) {
  auto net = with_weights(what, gpu);
  auto optimizer = std::make_shared<Optimizer>(net->parameters(), options);
  return {net, [optimizer] { optimizer->zero_grad(); }, [optimizer] { optimizer->step(); }, [] {}};
}
template <class Optimizer, class Options>
Contestant prepared(ry::Worker& worker, const Case& what, torch::Device gpu, const Options& options) {
  auto net = ry::prepare_model(worker, [&] { return with_weights(what, gpu); });
  using Prepared = ry::PreparedOptimizer<Optimizer>;
  auto optimizer = std::make_shared<Prepared>(ry::prepare_optimizer<Optimizer>(worker, net, options));
  const auto samples = static_cast<std::uint64_t>(net->draw_batch().first.size(0));
  return {net, [optimizer] { optimizer->zero_grad(); }, [optimizer] { optimizer->step(); },
          [&worker, samples] { worker.samples(samples); }};
}

template <class Backend>
ry::Metrics run(int num_workers, const std::function<void(ry::WorkerOf<Backend>&)>& body) {
  ry::ScalingConfig scaling{.num_workers = num_workers};
  scaling.use_gpu = num_workers == 1;  // several share one
  ry::Trainer<Backend, ry::Processes> trainer{
      [&body](auto& worker) { body(worker); }, scaling, {.progress = ry::Progress::quiet}};
  return trainer.fit().value_or_throw().metrics();
}

void print(const std::string& name, double value, std::string_view unit) {
  fmt::print("{} {:.4g} {}\n", name, value, unit);
  std::fflush(stdout);
}

// One run: both in turns. Their losses are those after as many steps as a turn of ddp.py has.
void take_turns(ry::Worker& worker, const Case& what) {
  const auto gpu = ry::device(worker);
  const torch::optim::SGDOptions options(learning_rate);
  auto lone = bare<torch::optim::SGD>(what, gpu, options);
  auto ours = prepared<torch::optim::SGD>(worker, what, gpu, options);
  const auto [data, target] = batch_for(*lone.net, gpu);
  std::map<std::string, double> losses;
  for (auto* one : {&lone, &ours}) {
    const double first = train(what, *one, data, target, 1);
    const char* const name = one == &lone ? "lone" : "ours";
    losses[std::string{name} + "_loss"] = train(what, *one, data, target, what.warm_up + what.steps - 1);
    losses["first_loss"] = first;
  }
  std::vector<double> theirs;
  std::vector<double> mine;
  for (int round = 0; round < num_rounds; ++round) {
    theirs.push_back(1e6 * seconds_of([&] { train(what, lone, data, target, what.steps); }) / what.steps);
    mine.push_back(1e6 * seconds_of([&] { train(what, ours, data, target, what.steps); }) / what.steps);
  }
  worker.report({{"lone", median(theirs)},
                 {"ours", median(mine)},
                 {"lone_loss", losses["lone_loss"]},
                 {"ours_loss", losses["ours_loss"]},
                 {"first_loss", losses["first_loss"]}});
}

// Kernels need not give equal bits from run to run, and those of a Python loop need not be the same; whoever trains on
// something else ends elsewhere.
void check_loss(const std::string& who, double loss, const ry::Metrics& metrics) {
  const double expected = metrics.at("lone_loss").number();
  const double progress = std::abs(metrics.at("first_loss").number() - expected);
  if (std::abs(loss - expected) <= 0.1 * progress + 1e-3) return;
  throw std::runtime_error{fmt::format("{} ends at a loss of {}, the bare loop at {}", who, loss, expected)};
}

void measure_steps(const Case& what, Ddp* ddp) {
  std::map<std::string, std::vector<double>> us;
  for (int number = 0; number < num_runs; ++number) {
    const auto metrics = run<ry::Nccl>(1, [&what](ry::Worker& worker) { take_turns(worker, what); });
    us["lone"].push_back(metrics.at("lone").number());
    us["ours"].push_back(metrics.at("ours").number());
    check_loss(what.name + ": ours", metrics.at("ours_loss").number(), metrics);
    if (ddp == nullptr) continue;
    const DdpTurn turn = ddp->take_turn(what.name, what.warm_up, what.steps);
    us["ddp"].push_back(turn.us);
    check_loss(what.name + ": ddp", turn.loss, metrics);
  }
  const std::string step = "gpu.step." + what.name;
  for (const auto& [name, times] : us) fmt::print(stderr, "{} {}: {:.5g} us\n", step, name, median(times));
  print(step + ".ours_over_lone", median(us["ours"]) / median(us["lone"]), "ratio");
  if (ddp != nullptr) print(step + ".ddp_over_ours", median(us["ddp"]) / median(us["ours"]), "ratio");
}

void measure_all_reduce() {
  const auto metrics = run<ry::Nccl>(1, [](ry::WorkerOf<ry::Nccl>& worker) {
    const auto data = torch::ones({std::int64_t{4} << 20}, ry::device(worker));  // 16 MiB
    const auto times = [&](int count) {
      return seconds_of([&] {
        const ry::Call call{.deadline = worker.collective_deadline()};
        for (int left = count; left > 1; --left) {
          static_cast<void>(worker.backend().all_reduce(ry::buffer_of(data), ry::ReduceOp::sum, call));
        }
        worker.backend().all_reduce(ry::buffer_of(data), ry::ReduceOp::sum, call).wait(call.deadline);
      });
    };
    static_cast<void>(times(20));
    std::vector<double> us;
    for (int round = 0; round < 9; ++round) us.push_back(1e6 * times(200) / 200);
    if (!data.eq(1).all().item<bool>()) throw std::runtime_error{"all_reduce: one rank's sum is not what it gave"};
    worker.report({{"us", median(us)}});
  });
  print("gpu.all_reduce.16MiB.1rank_us", metrics.at("us").number(), "us");
}

// Keeps the device busy for a while.
void keep_busy(const torch::Tensor& square) {
  for (int time = 0; time < 40; ++time) static_cast<void>(square.matmul(square));
}

// Of a loop as users write it, batches included: calls that wait, and whether the host is held up until a busy device
// comes to the step, by whatever means.
void count_waits(ry::Worker& worker, const Case& what) {
  constexpr int first = 30;
  constexpr int last = 80;
  const auto gpu = ry::device(worker);
  auto ours = prepared<torch::optim::SGD>(worker, what, gpu, torch::optim::SGDOptions(learning_rate));
  const auto [data, target] = ours.net->draw_batch();
  const auto samples = static_cast<std::size_t>(data.size(0));
  const auto dataset =
      ry::from_tensors({{"x", data.repeat({2 + last, 1})}, {"y", target.repeat({2 + last})}}, {.label = "y"});
  auto loader = ry::prepare_loader(worker, dataset, {.global_batch_size = samples, .drives_step = true});
  ours.begin = [] {};  // the loader says how many samples there are
  const auto square = torch::randn({8192, 8192}, gpu);
  keep_busy(square);
  const double busy = seconds_of([&] {
    keep_busy(square);
    static_cast<void>(square.sum().item<float>());
  });
  int step = 0;
  unsigned long before = 0;
  std::chrono::steady_clock::time_point begin;
  double waits = 0;
  for (const auto& batch : loader) {
    if (step == first) before = bench::host_waits();
    if (step == last) {
      waits = static_cast<double>(bench::host_waits() - before) / (last - first);
      keep_busy(square);
      begin = std::chrono::steady_clock::now();
    }
    static_cast<void>(train_step(what, ours, batch.data, batch.target));
    if (++step == last + 2) break;
  }
  const double held = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(stderr, "host: {:.3g} s for two steps behind what keeps the device busy for {:.3g} s\n", held, busy);
  worker.report({{"waits", waits}, {"held", held > 0.5 * busy ? 1.0 : 0.0}});
}

void measure_waits(const Case& what) {
  const auto metrics = run<ry::Nccl>(1, [&what](ry::Worker& worker) { count_waits(worker, what); });
  print("gpu.host_syncs_per_step", metrics.at("waits").number(), "calls");
  print("gpu.host_held_by_busy_device", metrics.at("held").number(), "0_or_1");
}

// Of the device, in MiB: LibTorch keeps what it has had at most.
double used_mib() {
  using MemGetInfo = int (*)(std::size_t*, std::size_t*);
  const auto ask = reinterpret_cast<MemGetInfo>(::dlsym(RTLD_DEFAULT, "cudaMemGetInfo"));
  std::size_t free = 0;
  std::size_t total = 0;
  if (ask == nullptr || ask(&free, &total) != 0) throw std::runtime_error{"cudaMemGetInfo cannot be called"};
  return static_cast<double>(total - free) / (1U << 20U);
}

double memory_of(const Case& what, bool is_ours) {
  const auto metrics = run<ry::Nccl>(1, [&what, is_ours](ry::Worker& worker) {
    const auto gpu = ry::device(worker);
    ry::all_reduce(worker, torch::ones({1}, gpu));  // what libraries take for themselves is there after that
    const double before = used_mib();
    const torch::optim::AdamOptions options(1e-4);
    auto one = is_ours ? prepared<torch::optim::Adam>(worker, what, gpu, options)
                       : bare<torch::optim::Adam>(what, gpu, options);
    const auto [data, target] = batch_for(*one.net, gpu);
    static_cast<void>(train(what, one, data, target, 5));
    worker.report({{"mib", used_mib() - before}});
  });
  return metrics.at("mib").number();
}

void measure_memory(const Case& what) {
  const double lone = memory_of(what, false);
  const double ours = memory_of(what, true);
  fmt::print(stderr, "gpu.memory: lone {:.0f} MiB, ours {:.0f} MiB\n", lone, ours);
  print("gpu.memory.ours_over_lone", ours / lone, "ratio");
}

// Two ranks on one GPU, each at first by itself, then the reductions of a step alone, then both together: what a step
// takes beyond the longer of the two parts could have overlapped, and has not.
void expose(ry::WorkerOf<bench::OneGpuNccl>& worker, const Case& what, std::chrono::microseconds delay) {
  constexpr int steps = 8;
  const auto gpu = ry::device(worker);
  auto& reductions = bench::Reductions::of_process();
  const torch::optim::SGDOptions options(learning_rate);
  auto lone = bare<torch::optim::SGD>(what, gpu, options);
  auto ours = prepared<torch::optim::SGD>(worker, what, gpu, options);
  const auto [data, target] = batch_for(*lone.net, gpu);
  static_cast<void>(train(what, lone, data, target, 3));
  static_cast<void>(train(what, ours, data, target, 3));
  const auto together = [&](const std::function<void()>& body) {  // the slower rank's seconds
    worker.barrier();
    double seconds = seconds_of(body);
    worker.all_reduce(ry::buffer_of_value(seconds), ry::ReduceOp::max);
    return seconds;
  };
  const double alone = together([&] { train(what, lone, data, target, steps); }) / steps;
  worker.barrier();
  reductions.delay = delay;
  reductions.counts.clear();
  static_cast<void>(train(what, ours, data, target, 1));
  auto counts = reductions.counts;
  const bool is_delayed = !counts.empty() && delay.count() > 0;
  if (counts.empty()) {  // gradients go by a line of Nccl's own: as many numbers, in parts of 25 MiB
    std::size_t left = 0;
    for (const auto& weight : ours.net->parameters()) left += static_cast<std::size_t>(weight.numel());
    constexpr std::size_t most = (std::size_t{25} << 20U) / sizeof(float);
    for (; left > 0; left -= counts.back()) counts.push_back(std::min(left, most));
  }
  const double both = together([&] { train(what, ours, data, target, steps); }) / steps;
  const auto memory = torch::zeros({static_cast<std::int64_t>(*std::max_element(counts.begin(), counts.end()))}, gpu);
  const double reducing = together([&] {
    const ry::Call call{.deadline = worker.collective_deadline()};
    for (std::size_t at = 0; at < counts.size(); ++at) {
      ry::Buffer part = ry::buffer_of(memory);
      part.count = counts[at];
      auto work = worker.backend().all_reduce(part, ry::ReduceOp::sum, call);
      if (at + 1 == counts.size()) work.wait(call.deadline);
    }
  });
  fmt::print(stderr, "two ranks on one GPU: step alone {:.4g} s, {} reductions {:.4g} s, step with them {:.4g} s\n",
             alone, counts.size(), reducing, both);
  worker.report({{"exposed", 100 * std::max(0.0, both - std::max(alone, reducing)) / both},
                 {"is_delayed", is_delayed ? 1.0 : 0.0}});
}

void measure_exposure(const Case& what) {
  for (const auto& [name, delay] :
       {std::pair{"gpu.exposed_communication_percent", std::chrono::microseconds{0}},
        std::pair{"gpu.exposed_communication_delayed_percent", std::chrono::microseconds{2000}}}) {
    const auto by = delay;
    const auto metrics = run<bench::OneGpuNccl>(2, [&what, by](auto& worker) { expose(worker, what, by); });
    if (by.count() > 0 && metrics.at("is_delayed").number() == 0) {
      fmt::print(stderr, "{}: left out, as what gradients go by cannot be delayed from outside\n", name);
      continue;
    }
    print(name, metrics.at("exposed").number(), "percent");
  }
}

void print_versions() {
  int cuda = 0;
  using GetVersion = int (*)(int*);
  if (const auto ask = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, "cudaRuntimeGetVersion"))) ask(&cuda);
  std::string nccl = "no NCCL";
  try {
    nccl = "NCCL " + ry::detail::NcclLibrary::version_text(ry::detail::NcclLibrary{""}.version);
  } catch (const ry::ConfigError&) {  // there is none
  }
  fmt::print("LibTorch {}, {}, CUDA runtime {}.{}\n", TORCH_VERSION, nccl, cuda / 1000, cuda % 1000 / 10);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 2 && std::string_view{argv[1]} == "--versions") {
    print_versions();
    return 0;
  }
  ry::Nccl::check({});  // before another program is started
  std::optional<Ddp> ddp;
  if (argc == 3) {
    ddp.emplace(argv[2], 1,
                std::vector<std::vector<std::string>>{
                    {"python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", argv[1]}});
  }
  const std::vector<Case> cases{{"mlp", [] { return std::make_shared<bench::GpuMlp>(); }, 50, 500, false},
                                {"cnn", [] { return std::make_shared<bench::GpuCnn>(); }, 10, 20, false},
                                {"gpt", [] { return std::make_shared<bench::GpuGpt>(); }, 5, 15, true}};
  measure_all_reduce();
  measure_waits(cases[0]);
  for (const Case& what : cases) measure_steps(what, ddp ? &*ddp : nullptr);
  measure_memory(cases[2]);
  measure_exposure(cases[1]);
  return 0;
} catch (const ry::ConfigError& error) {
  fmt::print(stderr, "benchmarks/gpu: skipped: {}\n", error.what());
  return 77;
} catch (const std::exception& error) {
  fmt::print(stderr, "benchmarks/gpu: {}\n", error.what());
  return 1;
}
