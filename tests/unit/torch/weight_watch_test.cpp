// SPDX-License-Identifier: MIT
// Weights that some ranks alone have written to are found, and what is legitimate is left alone.
#include "railyard/torch/detail/weight_watch.hpp"
#include "railyard/torch/detail/pass_numbers.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/replicas.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/pretended_hosts.hpp"

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace weight_watch {  // suites are compiled as one source as well

namespace ry = railyard;
using Catch::ContainsSubstring;

// A frozen weight, one in a half type, complex numbers, one with gaps between its rows, and one that takes many turns.
struct Net : torch::nn::Module {
  Net() {
    const auto filled = [](std::vector<std::int64_t> shape, torch::ScalarType type = torch::kFloat) {
      std::int64_t count = 1;
      for (const std::int64_t size : shape) count *= size;
      return (torch::arange(count) * 0.7).sin().view(shape).to(type);
    };
    large = register_parameter("large", filled({300, 100}));
    frozen = register_parameter("frozen", filled({40}), /*requires_grad=*/false);
    half = register_parameter("half", filled({50}, torch::kBFloat16));
    waves = register_parameter("waves", filled({20}, torch::kComplexFloat));
    gaps = register_parameter("gaps", filled({6, 10}).narrow(1, 2, 5));
    bias = register_parameter("bias", torch::zeros({7}));
  }
  [[nodiscard]] torch::Tensor loss(double factor) const {
    return ((large * large).sum() * factor + half.to(torch::kFloat).sum() + torch::real(waves).sum() + gaps.sum() +
            bias.sum() + frozen.sum()) *
           0.01;
  }
  torch::Tensor large, frozen, half, waves, gaps, bias;
};

std::shared_ptr<Net> prepared(ry::Worker& worker, const ry::ModelOptions& options = {}) {
  return ry::prepare_model(
      worker, [] { return std::make_shared<Net>(); }, options);
}

using Disturb = std::function<void(ry::Worker&, Net&, int)>;

// Every weight has had its turn after so many steps.
constexpr int all_turns = static_cast<int>(ry::detail::WeightWatch::most_turns) + 2;

// Trains with a plain optimizer; `disturb` may write to weights after each step.
auto training(Disturb disturb, const ry::ModelOptions& options = {}, int num_steps = all_turns) {
  return [=](auto& worker) {
    auto net = prepared(worker, options);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 1; step <= num_steps; ++step) {
      optimizer.zero_grad();
      worker.samples(1);
      net->loss(worker.rank() + 1.0).backward();
      optimizer.step();
      worker.end_step();
      const torch::NoGradGuard no_grad;
      disturb(worker, *net, step);
    }
  };
}

Disturb written_on(int rank, std::function<void(Net&)> write) {
  return [=](ry::Worker& worker, Net& net, int step) {
    if (worker.rank() == rank && step == 1) write(net);
  };
}

TEST_CASE("Weights: what one rank alone writes to a weight is found, and named with rank and step (FAULTS D34)") {
  for (const int rank : {0, 2}) {
    const auto error = test::error_of(3, training(written_on(rank, [](Net& net) { net.large.add_(1); })));
    CHECK_THAT(error, ContainsSubstring("the parameter \"large\" had other values on rank " + std::to_string(rank) +
                                        " than on rank " + (rank == 0 ? "1" : "0")) &&
                          ContainsSubstring("when step ") && ContainsSubstring("ModelOptions::compare_weights"));
  }
}

TEST_CASE("Weights: what one process alone writes to a weight is found, through shared memory and by TCP") {
  const auto train = training(written_on(1, [](Net& net) { net.large.add_(1); }));
  CHECK_THAT(test::error_on_processes(2, train),
             ContainsSubstring("the parameter \"large\" had other values on rank 1 than on rank 0"));
}

TEST_CASE("Weights: a few elements are found within as many steps as there are turns, whatever the weight") {
  const auto found = [](std::function<void(Net&)> write, const std::string& name) {
    CHECK_THAT(test::error_of(2, training(written_on(1, std::move(write)))),
               ContainsSubstring("the parameter \"" + name + "\" had other values on rank 1 than on rank 0"));
  };
  found([](Net& net) { net.large[299][99] = 3; }, "large");
  found([](Net& net) { net.frozen[3] = 5; }, "frozen");
  found([](Net& net) { net.half.mul_(2); }, "half");
  found([](Net& net) { net.waves.neg_(); }, "waves");
  found([](Net& net) { net.gaps[5][4] = 2; }, "gaps");
  found([](Net& net) { net.bias[6] = std::numeric_limits<float>::quiet_NaN(); }, "bias");
}

