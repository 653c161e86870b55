// SPDX-License-Identifier: MIT
// However many workers train on the same global batches, they end where one plain loop ends.
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "equal_net.hpp"
#include "run.hpp"
#include "support/catch.hpp"
#include "support/pretended_hosts.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace ry = railyard;

namespace equality {  // suites are compiled as one source as well

namespace {

namespace optim = torch::optim;
using Weights = std::vector<torch::Tensor>;
using test::batch_size;
using test::equal_net;
using test::num_samples;
using test::samples_of;

constexpr int num_epochs = 3;

struct Setting {
  torch::Dtype dtype = torch::kDouble;
  std::size_t micro_batches = 1;
  double max_norm = 0;  // 0: no clipping
};

torch::Tensor loss_of(torch::nn::Sequential& net, const torch::Tensor& data, const torch::Tensor& target) {
  return torch::cross_entropy_loss(net->forward(data), target);
}

template <class X, class Options>
Weights trained_alone(const Options& options, const Setting& setting) {
  auto net = equal_net(setting.dtype);
  X optimizer(net->parameters(), options);
  const auto [data, target] = samples_of(setting.dtype);
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    for (std::int64_t begin = 0; begin < num_samples; begin += batch_size) {
      const std::int64_t end = std::min(begin + batch_size, num_samples);
      optimizer.zero_grad();
      loss_of(net, data.slice(0, begin, end), target.slice(0, begin, end)).backward();
      if (setting.max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), setting.max_norm);
      optimizer.step();
    }
  }
  return net->parameters();
}

template <class Optimizer, class Clip>
void train(ry::Worker& worker, torch::nn::Sequential& net, Optimizer& optimizer, const Setting& setting,
           const Clip& clip) {
  auto loader = ry::prepare_loader(
      worker, samples_of(setting.dtype),
      {.global_batch_size = batch_size, .drives_step = true, .micro_batches = setting.micro_batches});
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    optimizer.zero_grad();
    for (const auto& batch : loader) {
      loss_of(net, batch.data, batch.target).backward();
      if (!batch.completes_step()) continue;
      if (setting.max_norm > 0) clip();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
}

double largest_difference(const Weights& one, const Weights& other) {
  double largest = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    largest = std::max(largest, (one[i] - other[i]).abs().max().item<double>());
  }
  return largest;
}

// Trains with a plain optimizer and with a prepared one, and returns how far from expected the worse of them ends.
template <class X, class Options>
double trained_together(ry::Worker& worker, const Options& options, const Setting& setting, const Weights& expected) {
  auto net = ry::prepare_model(worker, [&] { return equal_net(setting.dtype); });
  X plain(net->parameters(), options);
  train(worker, net, plain, setting, [&] { torch::nn::utils::clip_grad_norm_(net->parameters(), setting.max_norm); });
  auto other = ry::prepare_model(worker, [&] { return equal_net(setting.dtype); });
  auto prepared = ry::prepare_optimizer<X>(worker, other, options);
  train(worker, other, prepared, setting, [&] { ry::clip_grad_norm_(prepared, setting.max_norm); });
  return std::max(largest_difference(net->parameters(), expected), largest_difference(other->parameters(), expected));
}

// Returns a training function that fails unless it ends where a plain loop does.
template <class X, class Options>
auto equal_to_plain(const Options& options, const Setting& setting, double tolerance) {
  const Weights expected = trained_alone<X>(options, setting);
  return [=](auto& worker) {
    const double difference = trained_together<X>(worker, options, setting, expected);
    test::expect(difference < tolerance, fmt::format("less than {} on rank {} of {}, not {}", tolerance, worker.rank(),
                                                     worker.world_size(), difference));
  };
}

// Of a norm that every gradient of these trainings exceeds.
constexpr double small_norm = 0.02;

// Calls visit with every setting of a training.
template <class Visit>
void for_each_setting(torch::Dtype dtype, const Visit& visit) {
  for (const std::size_t micro_batches : {1U, 3U}) {
    for (const double max_norm : {0.0, small_norm}) {
      INFO(micro_batches << " micro-batches, norm " << max_norm);
      visit(Setting{.dtype = dtype, .micro_batches = micro_batches, .max_norm = max_norm});
    }
  }
}

