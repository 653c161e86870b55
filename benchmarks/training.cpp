// SPDX-License-Identifier: MIT
// What a distributed training step costs beside two lone workers that train at the same time, and beside PyTorch's
// DistributedDataParallel where run.sh has found it: the arguments are its script and the folder of its packages. All
// contestants take turns in short runs, each with two workers pinned to one core each. Prints `name value unit`,
// medians of the rounds; the microseconds themselves go to standard error.
#include "median.hpp"
#include "training/ddp.hpp"
#include "training/nets.hpp"

#include <railyard/railyard.hpp>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

constexpr int num_rounds = 7;
constexpr double learning_rate = 0.05;

using bench::Gpt;
using bench::Net;
using bench::pin;

struct Mlp final : Net {
  Mlp(const std::vector<std::int64_t>& widths, std::int64_t batch_)
      : from(widths.front()), to(widths.back()), batch(batch_) {
    for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
      if (layer > 0) net->push_back(torch::nn::ReLU());
      net->push_back(torch::nn::Linear(widths[layer], widths[layer + 1]));
    }
    register_module("net", net);
  }
  void draw_batch() override {
    data = torch::randn({batch, from});
    target = torch::randint(0, to, {batch});
  }
  torch::Tensor loss() override { return torch::nn::functional::cross_entropy(net->forward(data), target); }
  std::int64_t from, to, batch;
  torch::nn::Sequential net;
  torch::Tensor data, target;
};

// A stem and four residual blocks of two convolutions with BatchNorm, on pictures of 32 x 32.
struct Cnn final : Net {
  Cnn() {
    stem = register_module("stem", convolution(3, 16));
    for (int block = 0; block < 4; ++block) {
      const auto first = convolution(16, 16);  // before the second: they draw their weights, as those of ddp.py do
      const auto second = convolution(16, 16);
      blocks.push_back(register_module("block" + std::to_string(block),
                                       torch::nn::Sequential(first, torch::nn::BatchNorm2d(16), torch::nn::ReLU(),
                                                             second, torch::nn::BatchNorm2d(16))));
    }
    head = register_module("head", torch::nn::Linear(16, 10));
  }
  void draw_batch() override {
    data = torch::randn({8, 3, 32, 32});
    target = torch::randint(0, 10, {8});
  }
  static torch::nn::Conv2d convolution(std::int64_t from, std::int64_t to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
  }
  torch::Tensor loss() override {
    auto x = stem->forward(data);
    for (auto& block : blocks) x = torch::relu(x + block->forward(x));
    return torch::nn::functional::cross_entropy(head->forward(x.mean(std::vector<std::int64_t>{2, 3})), target);
  }
  torch::nn::Conv2d stem{nullptr};
  std::vector<torch::nn::Sequential> blocks;
  torch::nn::Linear head{nullptr};
  torch::Tensor data, target;
};

struct Case {
  std::string name{};
  std::function<std::shared_ptr<Net>()> make{};
  int steps = 0;  // of a turn
  std::uint64_t batch = 1;
};

// barrier: as pooled, and after each step both wait for each other. That is the least a synchronous step can cost.
enum class Kind { zeroed, undefined, pooled, barrier, ours };

// Equal weights for every contestant, and a batch for each rank.
std::shared_ptr<Net> with_weights(const Case& what) {
  torch::manual_seed(1);
  return what.make();
}
void draw(Net& net, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + rank));
  net.draw_batch();
}

int warm_up_steps(const Case& what) { return std::max(2, what.steps / 10); }

void zero(const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) parameter.mutable_grad().zero_();
  }
}
void drop(const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) parameter.mutable_grad().reset();
}

