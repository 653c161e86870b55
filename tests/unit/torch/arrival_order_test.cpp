// SPDX-License-Identifier: MIT
// In which order gradients are exchanged whose order differs from rank to rank, and where that begins early.
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/workers/detail/cores.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/two_cores.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace arrival_order {  // suites are compiled as one source as well

namespace {

constexpr std::size_t num_weights = 5;

struct Branches : torch::nn::Module {
  Branches() {
    for (std::size_t i = 0; i < num_weights; ++i) {
      weights.push_back(register_parameter(std::to_string(i), torch::zeros({40})));
    }
  }
  std::vector<torch::Tensor> weights{};
};

// The branches of a loss, of which LibTorch differentiates the one that was computed last first: by rank they are
// computed from another one on, and on every other rank backwards.
std::vector<std::size_t> order_on(int rank) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < num_weights; ++i) order.push_back((i + static_cast<std::size_t>(rank)) % num_weights);
  if (rank % 2 == 1) std::reverse(order.begin(), order.end());
  return order;
}

// Takes one step, and returns the numbers of the weights in the order in which their gradients have come.
std::vector<std::int64_t> come_in_step(ry::Worker& worker, Branches& net, int step) {
  std::vector<std::int64_t> come;
  std::vector<unsigned> hooks;
  for (std::size_t i = 0; i < num_weights; ++i) {
    hooks.push_back(net.weights[i].register_hook(
        [&come, i](const torch::Tensor&) { come.push_back(static_cast<std::int64_t>(i)); }));
    net.weights[i].mutable_grad().reset();
  }
  torch::Tensor loss = torch::zeros({});
  std::vector<torch::Tensor> parts;
  for (const std::size_t i : order_on(worker.rank())) {
    parts.push_back((net.weights[i] * (static_cast<double>(i + 1) * (worker.rank() + 1) * step)).sum());
  }
  for (const torch::Tensor& part : parts) loss = loss + part;
  worker.samples(1);
  loss.backward();
  for (std::size_t i = 0; i < num_weights; ++i) net.weights[i].remove_hook(hooks[i]);
  return come;
}

void train(ry::Worker& worker, ry::Overlap overlap) {
  // One bucket for each, and one of two.
  for (const std::size_t bytes : {std::size_t{1}, 2 * 40 * sizeof(float)}) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Branches>(); },
                                 {.overlap = overlap, .bucket_bytes = bytes, .first_bucket_bytes = 1});
    const double mean = (worker.world_size() + 1) / 2.0;
    for (int step = 1; step <= 5; ++step) {
      const auto come = torch::tensor(come_in_step(worker, *net, step));
      const auto everywhere = ry::all_gather(worker, come);
      for (int rank = 1; rank < worker.world_size(); ++rank) EXPECT(!torch::equal(everywhere[0], everywhere[rank]));
      for (std::size_t i = 0; i < num_weights; ++i) {
        const auto expected = torch::full({40}, static_cast<double>(i + 1) * mean * step);
        EXPECT(torch::allclose(net->weights[i].grad(), expected));
      }
    }
  }
}

}  // namespace

}  // namespace arrival_order

TEST_CASE(
    "Overlap: gradients that come in another order on each rank are exchanged in one, and averaged each by itself") {
  using namespace arrival_order;
  for (const auto overlap : {ry::Overlap::off, ry::Overlap::on}) {
    const auto body = [overlap](ry::Worker& worker) { train(worker, overlap); };
    test::on_both_threads(3, body);
    test::on_processes(3, body);
    CHECK(test::error_on_processes(2, body) == "");  // over TCP as well
  }
}

TEST_CASE("Overlap: by itself it begins where a core is free for it, and not where the workers have them all") {
  using namespace arrival_order;
  const auto begins = [](ry::Overlap overlap) {
    const auto body = [overlap](ry::Worker& worker) {
      auto net = ry::prepare_model(worker, [] { return std::make_shared<Branches>(); },
                                   {.overlap = overlap, .bucket_bytes = 1, .first_bucket_bytes = 1});
      for (int step = 1; step <= 3; ++step) static_cast<void>(come_in_step(worker, *net, step));
      worker.report({{"has_plan", worker.environment().find("bucket_plan") != nullptr}});
    };
    return test::on_threads(2, body).at("has_plan").as<bool>();
  };
  {
    const railyard_test::TwoCores two_cores;
    CHECK_FALSE(begins(ry::Overlap::automatic));
    CHECK(begins(ry::Overlap::on));
  }
  if (ry::detail::usable_cores() < 3) {
    WARN("not tested: that it begins where there is a third core");
    return;
  }
  CHECK(begins(ry::Overlap::automatic));
}
