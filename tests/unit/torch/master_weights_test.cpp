// SPDX-License-Identifier: MIT
// Prepared optimizers that keep weights in half types in f32 as well.
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/train/train_state.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Catch::ContainsSubstring;

namespace masters {

namespace {

namespace ry = railyard;
namespace optim = torch::optim;

// Two weights of ones, of which one is longer than what a rank has of it.
struct Ones : torch::nn::Module {
  explicit Ones(torch::Dtype dtype = torch::kBFloat16) {
    first = register_parameter("first", torch::ones({150}, dtype));
    second = register_parameter("second", torch::ones({3, 5}, dtype));
    third = register_parameter("third", torch::ones({2}, torch::kFloat));
  }
  [[nodiscard]] torch::Tensor sum() const {
    return first.to(torch::kFloat).sum() + second.to(torch::kFloat).sum() + third.sum();
  }
  torch::Tensor first{}, second{}, third{};
};

auto prepared_ones(ry::Worker& worker, torch::Dtype dtype = torch::kBFloat16) {
  return ry::prepare_model(worker, [dtype] { return std::make_shared<Ones>(dtype); });
}

template <class Optimizer>
void step_down(ry::Worker& worker, const Ones& net, Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    worker.samples(1);
    net.sum().backward();
    optimizer.step();
  }
}

bool is_all(const torch::Tensor& tensor, double value) {
  return torch::equal(tensor.detach().to(torch::kDouble), torch::full(tensor.sizes(), value, torch::kDouble));
}

}  // namespace

TEST_CASE("prepare_optimizer: with master weights small updates of weights in half types add up") {
  const auto train = [](auto& worker) {
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      for (const bool has_masters : {false, true}) {
        auto net = prepared_ones(worker, dtype);
        auto optimizer =
            ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0x1p-13), {.master_weights = has_masters});
        step_down(worker, *net, optimizer, 128);
        const double expected = has_masters ? 1 - 0x1p-6 : 1;
        EXPECT(net->first.scalar_type() == dtype);
        EXPECT(is_all(net->first, expected));
        EXPECT(is_all(net->second, expected));
        EXPECT(is_all(net->third, 1 - 0x1p-6));  // in f32 itself
      }
    }
    worker.report({{"done", true}});
  };
  test::on_both_threads(2, train);
  test::on_threads(1, train);
  test::on_processes(2, train);
}

TEST_CASE("prepare_optimizer: with master weights an update is that of an optimizer in f32, rounded, and clips alike") {
  const auto train = [](auto& worker) {
    auto net = prepared_ones(worker);
    auto optimizer =
        ry::prepare_optimizer<optim::AdamW>(worker, net, optim::AdamWOptions(0.01), {.master_weights = true});
    Ones exact{torch::kFloat};
    optim::AdamW plain(exact.parameters(), optim::AdamWOptions(0.01));
    for (int step = 1; step <= 5; ++step) {
      optimizer.zero_grad();
      worker.samples(1);
      (net->sum() * step).backward();
      const double norm = ry::clip_grad_norm_(optimizer, 2.0);
      optimizer.step();
      for (auto& parameter : exact.parameters()) parameter.mutable_grad() = torch::full_like(parameter, step);
      EXPECT(std::abs(norm - torch::nn::utils::clip_grad_norm_(exact.parameters(), 2.0)) < 1e-3);
      plain.step();
    }
    EXPECT(torch::allclose(net->first.to(torch::kFloat), exact.first.to(torch::kBFloat16).to(torch::kFloat), 0.01));
    const auto gradients = optimizer.full_gradients();
    EXPECT(gradients.size() == 3);
    EXPECT(gradients[0].defined());
    optimizer.zero_grad();
    for (const auto& gradient : optimizer.full_gradients()) EXPECT(!gradient.defined());
    worker.report({{"done", true}});
  };
  test::on_both_threads(2, train);
  test::on_threads(1, train);
}

