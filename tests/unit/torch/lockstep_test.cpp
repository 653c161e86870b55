// SPDX-License-Identifier: MIT
#include "railyard/torch/lockstep.hpp"

#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/sync_batch_norm.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

// As many batches of two samples as said, of which batch i holds 10 x rank + i.
std::vector<torch::Tensor> batches_of_rank(const ry::Worker& worker, int count) {
  std::vector<torch::Tensor> batches;
  for (int i = 0; i < count; ++i)
    batches.push_back(torch::full({2, 1}, 10.0F * static_cast<float>(worker.rank()) + static_cast<float>(i)));
  return batches;
}

// The gradient of its weight is the mean of what it is given.
auto one_weight(ry::Worker& worker) {
  return ry::prepare_model(worker, [] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
}

}  // namespace

TEST_CASE("lockstep: FAULTS A1: ranks with 1, 3 and 2 batches take 3 steps, and repeats count nothing") {
  const auto body = [](auto& worker) {
    auto net = one_weight(worker);
    const auto batches = batches_of_rank(worker, std::vector{1, 3, 2}[static_cast<std::size_t>(worker.rank())]);
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<double> gradients;
      std::vector<std::uint64_t> sizes;
      for (auto& [batch, size] : ry::lockstep(worker, batches)) {
        net->zero_grad();
        net->forward(batch).mean().backward();
        gradients.push_back(net->weight.grad().item().toDouble());
        sizes.push_back(size);
      }
      EXPECT(gradients == std::vector{(0 + 10 + 20) / 3.0, (11 + 21) / 2.0, 12.0});
      EXPECT(sizes == std::vector<std::vector<std::uint64_t>>{
                          {2, 0, 0}, {2, 2, 2}, {2, 2, 0}}[static_cast<std::size_t>(worker.rank())]);
    }
    EXPECT(worker.steps() == 6);
  };
  test::on_both_threads(3, body);
  test::on_processes(3, body);
}

TEST_CASE("lockstep: costs no collective beside the exchange of gradients (TRAPS 16)") {
  static_cast<void>(test::try_run<ry::Local, ry::Threads>(2, [](auto& worker) {
                      auto net = one_weight(worker);
                      const auto batches = batches_of_rank(worker, 3 + worker.rank());
                      std::uint64_t before = 0;
                      for (int step = 0; step < 4; ++step) {  // the order of gradients is learnt in the first ones
                        before = worker.page().collectives;
                        worker.samples(2);
                        net->forward(batches[0]).mean().backward();
                      }
                      const std::uint64_t of_step = worker.page().collectives - before;
                      EXPECT(of_step > 0);
                      for (auto& [batch, size] : ry::lockstep(worker, batches)) net->forward(batch).mean().backward();
                      EXPECT(worker.page().collectives - before == (1 + 4) * of_step);  // 4 of the loop
                    }).value_or_throw());
}

TEST_CASE("lockstep: batches of LibTorch's loaders, with a step whose backward pass is left out on all ranks") {
  test::on_both_threads(3, [](auto& worker) {
    const auto samples = torch::arange(3 + worker.rank()).to(torch::kFloat);
    auto dataset =
        torch::data::datasets::TensorDataset(samples).map(torch::data::transforms::Stack<torch::data::TensorExample>());
    const auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(std::move(dataset), 2);
    auto net = one_weight(worker);
    for (int epoch = 0; epoch < 2; ++epoch) {
      double sum = 0;
      int steps = 0;
      for (auto& [batch, size] : ry::lockstep(worker, *loader)) {
        if (size > 0) sum += batch.data.sum().item().toDouble();
        if (steps != 1) net->forward(batch.data.view({-1, 1})).mean().backward();
        ++steps;
      }
      EXPECT(steps == 3);
      EXPECT(sum == samples.sum().item().toDouble());
    }
  });
}

TEST_CASE("lockstep: TRAPS 17: a break on one rank is an error that names the rank and its step") {
  const auto error = test::error_of(2, [](auto& worker) {
    auto net = one_weight(worker);
    const auto batches = batches_of_rank(worker, 4);
    for (int epoch = 0; epoch < 2; ++epoch) {
      int step = 0;
      for (auto& [batch, size] : ry::lockstep(worker, batches)) {
        net->forward(batch).mean().backward();
        if (worker.rank() == 1 && ++step == 2) break;
      }
    }
  });
  CHECK_THAT(error, ContainsSubstring("in its step 3 rank 1 goes over the training data for the 2. time, rank 0 in its "
                                      "step 3 for the 1.") &&
                        ContainsSubstring("break") && ContainsSubstring("should_stop()"));
}

TEST_CASE("Loader: TRAPS 17: a break on one rank is an error that names the rank and its step") {
  const auto error = test::error_of(2, [](auto& worker) {
    auto net = one_weight(worker);
    auto loader = ry::prepare_loader(worker, {torch::ones({8, 1}), torch::ones({8, 1})},
                                     {.global_batch_size = 2, .drives_step = true});
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : loader) {
        net->forward(batch.data).mean().backward();
        if (worker.rank() == 0) break;
      }
    }
  });
  CHECK_THAT(error, ContainsSubstring("in its step 2 rank 1 goes over the training data for the 1. time, rank 0 in its "
                                      "step 2 for the 2."));
}

TEST_CASE("lockstep: TRAPS 18: repeats leave the statistics of plain BatchNorm alone, passes of one step together") {
  test::on_both_threads(2, [](auto& worker) {
    torch::nn::BatchNorm1d norm(3);
    auto net = ry::prepare_model(worker, [&norm] { return torch::nn::Sequential(torch::nn::Linear(1, 3), norm); });
    std::vector<torch::Tensor> batches;
    for (int i = 0; i < 1 + worker.rank(); ++i) batches.push_back(torch::arange(4).to(torch::kFloat).view({4, 1}) + i);
    for (auto& [batch, size] : ry::lockstep(worker, batches)) {
      net->forward(batch).square().sum().backward();
      net->forward(batch).square().sum().backward();
    }
    EXPECT(norm->num_batches_tracked.template item<std::int64_t>() == 2 * (1 + worker.rank()));
    const auto before = norm->running_mean.clone();
    worker.samples(worker.rank() == 0 ? 0 : 4);
    net->forward(batches[0] + 5).square().sum().backward();
    EXPECT(torch::equal(before, norm->running_mean) == (worker.rank() == 0));
  });
}

TEST_CASE("lockstep: TRAPS 18: synchronised BatchNorm follows the ranks that count, on all of them") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return ry::nn::BatchNorm1d(3); });
    ry::sync_batch_norm(worker, net);
    torch::manual_seed(1);
    const std::vector<torch::Tensor> batches(1 + static_cast<std::size_t>(worker.rank()),
                                             torch::arange(12).to(torch::kFloat).view({4, 3}));
    for (auto& [batch, size] : ry::lockstep(worker, batches)) {
      net->forward(size > 0 ? batch : batch * 100).square().sum().backward();
    }
    const auto all = ry::all_gather(worker, net->running_mean);
    EXPECT(torch::equal(all[0], all[1]));
    EXPECT(torch::allclose(net->running_mean, batches[0].mean(0) * (1 - 0.9 * 0.9)));
    EXPECT(net->num_batches_tracked.template item<std::int64_t>() == 2);
  });
}