TEST_CASE("WeightWatch: every element has its turn in 64 steps, of many weights and of one") {
  for (const std::int64_t num_weights : {1, 3, 700, 2000}) {
    for (const std::int64_t size : {1, 50, 3001}) {
      std::vector<ry::detail::GradientSlot> slots(static_cast<std::size_t>(num_weights));
      for (auto& slot : slots) slot.parameter = torch::zeros({size});
      ry::detail::WeightWatch watch;
      watch.reset(slots);
      std::vector<double> numbers;
      for (int step = 0; step < 64; ++step) {
        watch.look(slots, static_cast<std::uint64_t>(step));
        numbers.push_back(watch.number());
      }
      // An element that is looked at changes what is seen by more than is tolerated.
      auto& last = slots.back().parameter;
      auto& first = slots.front().parameter;
      for (auto* element : {first.data_ptr<float>(), last.data_ptr<float>() + size - 1}) {
        *element = 1;
        bool is_seen = false;
        for (int step = 0; step < 64; ++step) {
          watch.look(slots, static_cast<std::uint64_t>(step));
          is_seen = is_seen || std::abs(watch.number() - numbers[static_cast<std::size_t>(step)]) > 0.01;
        }
        CHECK(is_seen);
        *element = 0;
      }
    }
  }
}

using Slots = std::vector<ry::detail::GradientSlot>;

// Whether ranks of these numbers are told apart by the sums of what they say.
bool are_apart(const std::vector<double>& seen) {
  const ry::detail::PassNumbers passes{static_cast<int>(seen.size())};
  std::vector<double> sums(passes.count());
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    passes.add({.weights_seen = seen[rank]}, static_cast<int>(rank), sums);
  }
  return passes.summary_of(sums).are_weights_apart;
}

// In how many of 192 steps, three turns of each weight, two ranks of these weights are told apart.
int num_apart(const torch::Tensor& weights, const torch::Tensor& others) {
  const auto seen_of = [](const torch::Tensor& parameter) {
    Slots slots(1);
    slots[0].parameter = parameter;
    ry::detail::WeightWatch watch;
    watch.reset(slots);
    std::vector<double> seen;
    for (std::uint64_t step = 0; step < 192; ++step) {
      watch.look(slots, step);
      seen.push_back(watch.number());
    }
    return seen;
  };
  const auto seen = seen_of(weights);
  const auto other = seen_of(others);
  int count = 0;
  for (std::size_t step = 0; step < seen.size(); ++step) count += are_apart({seen[step], other[step]}) ? 1 : 0;
  return count;
}

TEST_CASE("WeightWatch: of weights drawn around zero every change but one by rounding is seen (FAULTS D34)") {
  torch::manual_seed(1);
  const auto type = GENERATE(torch::kFloat, torch::kBFloat16);
  INFO(type);
  const auto weights = (torch::randn({2000, 768}) * 0.02).to(type);
  const auto after = [&](const std::function<void(torch::Tensor&)>& change) {
    torch::Tensor changed = weights.clone();
    change(changed);
    return num_apart(weights, changed);
  };
  CHECK(after([](torch::Tensor&) {}) == 0);
  CHECK(after([](torch::Tensor& w) { w.mul_(1 + torch::randn_like(w) * 2e-6); }) == 0);
  CHECK(after([](torch::Tensor& w) { w.add_(torch::randn_like(w) * 0.0006); }) >= 60);
  CHECK(after([](torch::Tensor& w) { w.add_(torch::randn_like(w).sign() * 64e-5); }) >= 60);  // as by Adam, of 1e-5
  CHECK(after([](torch::Tensor& w) { w[777] = torch::randn({768}) * 0.02; }) >= 1);
  CHECK(after([](torch::Tensor& w) { w[777].zero_(); }) >= 1);
  CHECK(after([](torch::Tensor& w) { w[777][3] = 1; }) >= 1);
  CHECK(after([](torch::Tensor& w) { w[777] = w[778].clone(); }) >= 1);
  if (type == torch::kFloat) CHECK(after([](torch::Tensor& w) { w.add_(torch::randn_like(w).sign() * 1e-5); }) >= 120);
}

