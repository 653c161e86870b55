// SPDX-License-Identifier: MIT
// What a run tells of gradients that are not there, or not as they came: each once.
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace unused_parameters {  // suites are compiled as one source as well

namespace {

struct Layers : torch::nn::Module {
  torch::nn::Linear used = register_module("used", torch::nn::Linear(3, 3));
  torch::nn::Linear spare = register_module("spare", torch::nn::Linear(3, 3));
  torch::Tensor forward(const torch::Tensor& x, bool uses_spare) { return uses_spare ? spare(used(x)) : used(x); }
};

using Uses = std::function<bool(const ry::Worker&, int step)>;

// What is told of five steps in each of which a rank uses the spare layer or not; by every way to exchange gradients.
std::vector<std::vector<std::string>> told_of(const Uses& uses_spare, const ry::ModelOptions& options = {},
                                              bool is_frozen = false) {
  const auto train = [=](ry::Worker& worker) {
    auto net = ry::prepare_model(
        worker,
        [is_frozen] {
          auto made = std::make_shared<Layers>();
          for (auto& one : made->spare->parameters()) one.set_requires_grad(!is_frozen);
          return made;
        },
        options);
    for (int step = 1; step <= 5; ++step) {
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
      worker.samples(1);
      net->forward(torch::ones({1, 3}), uses_spare(worker, step)).sum().backward();
    }
  };
  std::vector<std::vector<std::string>> told;
  for (const ry::Result& result :
       {test::try_run<ry::Local, ry::Threads>(3, train), test::try_run<ry::SharedMemory, ry::Threads>(3, train),
        test::try_run<ry::Gloo, ry::Processes>(3, train)}) {
    CHECK(result.error() == "");
    told.push_back(result.warnings());
  }
  return told;
}

}  // namespace

TEST_CASE("FAULTS D28: a parameter that some ranks have not used is named once, with the step") {
  const auto only_rank_1 = [](const ry::Worker& worker, int step) { return worker.rank() == 1 && step >= 3; };
  for (const auto overlap : {ry::Overlap::off, ry::Overlap::on}) {
    for (const auto& told : told_of(only_rank_1, {.overlap = overlap, .bucket_bytes = 8, .first_bucket_bytes = 8})) {
      REQUIRE(told.size() == 1);
      CHECK_THAT(told[0], ContainsSubstring("step 3: the parameter \"spare.weight\" and 1 other") ||
                              ContainsSubstring("step 3: the parameter \"spare.bias\" and 1 other"));
      CHECK_THAT(told[0],
                 ContainsSubstring("got a gradient on 1 of 3 ranks alone") && ContainsSubstring("counts as zero"));
    }
  }
}

TEST_CASE("FAULTS D28: a parameter that no rank has used in any step is named at the end, unless it is frozen") {
  const auto never = [](const ry::Worker&, int) { return false; };
  for (const auto& told : told_of(never)) {
    REQUIRE(told.size() == 1);
    CHECK_THAT(told[0], ContainsSubstring("\"spare.weight\" and 1 other") && ContainsSubstring("in no step"));
  }
  for (const auto& told : told_of(never, {}, true)) CHECK(told.empty());
  for (const auto& told : told_of([](const ry::Worker&, int step) { return step == 2; })) CHECK(told.empty());
  const auto alone = test::try_run<ry::Local, ry::Threads>(1, [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Layers>(); });
    worker.samples(1);
    net->forward(torch::ones({1, 3}), false).sum().backward();
  });
  REQUIRE(alone.warnings().size() == 1);
  CHECK_THAT(alone.warnings()[0], ContainsSubstring("\"spare.weight\" and 1 other"));
}

TEST_CASE("FAULTS D28: a rank without samples is none of those that have not used a parameter") {
  const auto train = [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Layers>(); });
    for (const bool has_parts : {false, true}) {
      for (const bool is_last : {false, true}) {
        if (!has_parts && !is_last) continue;
        worker.samples(worker.rank() == 0 ? 0 : 2, is_last);
        net->forward(torch::ones({1, 3}), worker.rank() != 0).sum().backward();
      }
    }
  };
  for (const ry::Result& result :
       {test::try_run<ry::Local, ry::Threads>(2, train), test::try_run<ry::SharedMemory, ry::Threads>(2, train)}) {
    CHECK(result.error() == "");
    CHECK(result.warnings().empty());
  }
}

TEST_CASE("FAULTS D20: that a sparse gradient is made dense is told of once, by name") {
  for (const int workers : {1, 2}) {
    const auto train = [](ry::Worker& worker) {
      auto table = ry::prepare_model(
          worker, [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 1).sparse(true)); });
      for (int step = 0; step < 3; ++step) {
        worker.samples(1);
        table(torch::tensor({worker.rank(), 3})).sum().backward();
        EXPECT(!table->weight.grad().is_sparse());
      }
    };
    for (const ry::Result& result : {test::try_run<ry::Local, ry::Threads>(workers, train),
                                     test::try_run<ry::SharedMemory, ry::Threads>(workers, train)}) {
      CHECK(result.error() == "");
      REQUIRE(result.warnings().size() == 1);
      CHECK_THAT(result.warnings()[0],
                 ContainsSubstring("step 1: the gradient of \"weight\" is sparse") && ContainsSubstring("dense"));
    }
  }
}

}  // namespace unused_parameters
