// SPDX-License-Identifier: MIT
// What ranks save of optimizers and weights that they divide among them, and who can go on from it.
#include "railyard/torch/prepare_optimizer.hpp"

#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/state.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"
#include "support/memory_state.hpp"
#include "support/pretended_hosts.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

using railyard_test::put;
using railyard_test::Shelf;
using railyard_test::taken;

// Weights that lie row by row and others that do not, a small one of which most ranks have no piece, a complex one,
// which is never divided, one that nobody uses and one that is used late.
struct Divided : torch::nn::Module {
  Divided() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(false)));
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    linear = register_module("linear", torch::nn::Linear(8 * 4, 5));
    scale = register_parameter("scale", torch::ones({1}));
    unused = register_parameter("unused", torch::ones({70}));
    late = register_parameter("late", torch::zeros({5}));
    to(torch::kFloat64);
    wave = register_parameter("wave", torch::ones({2}, torch::kComplexDouble));
  }
  torch::Tensor forward(const torch::Tensor& images, int step) {
    auto output = linear->forward(torch::tanh(conv->forward(images)).flatten(1)) * scale + torch::real(wave).sum();
    if (step >= 3) output = output + late;
    return output;
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::Tensor scale{}, unused{}, late{}, wave{};
};

torch::Tensor images_of(int step) {
  return (torch::arange(step * 100, step * 100 + 12 * 3 * 4 * 4, torch::kFloat64).reshape({12, 3, 4, 4}) * 0.37).sin();
}

template <class Net, class Optimizer>
void train(ry::Worker& worker, Net& net, Optimizer& optimizer, int from, int to) {
  torch::optim::StepLR scheduler(optimizer, 2, 0.9);
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    const ry::detail::Range rows = ry::detail::part_of({0, 12}, static_cast<std::size_t>(worker.rank()),
                                                       static_cast<std::size_t>(worker.world_size()));
    worker.samples(rows.size());
    const auto images =
        images_of(step).slice(0, static_cast<std::int64_t>(rows.begin), static_cast<std::int64_t>(rows.end));
    net->forward(images, step).pow(2).mean().backward();
    optimizer.step();
    scheduler.step();
  }
}

std::vector<double> weights_of(const torch::nn::Module& net) {
  std::vector<double> weights;
  for (const auto& parameter : net.parameters()) {
    const auto flat = ry::detail::as_real(parameter.detach()).contiguous().view(-1);
    weights.insert(weights.end(), flat.template data_ptr<double>(), flat.template data_ptr<double>() + flat.numel());
  }
  return weights;
}

double farthest(const std::vector<double>& one, const std::vector<double>& other) {
  REQUIRE(one.size() == other.size());
  double most = 0;
  for (std::size_t i = 0; i < one.size(); ++i) most = std::max(most, std::abs(one[i] - other[i]));
  return most;
}

// A training after its sixth step, and its weights after the tenth.
struct Saved {
  ry::State net{};
  ry::State optimizer{};
  std::vector<double> weights{};
};

template <class X, class Options, class Run>
Saved train_and_save_on(int workers, const Options& options, const Run& run) {
  Shelf nets(workers);
  Shelf optimizers(workers);
  std::vector<double> weights;
  run([&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Divided>(); });
    auto optimizer = ry::prepare_optimizer<X>(worker, net, options);
    train(worker, net, optimizer, 0, 6);
    nets.put(worker.rank(), taken(net));
    optimizers.put(worker.rank(), taken(optimizer));
    EXPECT(optimizer.is_sharded() == (workers > 1));
    train(worker, net, optimizer, 6, 10);
    if (worker.rank() == 0) weights = weights_of(*net);
  });
  return {nets.whole(), optimizers.whole(), weights};
}

template <class X, class Options>
Saved train_and_save(int workers, const Options& options) {
  return train_and_save_on<X>(workers, options, [workers](auto train) { test::on_threads(workers, train); });
}

// Goes on from what was saved, with weights of another seed before, after some steps of its own.
template <class X, class Options, class Run>
std::vector<double> go_on(const Saved& saved, const Options& options, const Run& run) {
  std::vector<double> weights;
  run([&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Divided>(); });
    auto optimizer = ry::prepare_optimizer<X>(worker, net, options);
    train(worker, net, optimizer, 20, 24);
    worker.barrier();
    put(net, saved.net);
    put(optimizer, saved.optimizer);
    worker.barrier();
    train(worker, net, optimizer, 6, 10);
    if (worker.rank() == 0) weights = weights_of(*net);
  });
  return weights;
}

template <class X, class Options>
void check_ranks(const Options& options) {
  for (const int workers : {1, 2, 3}) {
    const Saved saved = train_and_save<X>(workers, options);
    for (const int others : {1, 2, 3}) {
      INFO("saved on " << workers << ", loaded on " << others);
      const auto weights = go_on<X>(saved, options, [others](auto train) { test::on_threads(others, train, 99); });
      if (others == workers) {
        CHECK(weights == saved.weights);
      } else {
        CHECK(farthest(weights, saved.weights) < 1e-9);  // another order of sums
      }
    }
  }
}

}  // namespace

TEST_CASE("state of ranks: SGD and Adam go on with equal bits, and on any other number of ranks") {
  check_ranks<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
  check_ranks<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
}