TEST_CASE("WeightWatch: as many equal ranks as one likes are not apart, and one among them is") {
  for (const double size : {0.0, 1e-9, 0.02, 300.0}) {
    Slots slots(64);
    for (auto& slot : slots) slot.parameter = torch::full({4}, size);
    for (std::size_t odd = 0; odd < slots.size(); odd += 3) slots[odd].parameter.zero_();
    ry::detail::WeightWatch watch;
    watch.reset(slots);
    watch.look(slots, 0);
    for (const std::size_t num_ranks : {2U, 48U, 96U, 120U, 1000U, 2000U, 5000U}) {
      INFO(size << " on " << num_ranks);
      std::vector<double> seen(num_ranks, watch.number());
      CHECK_FALSE(are_apart(seen));
      for (const double difference : {2e-3, -1.0, 100.0}) {
        seen[num_ranks / 2] = watch.number() + difference;
        CHECK(are_apart(seen));
      }
    }
  }
}

TEST_CASE("Weights: optimizers of other settings on some ranks are found by what they do to weights") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = prepared(worker);
                              torch::optim::SGD optimizer(net->parameters(),
                                                          torch::optim::SGDOptions(worker.rank() == 0 ? 0.1 : 0.2));
                              for (int step = 0; step < all_turns; ++step) {
                                optimizer.zero_grad();
                                worker.samples(1);
                                net->loss(1).backward();
                                optimizer.step();
                              }
                            }),
             ContainsSubstring("on rank 1 than on rank 0") && ContainsSubstring("other settings"));
}

TEST_CASE("Weights: of several models the one is named that differs") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto first = ry::prepare_model(worker, [] { return torch::nn::Linear(9, 9); });
                              auto second = prepared(worker);
                              for (int step = 0; step < all_turns; ++step) {
                                worker.samples(1);
                                (first->weight.sum() + first->bias.sum()).backward();
                                second->loss(1).backward();
                                const torch::NoGradGuard no_grad;
                                if (step == 1 && worker.rank() == 1) second->gaps.zero_();
                              }
                            }),
             ContainsSubstring("\"gaps\"") && ContainsSubstring("on rank 1"));
}

TEST_CASE("Weights: one copy per host is written to on one host alone, and both its ranks differ from the others") {
  const auto train = [](bool is_on_all) {
    return [is_on_all](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(64, 64); });
      auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
      EXPECT(optimizer.is_sharded());
      for (int step = 0; step < all_turns; ++step) {
        optimizer.zero_grad();
        worker.samples(1);
        net->forward(torch::ones({1, 64})).sum().backward();
        optimizer.step();
        worker.end_step();
        const torch::NoGradGuard no_grad;
        worker.barrier();
        const bool is_first_of_host = worker.host_memory()->rank() == 0;
        if (step == 1 && is_first_of_host && (is_on_all || worker.rank() == 2)) net->weight.mul_(3);
        worker.barrier();
      }
    };
  };
  const auto error = [&train](bool is_on_all) {
    return test::try_run<railyard_test::GlooOnTwoHosts, ry::Threads>(4, train(is_on_all)).error();
  };
  CHECK_THAT(error(false), ContainsSubstring("the parameter \"weight\" had other values on rank 2 than on rank 0"));
  CHECK(error(true) == "");
}

TEST_CASE("Weights: what all ranks write alike, and steps that are left out, are no difference") {
  CHECK(test::error_of(2, training([](ry::Worker&, Net& net, int step) {
                         net.large.clamp_(-0.5, 0.5);
                         if (step == 3) net.frozen.add_(1);
                         if (step == 5) net.bias.fill_(0);
                       })) == "");
  for (const auto policy : {ry::NonFinite::skip, ry::NonFinite::allow}) {
    CHECK(test::error_of(2, [policy](auto& worker) {
            auto net = prepared(worker, {.non_finite = policy});
            torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
            for (int step = 0; step < all_turns; ++step) {
              optimizer.zero_grad();
              worker.samples(1);
              const bool is_bad = step == 2 && worker.rank() == 1;
              net->loss(is_bad ? std::numeric_limits<double>::quiet_NaN() : 1).backward();
              optimizer.step();
            }
          }) == "");
  }
}

