// SPDX-License-Identifier: MIT
// should_stop() beside a prepared model: when its answer comes with the gradients, and when it asks.
#include "railyard/torch/prepare_model.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cstdint>

namespace ry = railyard;

namespace {

auto one_weight_to_stop(ry::Worker& worker) {
  return ry::prepare_model(worker, [] { return torch::nn::Linear(1, 1); });
}

template <class Net>
void take_step(ry::Worker& worker, Net& net) {
  worker.samples(1);
  net->forward(torch::ones({1, 1})).sum().backward();
}

// What should_stop() says, and whether it has asked by a collective.
struct Answer {
  bool stops = false;
  bool asked = false;
};
Answer ask(ry::Worker& worker) {
  const std::uint64_t before = worker.page().collectives;
  const bool stops = worker.should_stop();
  return {.stops = stops, .asked = worker.page().collectives != before};
}

}  // namespace

TEST_CASE("should_stop: asks before the first step, twice in a row and after several, and not after one (TRAPS 16)") {
  const auto body = [](auto& worker) {
    auto net = one_weight_to_stop(worker);
    EXPECT(ask(worker).asked);  // before the first step
    take_step(worker, net);
    EXPECT(!ask(worker).asked);
    EXPECT(ask(worker).asked);  // twice in a row
    take_step(worker, net);
    static_cast<void>(worker.mean(1.0));  // an evaluation
    EXPECT(!ask(worker).asked);
    take_step(worker, net);
    take_step(worker, net);
    EXPECT(ask(worker).asked);                           // what the last of several steps has said may be long ago
    net->forward(torch::ones({1, 1})).sum().backward();  // another pass of the step before
    EXPECT(ask(worker).asked);
    EXPECT(!worker.should_stop());
  };
  test::on_both_threads(3, body);
  test::on_processes(2, body);
}

TEST_CASE("should_stop: FAULTS A5: a wish of one rank stops all of them after the same step, wherever it comes") {
  for (const bool before_backward : {true, false}) {
    const auto body = [before_backward](auto& worker) {
      auto net = one_weight_to_stop(worker);
      int steps = 0;
      while (!worker.should_stop()) {
        ++steps;
        if (before_backward && worker.rank() == 1 && steps == 3) worker.request_stop();
        take_step(worker, net);
        if (!before_backward && worker.rank() == 1 && steps == 3) worker.request_stop();
      }
      EXPECT(steps == (before_backward ? 3 : 4));
      EXPECT(worker.should_stop());
      EXPECT(!ask(worker).asked);
    };
    test::on_both_threads(3, body);
    test::on_processes(2, body);
  }
}

TEST_CASE("should_stop: a wish after the last of several steps is heard at once, and a lone worker's always") {
  for (const int workers : {1, 3}) {
    test::on_both_threads(workers, [](auto& worker) {
      auto net = one_weight_to_stop(worker);
      int epochs = 0;
      while (!worker.should_stop()) {
        ++epochs;
        for (int step = 0; step < (worker.world_size() == 1 ? 1 : 2); ++step) take_step(worker, net);
        if (worker.rank() == 0) worker.request_stop();
      }
      EXPECT(epochs == 1);
    });
  }
}