// One turn of a contestant: two workers at once, together or each for itself.
void take_turn(ry::Worker& worker, const Case& what, Kind kind) {
  pin(worker.rank());
  std::optional<ry::Pool> pool;
  if (kind == Kind::pooled || kind == Kind::barrier) pool.emplace();
  std::shared_ptr<Net> net;
  if (kind == Kind::ours) {
    net = ry::prepare_model(worker, [&what] { return with_weights(what); });
  } else {
    // prepare_loader() gives a lone worker the number of threads that ours have.
    static_cast<void>(ry::device(worker));
  }
  for (int rank = 0; rank < worker.world_size(); ++rank) {  // LibTorch has one generator per process
    if (rank == worker.rank() && kind != Kind::ours) net = with_weights(what);
    if (rank == worker.rank()) draw(*net, rank);
    worker.barrier();
  }
  const auto parameters = net->parameters();
  using SGD = torch::optim::SGD;
  const torch::optim::SGDOptions options(learning_rate);
  std::optional<ry::PreparedOptimizer<SGD>> prepared;
  if (kind == Kind::ours) prepared.emplace(ry::prepare_optimizer<SGD>(worker, net, options));
  SGD plain(parameters, options);
  double last_loss = 0;
  const auto step = [&](bool is_last) {
    if (kind == Kind::zeroed) zero(parameters);
    if (kind != Kind::zeroed && kind != Kind::ours) drop(parameters);
    if (prepared) {
      prepared->zero_grad();
      worker.samples(what.batch);
    }
    auto loss = net->loss();
    loss.backward();
    prepared ? prepared->step() : static_cast<void>(plain.step());
    if (kind == Kind::barrier) worker.barrier();
    if (is_last) last_loss = loss.item<double>();
  };
  for (int i = 0; i < warm_up_steps(what); ++i) step(false);
  worker.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < what.steps; ++i) step(i + 1 == what.steps);
  double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / what.steps;
  worker.all_reduce(ry::buffer_of_value(us), ry::ReduceOp::max);
  const auto times = ry::step_times(worker);
  worker.report({{"us", us},
                 {"loss", last_loss},
                 {"wait", times.share_of_wait()},
                 {"communication", times.share_of_communication()},
                 {"optimizer", times.share_of_optimizer()}});
}

// What rank 0's loss must come to, and how far training has moved it.
struct Expected {
  double loss = 0;
  double progress = 0;

  // A hundredth of what training has changed: without the other rank's gradients it would end elsewhere.
  void check(const std::string& what, double own) const {
    if (std::abs(own - loss) <= 0.01 * progress + 1e-5) return;
    throw std::runtime_error{fmt::format("{} ends at a loss of {}, one worker on both batches at {}", what, own, loss)};
  }
};

// One worker that trains on the batches of both ranks.
void train_on_both(ry::Worker& worker, const Case& what) {
  const auto net = with_weights(what);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(learning_rate));
  double first_loss = 0;
  double last_loss = 0;
  for (int i = 0; i < warm_up_steps(what) + what.steps; ++i) {
    drop(net->parameters());
    torch::Tensor of_rank_0;
    for (const int rank : {0, 1}) {
      draw(*net, rank);
      auto loss = net->loss();
      if (rank == 0) of_rank_0 = loss.detach();
      (loss / 2).backward();
    }
    optimizer.step();
    last_loss = of_rank_0.item<double>();
    if (i == 0) first_loss = last_loss;
  }
  worker.report({{"first_loss", first_loss}, {"loss", last_loss}});
}

using bench::median;

template <class Scaling>
ry::Metrics run(int num_workers, const std::function<void(ry::Worker&)>& body) {
  ry::Trainer<ry::SharedMemory, Scaling> trainer{
      [&body](ry::Worker& worker) { body(worker); }, {.num_workers = num_workers}, {.progress = ry::Progress::quiet}};
  return trainer.fit().value_or_throw().metrics();
}

using Times = std::map<std::string, std::vector<double>>;

void print_shares(const std::string& step, const ry::Metrics& ours) {
  fmt::print(stderr, "{} ours: waiting {:.3f}, communication {:.3f}, optimizer {:.3f} of it\n", step,
             ours.at("wait").number(), ours.at("communication").number(), ours.at("optimizer").number());
}

// Microseconds that it takes to measure where the time of a step has gone: a look at the clock at each of the borders
// that a step has between its parts.
double measuring_us() {
  constexpr int borders = 12;
  constexpr int num_steps = 100'000;
  ry::detail::StepClock clock;
  using Part = ry::detail::StepClock::Part;
  clock.enter(Part::compute);
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < num_steps; ++step) {
    for (int border = 0; border < borders; ++border) clock.enter(border % 2 == 0 ? Part::wait : Part::communication);
    clock.count_step(1);
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  return time.count() / num_steps;
}

void print_ratios(const std::string& step, const Times& us) {
  std::map<std::string, double> medians;
  for (const auto& [name, times] : us) {
    medians[name] = median(times);
    fmt::print(stderr, "{} {}: {:.4g} us\n", step, name, medians[name]);
  }
  const double lone = medians[TORCH_VERSION_MAJOR < 2 ? "zeroed" : "undefined"];  // what zero_grad() does
  const double best = std::min({medians["zeroed"], medians["undefined"], medians["pooled"]});
  fmt::print("{}.ours_over_lone {:.3f} ratio\n", step, medians["ours"] / lone);
  fmt::print("{}.ours_over_best_lone {:.3f} ratio\n", step, medians["ours"] / best);
  fmt::print("{}.barrier_over_best_lone {:.3f} ratio\n", step, medians["barrier"] / best);
  if (us.count("ddp") > 0) fmt::print("{}.ddp_over_ours {:.3f} ratio\n", step, medians["ddp"] / medians["ours"]);
  fmt::print("{}.measuring_percent {:.3f} percent\n", step, 100 * measuring_us() / medians["ours"]);
  std::fflush(stdout);
}

