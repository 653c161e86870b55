// SPDX-License-Identifier: MIT
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ended_models {

namespace ry = railyard;

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl>;

std::ptrdiff_t num_alive(const std::vector<WeakTensor>& tensors) {
  return std::count_if(tensors.begin(), tensors.end(), [](const auto& weak) { return weak.use_count() > 0; });
}

// The gradient of every weight is what the ranks have put in, on average.
bool averages(ry::Worker& worker, torch::nn::Linear& net) {
  worker.samples(1);
  net->weight.mutable_grad().reset();
  net->forward(torch::full({1, 3}, static_cast<double>(worker.rank()))).sum().backward();
  const double mean = (worker.world_size() - 1) / 2.0;
  return torch::allclose(net->weight.grad(), torch::full({2, 3}, mean));
}

torch::nn::Linear make(ry::Worker& worker) {
  return ry::prepare_model(worker, [] { return torch::nn::Linear(3, 2); });
}

}  // namespace ended_models

TEST_CASE("prepare_model: of 200 models that were made and dropped in turn it remembers the last") {
  using namespace ended_models;
  test::on_both_threads(2, [](auto& worker) {
    auto first = make(worker);
    std::vector<WeakTensor> weights;
    for (int model = 0; model < 200; ++model) {
      auto net = make(worker);
      weights.emplace_back(net->weight.getIntrusivePtr());
      if (model % 20 == 0) EXPECT(averages(worker, net) && averages(worker, first));
    }
    EXPECT(num_alive(weights) == 1);
    auto last = make(worker);
    EXPECT(num_alive(weights) == 0);
    EXPECT(averages(worker, first) && averages(worker, last));
  });
}

TEST_CASE("prepare_model: of models that had divided optimizers it remembers none") {
  using namespace ended_models;
  test::on_processes(2, [](auto& worker) {
    std::vector<WeakTensor> weights;
    for (int model = 0; model < 5; ++model) {
      auto net = make(worker);
      weights.emplace_back(net->weight.getIntrusivePtr());
      auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
      worker.samples(1);
      net->forward(torch::ones({1, 3})).sum().backward();
      optimizer.step();
    }
    static_cast<void>(make(worker));
    EXPECT(num_alive(weights) == 0);
  });
}

TEST_CASE("prepare_model: a model that one rank still has, or a graph leads to, stays on all ranks") {
  using namespace ended_models;
  test::on_both_threads(2, [](auto& worker) {
    auto net = make(worker);
    auto graph = make(worker);
    const torch::Tensor weight = graph->bias;
    auto loss = graph->forward(torch::full({1, 3}, static_cast<double>(worker.rank()))).sum();
    graph = nullptr;
    if (worker.rank() == 1) net = nullptr;
    auto next = make(worker);
    worker.samples(1);
    loss.backward();
    EXPECT(weight.grad().defined() && averages(worker, next));
    loss.reset();
    net = nullptr;
    auto last = make(worker);
    EXPECT(averages(worker, next) && averages(worker, last));
  });
}

TEST_CASE(
    "prepare_model: one model more on one rank is an error, and nobody takes its values for others (FAULTS A12)") {
  using namespace ended_models;
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = make(worker);
                              if (worker.rank() == 1) auto other = make(worker);
                              auto optimizer =
                                  ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
                            }),
             ContainsSubstring("is at another call or at another model"));
}

TEST_CASE("prepare_model: makes sparse gradients dense on one worker as well (FAULTS D20, TRAPS 10)") {
  using namespace ended_models;
  test::on_both_threads(1, [](auto& worker) {
    auto table =
        ry::prepare_model(worker, [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 1).sparse(true)); });
    auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, table, torch::optim::AdamOptions(0.1));
    worker.samples(1);
    table(torch::tensor({1, 3})).sum().backward();
    EXPECT(!table->weight.grad().is_sparse());
    EXPECT(torch::equal(table->weight.grad().view(-1), torch::tensor({0.0F, 1.0F, 0.0F, 1.0F})));
    EXPECT(std::abs(ry::clip_grad_norm_(optimizer, 1.0) - std::sqrt(2.0)) < 1e-6);
    optimizer.step();
  });
}