// Compares on all numbers of workers, and by every way in which the ranks of a host exchange gradients.
template <class X, class Options>
void compare_with_plain(const Options& options, torch::Dtype dtype, double tolerance) {
  for_each_setting(dtype, [&](const Setting& setting) {
    const auto train_function = equal_to_plain<X>(options, setting, tolerance);
    for (const int workers : {1, 2, 3, 4, 7}) {
      INFO(workers << " workers");
      CHECK(test::try_run<ry::Local, ry::Threads>(workers, train_function).error() == "");
      CHECK(test::try_run<ry::SharedMemory, ry::Threads>(workers, train_function).error() == "");
      CHECK(test::try_run<ry::Gloo, ry::Processes>(workers, train_function).error() == "");
    }
  });
}

}  // namespace

TEST_CASE(
    "TRAPS 14: SGD in f32 trains on 1, 2, 3, 4 and 7 workers as it does alone, to 1e-6 (FAULTS D1, D2, D3, D4, D36)") {
  compare_with_plain<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9), torch::kFloat, 1e-6);
}

TEST_CASE("TRAPS 14: SGD in f64 trains on 1, 2, 3, 4 and 7 workers as it does alone, to 1e-10") {
  compare_with_plain<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3), torch::kDouble, 1e-10);
}

TEST_CASE("TRAPS 14: Adam in f64 trains on 1, 2, 3, 4 and 7 workers as it does alone, to 1e-10") {
  compare_with_plain<optim::Adam>(optim::AdamOptions(0.02).weight_decay(1e-3), torch::kDouble, 1e-10);
}

TEST_CASE("TRAPS 14: AdamW in f64 trains on 1, 2, 3, 4 and 7 workers as it does alone, to 1e-10") {
  compare_with_plain<optim::AdamW>(optim::AdamWOptions(0.02), torch::kDouble, 1e-10);
}

TEST_CASE("TRAPS 14: Adagrad in f64 trains on 1, 2, 3, 4 and 7 workers as it does alone, to 1e-10") {
  compare_with_plain<optim::Adagrad>(optim::AdagradOptions(0.05), torch::kDouble, 1e-10);
}

TEST_CASE("TRAPS 14: RMSprop in f64 trains on 1, 2, 3, 4 and 7 workers as it does alone, to 1e-10") {
  compare_with_plain<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5), torch::kDouble, 1e-10);
}

TEST_CASE("Training equality: over TCP, too, 2 and 3 workers train as one does alone") {
  for_each_setting(torch::kDouble, [&](const Setting& setting) {
    const auto train_function = equal_to_plain<optim::AdamW>(optim::AdamWOptions(0.02), setting, 1e-10);
    for (const int workers : {2, 3}) {
      const ry::Gloo::Options over_tcp{.transport = ry::GlooTransport::tcp};
      CHECK(test::try_run<ry::Gloo, ry::Threads>(workers, train_function, 3, over_tcp).error() == "");
    }
  });
}

// Ranks of equally many on each host, and of one more on the second.
template <class X, class Options>
void compare_on_two_hosts(const Options& options, torch::Dtype dtype, double tolerance) {
  for_each_setting(dtype, [&](const Setting& setting) {
    const auto train_function = equal_to_plain<X>(options, setting, tolerance);
    for (const int workers : {4, 5}) {
      INFO(workers << " workers");
      const auto result = test::try_run<railyard_test::GlooOnTwoHosts, ry::Processes>(workers, train_function);
      CHECK(result.error() == "");
    }
  });
}

TEST_CASE("Training equality: on two hosts SGD trains as it does alone, to 1e-6 in f32") {
  compare_on_two_hosts<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9), torch::kFloat, 1e-6);
}

TEST_CASE("Training equality: on two hosts Adam trains as it does alone, to 1e-10 in f64") {
  compare_on_two_hosts<optim::Adam>(optim::AdamOptions(0.02).weight_decay(1e-3), torch::kDouble, 1e-10);
}