template <class Scaling>
void measure(const Case& what, const std::string& scaling, Ddp* ddp) {
  const std::vector<std::pair<std::string, Kind>> kinds{{"zeroed", Kind::zeroed},
                                                        {"undefined", Kind::undefined},
                                                        {"pooled", Kind::pooled},
                                                        {"barrier", Kind::barrier},
                                                        {"ours", Kind::ours}};
  const std::string step = "step." + what.name + "." + scaling;
  const auto reference = run<Scaling>(1, [&what](ry::Worker& worker) { train_on_both(worker, what); });
  Expected expected{.loss = reference.at("loss").number()};
  expected.progress = std::abs(reference.at("first_loss").number() - expected.loss);
  Times us;
  ry::Metrics metrics;
  for (int round = 0; round < num_rounds; ++round) {
    if (ddp != nullptr) {
      const DdpTurn turn = ddp->take_turn(what.name, warm_up_steps(what), what.steps);
      expected.check(what.name + ": ddp", turn.loss);
      us["ddp"].push_back(turn.us);
    }
    for (const auto& [name, kind] : kinds) {
      metrics = run<Scaling>(2, [&what, kind = kind](ry::Worker& worker) { take_turn(worker, what, kind); });
      us[name].push_back(metrics.at("us").number());
      if (kind == Kind::ours) expected.check(what.name + ": ours", metrics.at("loss").number());
    }
  }
  print_shares(step, metrics);  // ours come last
  print_ratios(step, us);
}

// What this process has of its memory to itself, and its share of what it has in common with others. In MiB.
double proportional_mib() {
  std::ifstream file{"/proc/self/smaps_rollup"};
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Pss:", 0) == 0) return std::stod(line.substr(4)) / 1024;
  }
  throw std::runtime_error{"/proc/self/smaps_rollup has no Pss"};
}

// The weights of a model and the state of Adam, on all workers together.
double weights_and_state(int num_workers) {
  const auto metrics = run<ry::Processes>(num_workers, [](ry::Worker& worker) {
    worker.barrier();
    const double before = proportional_mib();
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(4096, 4096); });
    auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(learning_rate));
    worker.samples(1);
    net->forward(torch::ones({1, 4096})).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
    if (ry::HostMemory* memory = worker.host_memory()) memory->heap()->trim();
    worker.barrier();
    double mib = proportional_mib() - before;
    worker.barrier();
    worker.all_reduce(ry::buffer_of_value(mib), ry::ReduceOp::sum);
    worker.report({{"mib", mib}});
  });
  return metrics.at("mib").number();
}

}  // namespace

int main(int argc, char** argv) try {
  std::optional<Ddp> ddp;
  if (argc == 3) ddp.emplace(argv[1], argv[2]);
  const auto mlp = [](std::vector<std::int64_t> widths, std::int64_t batch) {
    return [widths, batch] { return std::make_shared<Mlp>(widths, batch); };
  };
  const std::vector<Case> cases{{"mlp_26k", mlp({64, 128, 128, 10}, 32), 1000, 32},
                                {"mlp_932k", mlp({784, 512, 512, 512, 10}, 64), 100, 64},
                                {"mlp_19m", mlp({1024, 4096, 3072, 512, 10}, 64), 12, 64},
                                {"cnn", [] { return std::make_shared<Cnn>(); }, 20, 8},
                                {"gpt", [] { return std::make_shared<Gpt>(); }, 8, 4}};
  for (const Case& what : cases) {
    measure<ry::Threads>(what, "threads", ddp ? &*ddp : nullptr);
    measure<ry::Processes>(what, "processes", ddp ? &*ddp : nullptr);
  }
  const double one = weights_and_state(1);
  const double four = weights_and_state(4);
  fmt::print(stderr, "memory.weights_and_state: 1 worker {:.1f} MiB, 4 workers {:.1f} MiB\n", one, four);
  fmt::print("memory.weights_and_state.4workers_over_1 {:.3f} ratio\n", four / one);
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
