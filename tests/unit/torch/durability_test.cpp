// SPDX-License-Identifier: MIT
// Real training that is killed and goes on: the weights are those of a run that nothing has happened to, bit for bit.
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/train/train_state.hpp"
#include "railyard/train/trainer.hpp"

#include "railyard/collectives/gloo.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <torch/torch.h>

#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <unistd.h>

namespace ry = railyard;

namespace {

constexpr std::int64_t num_samples = 150;  // the last batch of an epoch is short

struct KilledNet : torch::nn::Module {
  KilledNet() {
    first = register_module("first", torch::nn::Linear(8, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    last = register_module("last", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& in) { return last(torch::relu(norm(first(in)))); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
};

std::pair<at::Tensor, at::Tensor> killed_data() {
  const auto generator = at::detail::createCPUGenerator(5);
  return {at::randn({num_samples, 8}, generator), at::randint(3, {num_samples}, generator, at::kLong)};
}

/// Trains four epochs of five steps and reports a number that depends on every bit of the weights.
template <class Optimizer, class Fail>
void train_killed(ry::Worker& worker, const std::pair<at::Tensor, at::Tensor>& data, const Fail& fail) {
  auto net =
      ry::prepare_model(worker, [] { return std::make_shared<KilledNet>(); }, {.buffers = ry::BufferSync::broadcast});
  auto loader = ry::prepare_loader(worker, data, {.global_batch_size = 32, .shuffle = true, .drives_step = true});
  Optimizer optimizer{worker, net};
  torch::optim::StepLR scheduler{optimizer.get(), 3, 0.5};
  ry::Mean loss;
  ry::TorchRandom random;
  ry::TrainState state{worker,
                       {{"net", net},
                        {"optimizer", optimizer.part()},
                        {"scheduler", scheduler},
                        {"loader", loader},
                        {"loss", loss},
                        {"random", random}}};
  for (const int epoch : state.epochs(4)) {
    for (const auto& batch : loader) {
      optimizer.zero_grad();
      auto value = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      value.backward();
      fail(worker);
      optimizer.step();
      loss.add(value.template item<double>(), static_cast<double>(batch.size()));
    }
    scheduler.step();
    double sum = 0;
    for (const at::Tensor& parameter : net->parameters()) sum += parameter.to(at::kDouble).sum().item<double>();
    for (const at::Tensor& buffer : net->buffers()) sum += buffer.to(at::kDouble).sum().item<double>();
    worker.report({{"epoch", epoch}, {"loss", worker.mean(loss)}, {"sum", sum}}, state);
  }
}

struct PlainAdam {
  template <class Net>
  PlainAdam(ry::Worker&, Net& net) : optimizer(net->parameters(), torch::optim::AdamOptions(1e-2)) {}
  torch::optim::Optimizer& get() { return optimizer; }
  torch::optim::Adam& part() { return optimizer; }
  void zero_grad() { optimizer.zero_grad(); }
  void step() { optimizer.step(); }
  torch::optim::Adam optimizer;
};

struct SharedAdam {
  template <class Net>
  SharedAdam(ry::Worker& worker, Net& net)
      : optimizer(ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(1e-2))) {}
  torch::optim::Optimizer& get() { return optimizer; }
  auto& part() { return optimizer; }
  void zero_grad() { optimizer.zero_grad(); }
  void step() { optimizer.step(); }
  ry::PreparedOptimizer<torch::optim::Adam> optimizer;
};

template <class B, class S, class Optimizer, class Fail>
ry::Result run_killed(const Scratch& scratch, const Fail& fail, ry::RunConfig config, int num_workers = 2) {
  config.storage_path = scratch.path();
  config.progress = ry::Progress::quiet;
  const auto data = killed_data();
  ry::Trainer<B, S> trainer{[&](auto& worker) { train_killed<Optimizer>(worker, data, fail); },
                            {.num_workers = num_workers},
                            std::move(config)};
  return trainer.fit();
}

const auto nobody = [](ry::Worker&) {};

}  // namespace

TEMPLATE_TEST_CASE("Durability: a run that is killed at every third step ends with equal bits (FAULTS F15)", "",
                   (std::tuple<ry::Gloo, ry::Processes, PlainAdam>), (std::tuple<ry::Gloo, ry::Processes, SharedAdam>),
                   (std::tuple<ry::SharedMemory, ry::Threads, SharedAdam>)) {
  using B = std::tuple_element_t<0, TestType>;
  using S = std::tuple_element_t<1, TestType>;
  using Optimizer = std::tuple_element_t<2, TestType>;
  constexpr bool has_processes = std::is_same_v<S, ry::Processes>;
  const Scratch scratch;
  const ry::Result whole = run_killed<B, S, Optimizer>(scratch, nobody, {});
  INFO(whole.error());
  REQUIRE(whole);
  const auto fail = [](ry::Worker& worker) {
    const auto due = 3 + 3 * static_cast<std::uint64_t>(worker.attempt());
    if (worker.rank() != worker.attempt() % 2 || worker.steps() != due || worker.attempt() > 4) return;
    if (has_processes) ::kill(::getpid(), SIGKILL);
    throw std::runtime_error{"a test"};
  };
  const ry::Result result = run_killed<B, S, Optimizer>(
      scratch, fail, {.checkpoint = {.keep = 1, .every_steps = 2}, .failure = {.max_failures = -1}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().size() == 6);
  CHECK((result.history() == whole.history()));  // glog would print them, and cannot
}

TEST_CASE("Durability: training goes on with another number of workers, shared optimizers included") {
  const Scratch scratch;
  const auto fail = [](ry::Worker& worker) {
    if (worker.steps() == 8) throw std::runtime_error{"a test"};
  };
  const ry::RunConfig config{.name = "run", .checkpoint = {.every_steps = 1}};
  CHECK_FALSE(run_killed<ry::Gloo, ry::Processes, SharedAdam>(scratch, fail, config, 2));
  const ry::Result result = run_killed<ry::Gloo, ry::Processes, SharedAdam>(scratch, nobody, config, 3);
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().front().begin_step == 8);
  CHECK(result.checkpoint()->manifest().step == 20);
  CHECK(result.checkpoint()->manifest().samples == 4 * num_samples);
}