TEST_CASE("Training equality: what is compared depends on clipping, and moves by more than the tolerance") {
  const optim::SGDOptions options(0.1);
  const auto free = trained_alone<optim::SGD>(options, {});
  const auto clipped = trained_alone<optim::SGD>(options, {.max_norm = small_norm});
  CHECK(largest_difference(free, equal_net(torch::kDouble)->parameters()) > 0.01);
  CHECK(largest_difference(clipped, equal_net(torch::kDouble)->parameters()) > 1e-3);
  CHECK(largest_difference(free, clipped) > 0.01);
}

TEST_CASE("FAULTS D1: a rank with one sample of a batch and others with none, which are NaN, train as one worker") {
  const optim::SGDOptions options(0.1);
  const Weights expected = trained_alone<optim::SGD>(options, {});
  const auto check = [&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return equal_net(torch::kDouble); });
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, options);
    const auto [data, target] = samples_of(torch::kDouble);
    for (std::int64_t step = 0; step < num_epochs * 4; ++step) {
      const std::int64_t begin = step % 4 * batch_size;
      const std::int64_t end = std::min(begin + batch_size, num_samples);
      const bool is_last = worker.rank() + 1 == worker.world_size();
      const std::int64_t from = is_last ? begin + (worker.world_size() > 1 ? 1 : 0) : begin;
      const std::int64_t to = is_last ? end : worker.rank() == 0 ? begin + 1 : begin;
      worker.samples(static_cast<std::uint64_t>(to - from));
      optimizer.zero_grad();
      if (to > from) {
        loss_of(net, data.slice(0, from, to), target.slice(0, from, to)).backward();
      } else {
        (loss_of(net, data, target) * std::numeric_limits<double>::quiet_NaN()).backward();
      }
      optimizer.step();
    }
    EXPECT(largest_difference(net->parameters(), expected) < 1e-10);
  };
  for (const int workers : {1, 2, 4}) {
    CHECK(test::try_run<ry::Local, ry::Threads>(workers, check).error() == "");
    CHECK(test::try_run<ry::SharedMemory, ry::Threads>(workers, check).error() == "");
  }
}

namespace {

// Trains with dropout and a new order in each epoch; returns the bits of all weights, folded into one number.
std::int64_t trained_bits(bool is_prepared) {
  const auto fold = [](const Weights& weights) {
    std::uint64_t bits = 0;
    for (const auto& weight : weights) {
      const auto words = weight.detach().contiguous().view(torch::kInt).view(-1);
      for (std::int64_t i = 0; i < words.numel(); ++i) {
        bits = (bits ^ static_cast<std::uint32_t>(words.data_ptr<int>()[i])) * 0x100000001b3ULL;
      }
    }
    return static_cast<std::int64_t>(bits >> 1U);
  };
  const auto train_once = [&fold](ry::Worker& worker, torch::nn::Sequential& net, auto& optimizer) {
    auto loader = ry::prepare_loader(worker, samples_of(torch::kFloat),
                                     {.global_batch_size = batch_size, .shuffle = true, .drives_step = true});
    for (int epoch = 0; epoch < num_epochs; ++epoch) {
      for (const auto& batch : loader) {
        optimizer.zero_grad();
        loss_of(net, torch::dropout(batch.data, 0.3, true), batch.target).backward();
        optimizer.step();
      }
    }
    worker.report({{"bits", fold(net->parameters())}});
  };
  const auto metrics = test::on_processes(3, [&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return equal_net(torch::kFloat); });
    const optim::AdamOptions options(0.02);
    if (is_prepared) {
      auto optimizer = ry::prepare_optimizer<optim::Adam>(worker, net, options);
      train_once(worker, net, optimizer);
    } else {
      optim::Adam optimizer(net->parameters(), options);
      train_once(worker, net, optimizer);
    }
  });
  return metrics.at("bits").as<std::int64_t>();
}

}  // namespace

TEST_CASE("FAULTS D31: two runs of processes have the same bits, with dropout and shuffled data") {
  for (const bool is_prepared : {false, true}) {
    const auto first = trained_bits(is_prepared);
    for (int run = 0; run < 3; ++run) CHECK(trained_bits(is_prepared) == first);
  }
}

}  // namespace equality