TEST_CASE("state of ranks: AdamW, RMSprop and Adagrad do so as well") {
  check_ranks<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
  check_ranks<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  check_ranks<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05));
}

TEST_CASE("state of ranks: what one rank knows alone is saved once, and nothing of what nobody has used") {
  const Saved saved = train_and_save<torch::optim::Adam>(3, torch::optim::AdamOptions(0.01));
  std::map<std::string, int> parameters;
  for (const auto& tensor : saved.optimizer.tensors) ++parameters[tensor.name.substr(0, tensor.name.rfind('.'))];
  CHECK(parameters.size() == 6);  // of seven: "unused" is the other
  for (const auto& [name, count] : parameters) {
    INFO(name);
    CHECK(count == 3);
    const ry::StateTensor* step = saved.optimizer.find_tensor(name + ".step");
    REQUIRE(step != nullptr);
    std::int64_t number = 0;
    step->read(0, 1, reinterpret_cast<std::byte*>(&number));
    CHECK((number == 6 || number == 3));  // three steps of the one that is used late
  }
}

TEST_CASE("state of ranks: pieces become a plain optimizer's state, and the other way round") {
  const torch::optim::AdamOptions options(0.01);
  const Saved saved = train_and_save<torch::optim::Adam>(3, options);
  Saved plain;
  test::on_threads(1, [&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Divided>(); });
    torch::optim::Adam optimizer(net->parameters(), options);
    put(net, saved.net);
    put(optimizer, saved.optimizer);
    plain.net = taken(net);
    plain.optimizer = taken(optimizer);
    train(worker, net, optimizer, 6, 10);
    plain.weights = weights_of(*net);
  });
  CHECK(farthest(plain.weights, saved.weights) < 1e-9);
  const auto weights = go_on<torch::optim::Adam>(plain, options, [](auto train) { test::on_threads(2, train, 99); });
  CHECK(farthest(weights, saved.weights) < 1e-9);
}

TEST_CASE("state of ranks: processes write the weights that they share, each its piece") {
  const torch::optim::AdamOptions options(0.01);
  const Saved saved = train_and_save<torch::optim::Adam>(2, options);
  const auto metrics = test::on_processes(2, [&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Divided>(); });
    auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, options);
    train(worker, net, optimizer, 20, 23);
    const auto before = weights_of(*net);
    worker.barrier();
    if (worker.rank() == 0) put(net, saved.net);
    worker.barrier();
    const auto half_way = weights_of(*net);
    worker.barrier();
    if (worker.rank() == 1) put(net, saved.net);
    put(optimizer, saved.optimizer);
    worker.barrier();
    const auto after = weights_of(*net);
    std::size_t num_first = 0;
    std::size_t num_second = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (half_way[i] != before[i]) ++num_first;
      if (after[i] != half_way[i]) ++num_second;
    }
    EXPECT(num_first > 100);
    EXPECT(num_second > 100);
    train(worker, net, optimizer, 6, 10);
    EXPECT(weights_of(*net) == saved.weights);
    worker.report({{"done", true}});
  });
  CHECK(metrics.at("done").as<bool>());
}

TEST_CASE("state of ranks: where memory is not shared each rank writes its own weights") {
  const torch::optim::SGDOptions options(0.05);
  const Saved saved = train_and_save<torch::optim::SGD>(2, options);
  const auto run = [](auto train) {
    static_cast<void>(test::try_run<ry::Local, ry::Threads>(2, train, 99).value_or_throw());
  };
  CHECK(farthest(go_on<torch::optim::SGD>(saved, options, run), saved.weights) < 1e-9);
}

TEST_CASE("state of ranks: two hosts of two save each piece once, and go on alike on any hosts and ranks") {
  const torch::optim::AdamOptions options(0.01);
  const auto on_hosts = [](auto train) {
    static_cast<void>(test::try_run<railyard_test::GlooOnTwoHosts, ry::Threads>(4, train, 99).value_or_throw());
  };
  const Saved saved = train_and_save_on<torch::optim::Adam>(4, options, on_hosts);
  CHECK(go_on<torch::optim::Adam>(saved, options, on_hosts) == saved.weights);
  for (const int others : {1, 3, 4}) {
    INFO("loaded on " << others);
    const auto run = [others](auto train) { test::on_threads(others, train, 99); };
    CHECK(farthest(go_on<torch::optim::Adam>(saved, options, run), saved.weights) < 1e-9);
    const Saved of_others = train_and_save<torch::optim::Adam>(others, options);
    CHECK(farthest(go_on<torch::optim::Adam>(of_others, options, on_hosts), of_others.weights) < 1e-9);
  }
}

TEST_CASE("state of ranks: another model's state is refused on every rank, whatever pieces it has") {
  const Saved saved = train_and_save<torch::optim::SGD>(2, torch::optim::SGDOptions(0.05).momentum(0.9));
  test::on_threads(3, [&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(3, 2); });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    std::string error;
    try {
      put(optimizer, saved.optimizer);
    } catch (const ry::ConfigError& caught) {
      error = caught.what();
    }
    EXPECT(error.find("groups.0.parameters is Float[2, 3], Float[2] here, and was Double[1]") != std::string::npos);
  });
}
