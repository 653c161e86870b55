// SPDX-License-Identifier: MIT
// Training on two hosts, which are pretended, with weights once per host: workers of either are killed, and all go on
// from the memory of the two processes.
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/train/train_state.hpp"
#include "railyard/workers/launched.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/pretended_hosts.hpp"
#include "unit/train/launched_processes.hpp"

#include <torch/torch.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>

#include <unistd.h>

namespace launched_memory {  // suites are compiled as one source as well

namespace ry = railyard;

constexpr std::uint64_t num_steps = 30;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(7, 60));
    dropout = register_module("dropout", torch::nn::Dropout(0.25));
    second = register_module("second", torch::nn::Linear(60, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(dropout(torch::tanh(first(x)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

std::int64_t bits_of(const Net& net) {
  std::uint64_t bits = 0;
  for (const auto& weight : net.parameters()) {
    const auto words = weight.detach().contiguous().view(torch::kInt).view(-1);
    for (std::int64_t i = 0; i < words.numel(); ++i) {
      bits = bits * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(words.data_ptr<int>()[i]);
    }
  }
  return static_cast<std::int64_t>(bits);
}

// Trains, and reports the bits of all weights, folded into one number. Whoever is a victim dies before its update.
template <bool is_prepared>
void train(ry::Worker& worker, bool kills) {
  auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
  const auto settings = torch::optim::AdamOptions(0.02);
  auto optimizer = [&] {
    if constexpr (is_prepared) {
      return ry::prepare_optimizer<torch::optim::Adam>(worker, net, settings);
    } else {
      return torch::optim::Adam(net->parameters(), settings);
    }
  }();
  if constexpr (is_prepared) EXPECT(optimizer.is_sharded());
  ry::TorchRandom random;
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"random", random}}};
  if (state.is_resumed()) worker.report({{"from", worker.resumes_from()}});
  while (worker.steps() < num_steps) {
    optimizer.zero_grad();
    worker.samples(2);
    const auto number = static_cast<std::int64_t>(worker.steps());
    net->forward((torch::arange(14) + 31 * worker.rank() + number).sin().view({2, 7})).pow(2).mean().backward();
    const bool is_due = number == 10 * (worker.attempt() + 1) - 1;
    if (kills && is_due && worker.rank() == 3 * worker.attempt()) ::kill(::getpid(), SIGKILL);
    optimizer.step();
    worker.end_step();
  }
  worker.report({{"bits", bits_of(*net)}});
}

template <bool is_prepared>
std::string run(bool kills) {
  const Scratch scratch;
  launched_runs::LaunchedProcesses launched{
      scratch, 2, [&](int) {
        ry::RunConfig config{.name = "run", .storage_path = scratch.path(), .progress = ry::Progress::quiet};
        config.failure = {.max_failures = 2, .memory_percent = 1e12};  // a copy at every step
        ry::Trainer<railyard_test::GlooOnTwoHosts, ry::Launched> trainer{
            [kills](ry::Worker& worker) { train<is_prepared>(worker, kills); }, {.num_workers = 2}, config};
        const ry::Result result = trainer.fit();
        std::string text = result.error();
        for (const ry::Attempt& attempt : result.attempts()) {
          if (attempt.lost_steps > 2) text += fmt::format("lost {} steps; ", attempt.lost_steps);
        }
        const ry::Value* from = result.history().empty() ? nullptr : result.history().front().find("from");
        if (kills && (from == nullptr || from->as<std::string>() != "memory")) text += "not from memory; ";
        return text + fmt::format("{:x}", result.metrics().at("bits").as<std::int64_t>());
      }};
  const std::string words = launched.words(0);
  CHECK(launched.words(1) == words);
  return words;
}

TEST_CASE("Launched: workers killed on two hosts go on from memory to the same bits, with weights once per host") {
  CHECK(run<true>(true) == run<true>(false));
}

TEST_CASE("Launched: workers killed on two hosts go on from memory to the same bits, with a plain optimizer") {
  CHECK(run<false>(true) == run<false>(false));
}

}  // namespace launched_memory
