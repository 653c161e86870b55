// SPDX-License-Identifier: MIT
#include "railyard/torch/comm_hook_state.hpp"

#include "railyard/torch/power_sgd.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/state.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"
#include "support/memory_state.hpp"

#include <torch/torch.h>

#include <vector>

namespace ry = railyard;

namespace {

using railyard_test::put;
using railyard_test::Shelf;
using railyard_test::taken;

torch::nn::Linear prepared(ry::Worker& worker) {
  return ry::prepare_model(worker, [] { return torch::nn::Linear(20, 12); },
                           {.comm_hook = ry::PowerSgdHook{.rank = 1, .start_step = 2}});
}

void train(ry::Worker& worker, torch::nn::Linear& net, int from, int to) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    const auto input = (torch::arange(80).view({4, 20}) * (0.3 + 0.1 * worker.rank()) + step).sin();
    worker.samples(4);
    net->forward(input).pow(2).mean().backward();
    optimizer.step();
  }
}

// What all ranks have not sent yet, together.
torch::Tensor unsent(const ry::State& state) {
  const ry::StateTensor* errors = state.find_tensor("error.0");
  EXPECT(errors != nullptr);
  return ry::detail::saved_rows(*errors).whole().sum(0);
}

}  // namespace

TEST_CASE("CommHookState: PowerSgdHook goes on with equal bits, and elsewhere with all that was not sent") {
  Shelf nets(2);
  Shelf hooks(2);
  std::vector<torch::Tensor> expected;
  test::on_threads(2, [&](auto& worker) {
    auto net = prepared(worker);
    const ry::CommHookState hook{worker};
    train(worker, net, 0, 5);
    nets.put(worker.rank(), taken(net));
    hooks.put(worker.rank(), taken(hook));
    train(worker, net, 5, 9);
    worker.barrier();
    if (worker.rank() == 0) expected = net->parameters();
  });
  const ry::State saved_net = nets.whole();
  const ry::State saved_hook = hooks.whole();
  CHECK(saved_hook.at("steps.0").as<std::int64_t>() == 5);
  CHECK(unsent(saved_hook).abs().max().item<float>() > 0);

  const auto go_on = [&](int workers, bool with_hook) {
    bool is_equal = true;
    test::on_threads(workers, [&](auto& worker) {
      auto net = prepared(worker);
      ry::CommHookState hook{worker};
      train(worker, net, 20, 23);
      put(net, saved_net);
      if (with_hook) put(hook, saved_hook);
      train(worker, net, 5, 9);
      if (worker.rank() > 0) return;
      for (std::size_t i = 0; i < expected.size(); ++i)
        is_equal = is_equal && torch::equal(net->parameters()[i], expected[i]);
    });
    return is_equal;
  };
  CHECK(go_on(2, true));
  CHECK_FALSE(go_on(2, false));

  Shelf others(3);
  test::on_threads(3, [&](auto& worker) {
    auto net = prepared(worker);
    ry::CommHookState hook{worker};
    put(hook, saved_hook);
    others.put(worker.rank(), taken(hook));
    train(worker, net, 5, 9);
  });
  CHECK(torch::allclose(unsent(others.whole()), unsent(saved_hook)));
}

TEST_CASE("CommHookState: a hook without memory has no state") {
  test::on_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(2, 2); }, {.comm_hook = ry::Bf16Hook{}});
    ry::CommHookState hook{worker};
    EXPECT(taken(hook).values.empty());
    put(hook, ry::State{});
  });
}
