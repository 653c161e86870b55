// SPDX-License-Identifier: MIT
#include "railyard/torch/step_times.hpp"

#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <torch/nn.h>
#include <torch/optim.h>

#include <chrono>
#include <cstdint>
#include <utility>

namespace ry = railyard;

TEST_CASE("step_times: a rank that comes late is the slowest, and the others wait for it (FAULTS D37)") {
  test::on_both_threads(3, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(100, 10); });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      worker.samples(1);
      if (worker.rank() == 1) test::compute_for(std::chrono::milliseconds{100});  // which can be told from waiting
      net->forward(torch::ones({200, 100})).sum().backward();
      optimizer.step();
    }
    const ry::StepTimes times = ry::step_times(worker);
    EXPECT(times.steps == 4);
    EXPECT(times.slowest_rank == 1);
    EXPECT(times.bytes > 0 || worker.rank() > 0);
    EXPECT(worker.rank() == 1 ? times.compute > times.wait : times.wait > times.compute);
    EXPECT(times.total() >= times.wait + times.communication + times.optimizer);
    EXPECT(ry::step_times(worker).steps == 0);  // they count from the last call
    worker.report({{"done", true}});
  });
}

TEST_CASE("step_times: a lone worker, and ranks without common memory, have their steps counted as well") {
  for (const int workers : {1, 2}) {
    static_cast<void>(test::try_run<ry::Local, ry::Threads>(workers, [](auto& worker) {
                        auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(3, 3); });
                        worker.samples(1);
                        net->weight.sum().backward();
                        const auto times = ry::step_times(worker);
                        const bool is_alone = worker.world_size() == 1;
                        EXPECT(times.steps == 1 && (times.slowest_rank >= 0) == !is_alone &&
                               (times.wait > 0) == !is_alone);
                        EXPECT(times.bytes == (is_alone ? 0U : 2 * 9 * sizeof(float)));
                      }).value_or_throw());
  }
}

TEST_CASE("step_times: a Result has those of all steps, whether they have been asked for before or not") {
  const auto body = [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(100, 10); });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      worker.samples(1);
      net->forward(torch::ones({200, 100})).sum().backward();
      optimizer.step();
      if (step == 2) EXPECT(ry::step_times(worker).steps == 3);
    }
  };
  for (const ry::Result& result :
       {test::try_run<ry::SharedMemory, ry::Threads>(2, body), test::try_run<ry::Gloo, ry::Processes>(2, body)}) {
    const ry::StepTimes times = result.value_or_throw().step_times();
    CHECK(times.steps == 4);
    CHECK((times.compute > 0 && times.wait > 0 && times.communication > 0 && times.optimizer > 0));
    CHECK((times.bytes > 0 && times.slowest_rank >= 0 && times.slowest_rank < 2));
    CHECK(result.step_times_by_rank()[0].steps == 4);
  }
}

TEST_CASE("step_times: waiting for data is a share in the metrics of each report, where the run asks for it") {
  const Scratch scratch;
  const auto train = [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(1, 1); });
    auto loader = ry::prepare_loader(worker, worker.dataset("train"),
                                     {.global_batch_size = 8, .drives_step = true, .threads = 0});
    for (const auto& batch : loader) net->forward(batch.data.to(torch::kFloat).view({-1, 1})).sum().backward();
    worker.report({{"done", true}});
  };
  const auto slow = ry::Dataset::from_function({{"x", ry::Dtype::f32}}, 64, [](std::uint64_t id, auto& out) {
    double number = static_cast<double>(id);  // work, beside which the step is short
    for (int round = 0; round < 200'000; ++round) number = number * 0.999 + 1;
    out.set("x", static_cast<float>(number));
  });
  ry::RunConfig run{.storage_path = scratch.path(), .progress = ry::Progress::quiet, .report_step_times = true};
  const auto result =
      ry::Trainer<ry::SharedMemory, ry::Threads>{train, {.num_workers = 2}, std::move(run), {{"train", slow}}}.fit();
  REQUIRE(result.error() == "");
  CHECK(result.metrics().at("data_share").number() > 0);
  CHECK(result.metrics().at("compute_share").number() < 1);
}
