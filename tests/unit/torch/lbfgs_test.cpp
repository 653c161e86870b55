// SPDX-License-Identifier: MIT
// LBFGS, which asks for the loss and its gradients several times in a step and looks at all parameters at once, with
// prepare_model() alone.
#include "railyard/torch/prepare_model.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cstdint>

namespace ry = railyard;

namespace {

constexpr std::int64_t lbfgs_samples = 24;

// Without a generator: a plain loop and all workers begin alike.
torch::nn::Linear lbfgs_net() {
  torch::nn::Linear net(torch::nn::LinearOptions(4, 1));
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  net->weight.copy_(torch::linspace(-1, 1, 4, torch::kDouble).view({1, 4}));
  net->bias.fill_(0.5);
  return net;
}

torch::Tensor lbfgs_data() {
  return (torch::arange(lbfgs_samples * 4).to(torch::kDouble) * 0.37).sin().view({lbfgs_samples, 4});
}

// With a line search, which compares losses: it must see those of all ranks.
torch::optim::LBFGSOptions lbfgs_options() {
  return torch::optim::LBFGSOptions(0.5).max_iter(4).history_size(5).line_search_fn("strong_wolfe");
}

torch::Tensor lbfgs_loss(torch::nn::Linear& net, const torch::Tensor& data) {
  return (net->forward(data).squeeze(1) - data.pow(2).sum(1)).pow(2).mean();
}

}  // namespace

TEST_CASE("LBFGS: workers whose closure returns the loss of all ranks end where one plain loop ends") {
  auto plain = lbfgs_net();
  torch::optim::LBFGS plain_optimizer{plain->parameters(), lbfgs_options()};
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.step([&] {
      plain_optimizer.zero_grad();
      auto loss = lbfgs_loss(plain, lbfgs_data());
      loss.backward();
      return loss;
    });
  }
  const torch::Tensor expected = plain->weight.detach().clone();
  CHECK((expected - lbfgs_net()->weight).abs().max().item<double>() > 0.1);  // it has learnt something
  const auto train = [expected](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return lbfgs_net(); });
    torch::optim::LBFGS optimizer{net->parameters(), lbfgs_options()};
    const std::int64_t share = lbfgs_samples / worker.world_size();
    const torch::Tensor data = lbfgs_data().narrow(0, worker.rank() * share, share);
    for (int step = 0; step < 3; ++step) {
      optimizer.step([&] {
        optimizer.zero_grad();
        worker.samples(static_cast<std::uint64_t>(share));
        auto loss = lbfgs_loss(net, data);
        loss.backward();
        return torch::full({}, worker.mean(loss.template item<double>()), torch::kDouble);  // of equal shares
      });
    }
    EXPECT(torch::allclose(net->weight, expected, 1e-9, 1e-11));
  };
  test::on_both_threads(2, train);
  test::on_processes(3, train);
}