TEST_CASE("Weights: each rank may change them for a pass and put them back, and round otherwise than the others") {
  CHECK(test::error_of(2, [](auto& worker) {
          auto net = prepared(worker);
          torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
          for (int step = 0; step < all_turns; ++step) {
            optimizer.zero_grad();
            worker.samples(1);
            const auto kept = net->large.detach().clone();
            if (step > 0) net->large.data().add_(worker.rank() + 1);  // the first one compares what it is done with
            net->loss(1).backward();
            net->large.data().copy_(kept);
            optimizer.step();
          }
        }) == "");
  CHECK(test::error_of(2, training([](ry::Worker& worker, Net& net, int) {
                         if (worker.rank() == 1) net.large.mul_(1 + 1e-6);
                       })) == "");
}

TEST_CASE("Weights: a model that is prepared again within a step has equal weights from there on") {
  CHECK(test::error_of(2, [](auto& worker) {
          auto net = prepared(worker);
          for (int step = 0; step < 2; ++step) {
            if (step == 1) {
              const torch::NoGradGuard no_grad;
              net->large.add_(worker.rank());
            }
            worker.samples(1);
            if (step == 1) net = ry::prepare_model(worker, net);
            net->loss(1).backward();
          }
        }) == "");
}

TEST_CASE("ModelOptions: weights that are meant to differ may, where compare_weights is false") {
  CHECK(test::error_of(2, [](auto& worker) {
          auto net = prepared(worker, {.compare_weights = false});
          const torch::NoGradGuard no_grad;
          net->large.add_(worker.rank());
          const torch::AutoGradMode with_gradients{true};
          worker.samples(1);
          net->loss(1).backward();
        }) == "");
  CHECK(test::error_of(2, training(written_on(1, [](Net& net) { net.large.add_(1); }), {.compare_weights = false})) ==
        "");
}

// Trains layers of odd sizes; returns how weights differ between ranks after that.
template <class Optimizer, class Options>
std::string difference_after(ry::Worker& worker, const Options& settings) {
  auto net = ry::prepare_model(worker, [] {
    return torch::nn::Sequential(torch::nn::Linear(13, 67), torch::nn::Tanh(), torch::nn::Linear(67, 1031),
                                 torch::nn::Tanh(), torch::nn::Linear(1031, 5));
  });
  Optimizer optimizer(net->parameters(), settings);
  for (int step = 0; step < 12; ++step) {
    optimizer.zero_grad();
    const std::int64_t rows = 3 + worker.rank();
    worker.samples(static_cast<std::uint64_t>(rows));
    const auto x = (torch::arange(rows * 13) * 0.3 + worker.rank() + step).sin().view({rows, 13});
    net->forward(x).square().mean().backward();
    optimizer.step();
  }
  return ry::replica_difference(worker, net);
}

void expect_equal_bits(ry::Worker& worker) {
  using namespace torch::optim;
  EXPECT(difference_after<SGD>(worker, SGDOptions(0.05).momentum(0.9).weight_decay(1e-3)) == "");
  EXPECT(difference_after<Adam>(worker, AdamOptions(1e-3).amsgrad(true)) == "");
  EXPECT(difference_after<AdamW>(worker, AdamWOptions(1e-3)) == "");
  EXPECT(difference_after<Adagrad>(worker, AdagradOptions(1e-2)) == "");
  EXPECT(difference_after<RMSprop>(worker, RMSpropOptions(1e-3).momentum(0.5).centered(true)) == "");
}

TEST_CASE("Weights: plain optimizers leave all ranks with equal bits") {
  const auto function = [](auto& worker) { expect_equal_bits(worker); };
  CHECK(test::error_of(3, function) == "");
  CHECK(test::error_on_processes(3, function) == "");
  CHECK(test::try_run<railyard_test::GlooOnTwoHosts, railyard::Processes>(4, function).error() == "");
}

}  // namespace weight_watch