TEST_CASE("prepare_optimizer: master weights take over what is written to the weights, and keep the rest") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_ones(worker);
    auto optimizer =
        ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0x1p-10), {.master_weights = true});
    step_down(worker, *net, optimizer, 1);
    worker.barrier();
    if (worker.rank() == 0 || !optimizer.is_sharded()) {
      const torch::NoGradGuard no_grad;
      net->first.narrow(0, 0, 75).fill_(2);
    }
    worker.barrier();
    step_down(worker, *net, optimizer, 7);
    EXPECT(is_all(net->first.narrow(0, 0, 75), 2 - 0x1p-7));   // 7 x 2^-10 below 2, rounded
    EXPECT(is_all(net->first.narrow(0, 75, 75), 1 - 0x1p-7));  // 8 x 2^-10 below 1
  });
}

TEST_CASE("prepare_optimizer: a step that is left out leaves master weights alone") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_ones(worker);
    auto optimizer =
        ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0x1p-8), {.master_weights = true});
    worker.samples(1);
    (net->sum() * (worker.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0)).backward();
    optimizer.step();
    EXPECT(is_all(net->first, 1));
    step_down(worker, *net, optimizer, 1);
    EXPECT(is_all(net->first, 1 - 0x1p-8));
  });
}

TEST_CASE("prepare_optimizer: master weights are saved, and go on with any number of workers to the bit") {
  const auto train = [](auto& worker, int failing_step) {
    auto net = prepared_ones(worker);
    const auto data = torch::arange(1, 25).to(torch::kFloat).view({24, 1});
    auto loader = ry::prepare_loader(worker, std::pair{data, data}, {.global_batch_size = 2, .drives_step = true});
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0x1p-14).momentum(0.5),
                                                       {.master_weights = true});
    ry::TrainState state{worker, {{"optimizer", optimizer}, {"net", net}, {"loader", loader}}};
    for ([[maybe_unused]] const int epoch : state.epochs(1)) {
      for (const auto& batch : loader) {
        if (static_cast<int>(worker.steps()) == failing_step) throw std::runtime_error{"as planned"};
        optimizer.zero_grad();
        (net->sum() * batch.data.mean()).backward();
        optimizer.step();
      }
    }
    worker.report({{"first", net->first.to(torch::kDouble).sum().template item<double>()},
                   {"second", net->second.to(torch::kDouble).sum().template item<double>()}});
  };
  const auto run = [&](int failing_step, int num_workers, int num_workers_later) {
    std::string folder = (std::filesystem::temp_directory_path() / "railyard_masters_XXXXXX").string();
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    ry::RunConfig config{.name = "run", .storage_path = folder, .progress = ry::Progress::quiet};
    config.checkpoint.every_steps = 1;
    const auto fit = [&](int workers, int failing) {
      ry::Trainer<ry::SharedMemory, ry::Threads> trainer{
          [=](auto& worker) { train(worker, failing); }, {.num_workers = workers}, config};
      return trainer.fit();
    };
    if (failing_step >= 0) CHECK(!fit(num_workers, failing_step));
    const ry::Metrics metrics = fit(num_workers_later, -1).value_or_throw().metrics();
    std::filesystem::remove_all(folder);
    return std::pair{metrics.at("first").number(), metrics.at("second").number()};
  };
  const auto whole = run(-1, 2, 2);
  CHECK(whole.first < 150);
  CHECK(run(5, 2, 2) == whole);
  CHECK(run(7, 2, 1) == whole);
  CHECK(run(3, 1, 2) == whole);
}

TEST_CASE("prepare_optimizer: a state with master weights is refused where there are none, and the other way") {
  test::on_both_threads(2, [](auto& worker) {
    const auto optimizer_of = [&worker](const auto& net, bool has_masters) {
      auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1).momentum(0.5),
                                                         {.master_weights = has_masters});
      step_down(worker, *net, optimizer, 1);
      return optimizer;
    };
    auto first = prepared_ones(worker);
    auto without = optimizer_of(first, false);
    auto second = prepared_ones(worker);
    auto with = optimizer_of(second, true);
    const auto error_of = [](auto& optimizer, const auto& state) {
      try {
        optimizer.load_state(state);
      } catch (const ry::ConfigError& error) {
        return std::string{error.what()};
      }
      return std::string{};
    };
    EXPECT(error_of(with, without.state()).find("updated in f32") != std::string::npos);
    EXPECT(error_of(without, with.state()).find("master\" f32") != std::string::npos);
    worker.barrier();
  });
}

}  // namespace masters
