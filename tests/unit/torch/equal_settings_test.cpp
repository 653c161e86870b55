// SPDX-License-Identifier: MIT
// What must be set alike on all ranks: optimizers, the norm to clip to, and the way to go over the data; and a loop
// that steps before its step is complete.
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace equal_settings {  // suites are compiled as one source as well

namespace {

namespace optim = torch::optim;

torch::nn::Linear make_net() { return torch::nn::Linear(3, 2); }

std::pair<torch::Tensor, torch::Tensor> samples(std::int64_t count = 24) {
  return {torch::ones({count, 3}), torch::zeros({count})};
}

// By the collectives of a backend whose ranks do not see each other's memory, and then where they do.
template <class Function>
std::vector<std::string> errors_of(int num_workers, const Function& function) {
  return {test::try_run<ry::Local, ry::Threads>(num_workers, function).error(),
          test::try_run<ry::SharedMemory, ry::Threads>(num_workers, function).error()};
}

// Trains a few steps, before each of which `disturb` may do something to the optimizer.
template <class X, class Options>
std::vector<std::string> errors_of_training(
    const Options& options, const std::function<void(ry::Worker&, ry::PreparedOptimizer<X>&, int)>& disturb) {
  return errors_of(3, [=](auto& worker) {
    auto net = ry::prepare_model(worker, make_net);
    auto optimizer = ry::prepare_optimizer<X>(worker, net, options);
    for (int step = 0; step < 4; ++step) {
      worker.samples(1);
      optimizer.zero_grad();
      net->forward(torch::ones({1, 3})).sum().backward();
      disturb(worker, optimizer, step);
      optimizer.step();
      worker.end_step();
    }
  });
}

bool is_odd(const ry::Worker& worker, int step) { return worker.rank() == 1 && step == 1; }

}  // namespace

}  // namespace equal_settings

TEST_CASE("prepare_optimizer: another optimizer, or other options, on one rank are refused with both values") {
  using namespace equal_settings;
  const auto errors_with = [](auto prepare) {
    return errors_of(2, [=](auto& worker) {
      auto net = ry::prepare_model(worker, make_net);
      prepare(worker, net);
    });
  };
  for (const std::string& error : errors_with([](auto&worker, auto&net) {
         if (worker.rank() == 0) {
           static_cast<void>(ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1)));
         } else {
           static_cast<void>(ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.1)));
         }
       })) {
    CHECK_THAT(error, ContainsSubstring("\"optimizer: Adam\" on rank 1 and \"optimizer: SGD\" on rank 0"));
  }
  for (const std::string& error : errors_with([](auto&worker, auto&net) {
         const auto options = optim::AdamWOptions(0.1).weight_decay(worker.rank() == 0 ? 0.5 : 0.25);
         static_cast<void>(ry::prepare_optimizer<optim::AdamW>(worker, net, options));
       })) {
    CHECK_THAT(error, ContainsSubstring("\"weight_decay of group 0: 0.25\" on rank 1 and \"weight_decay of group 0: "
                                        "0.5\" on rank 0"));
  }
}

TEST_CASE("prepare_optimizer: options that are changed on one rank while training goes on are named with both values") {
  using namespace equal_settings;
  for (const std::string& error : errors_of_training<optim::Adam>(
           optim::AdamOptions(0.1), [](ry::Worker&worker, ry::PreparedOptimizer<optim::Adam>&optimizer, int step) {
             auto& options = static_cast<optim::AdamOptions&>(optimizer.param_groups()[0].options());
             if (is_odd(worker, step)) options.weight_decay(0.5);
           })) {
    CHECK_THAT(error,
               ContainsSubstring("\"weight_decay of group 0: 0.5\" on rank 1 and \"weight_decay of group 0: 0\""));
  }
  for (const std::string& error : errors_of_training<optim::SGD>(
           optim::SGDOptions(0.1), [](ry::Worker&worker, ry::PreparedOptimizer<optim::SGD>&optimizer, int step) {
             if (is_odd(worker, step)) optimizer.param_groups()[0].options().set_lr(0.2);
           })) {
    CHECK_THAT(error, ContainsSubstring("\"lr of group 0: 0.2\" on rank 1 and \"lr of group 0: 0.1\" on rank 0"));
  }
}

TEST_CASE("clip_grad_norm_: another norm on one rank is refused with both values") {
  using namespace equal_settings;
  for (const std::string& error : errors_of_training<optim::SGD>(
           optim::SGDOptions(0.1), [](ry::Worker&worker, ry::PreparedOptimizer<optim::SGD>&optimizer, int step) {
             ry::clip_grad_norm_(optimizer, is_odd(worker, step) ? 0.5 : 0.75);
           })) {
    CHECK_THAT(error, ContainsSubstring("clip_grad_norm_()") && ContainsSubstring("0.5") &&
                          ContainsSubstring("on rank 1 and ") && ContainsSubstring("0.75"));
  }
  for (const std::string& error : errors_of_training<optim::SGD>(
           optim::SGDOptions(0.1), [](ry::Worker&, ry::PreparedOptimizer<optim::SGD>&optimizer, int step) {
             ry::clip_grad_norm_(optimizer, 0.5 / (step + 1));
           })) {
    CHECK(error == "");
  }
}

TEST_CASE("prepare_optimizer: settings that differ in their last bits are alike where ranks have their own weights") {
  using namespace equal_settings;
  // As those may that processors of two kinds have computed.
  const std::vector<std::string> errors = errors_of_training<optim::SGD>(
      optim::SGDOptions(0.1), [](ry::Worker& worker, ry::PreparedOptimizer<optim::SGD>& optimizer, int step) {
        const double towards = is_odd(worker, step) ? 1.0 : 0.0;
        ry::clip_grad_norm_(optimizer, std::nextafter(0.7, towards));
        optimizer.param_groups()[0].options().set_lr(std::nextafter(0.1, towards));
      });
  CHECK(errors[0] == "");
}

TEST_CASE("prepare_loader: ranks that go over the data in another way are told what differs, with both values") {
  using namespace equal_settings;
  const auto errors_with = [](ry::LoaderOptions here, ry::LoaderOptions there, std::int64_t epoch = 0) {
    here.drives_step = there.drives_step = true;
    return errors_of(2, [=](auto& worker) {
      auto net = ry::prepare_model(worker, make_net);
      auto loader = ry::prepare_loader(worker, samples(), worker.rank() == 0 ? here : there);
      if (worker.rank() == 1) loader.set_epoch(epoch);
      for (int epochs = 0; epochs < 2; ++epochs) {
        for (const auto& batch : loader) {
          net->forward(batch.data).sum().backward();
          if (batch.completes_step()) net->zero_grad();
        }
      }
    });
  };
  for (const std::string& error :
       errors_with({.global_batch_size = 8, .shuffle = true}, {.global_batch_size = 8, .shuffle = false})) {
    CHECK_THAT(error, ContainsSubstring("\"shuffle: false\" on rank 1 and \"shuffle: true\" on rank 0"));
  }
  for (const std::string& error : errors_with({.global_batch_size = 8}, {.batch_size_per_worker = 6})) {
    CHECK_THAT(error, ContainsSubstring("\"batch size: 12\" on rank 1 and \"batch size: 8\" on rank 0"));
  }
  for (const std::string& error : errors_with({.global_batch_size = 8}, {.global_batch_size = 8}, 3)) {
    CHECK_THAT(error, ContainsSubstring("\"epoch: 3\" on rank 1 and \"epoch: 0\" on rank 0"));
  }
  // Batches are cut into parts before they are divided: other parts would be of other samples.
  for (const std::string& error :
       errors_with({.global_batch_size = 8, .micro_batches = 2}, {.global_batch_size = 8, .largest_micro_batch = 1})) {
    CHECK_THAT(error,
               ContainsSubstring("\"micro-batches of a batch: 4\" on rank 1 and \"micro-batches of a batch: 2\""));
  }
  // The same batches by other words.
  for (const std::string& error :
       errors_with({.global_batch_size = 8, .micro_batches = 2}, {.batch_size_per_worker = 4, .micro_batches = 2})) {
    CHECK(error == "");
  }
}

TEST_CASE("prepare_loader: of data of its own each rank takes what it likes, but as often as the others") {
  using namespace equal_settings;
  const auto errors_with = [](std::size_t here, std::size_t there) {
    return errors_of(2, [=](auto& worker) {
      auto net = ry::prepare_model(worker, make_net);
      const auto dataset = ry::Dataset::from_function({{"x", ry::Dtype::f32, {3}}}, 24, [](auto, auto& out) {
        out.set("x", std::vector<float>{1, 2, 3});
      });
      auto loader = ry::prepare_loader(worker, dataset.undivided(),
                                       {.batch_size_per_worker = worker.rank() == 0 ? here : there,
                                        .shuffle = worker.rank() == 0,
                                        .drives_step = true,
                                        .micro_batches = worker.rank() == 0 ? 1U : 2U});
      for (const auto& batch : loader) {
        net->forward(batch.data).sum().backward();
        if (batch.completes_step()) net->zero_grad();
      }
    });
  };
  for (const std::string& error : errors_with(16, 12)) CHECK(error == "");
  for (const std::string& error : errors_with(8, 6)) {
    CHECK_THAT(error,
               ContainsSubstring("\"batches of an epoch: 4\" on rank 1 and \"batches of an epoch: 3\" on rank 0"));
  }
}

TEST_CASE("prepare_loader: ranks that group a dataset by length in another way, or have other data, are told so") {
  using namespace equal_settings;
  const auto errors_with = [](ry::LoaderOptions here, ry::LoaderOptions there, std::size_t count) {
    here.drives_step = there.drives_step = true;
    return errors_of(2, [=](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(1, 1); });
      const ry::Schema schema{{.name = "tokens", .dtype = ry::Dtype::f32, .shape = {-1}}};
      const std::size_t own_count = worker.rank() == 0 ? 24 : count;
      const auto dataset = ry::Dataset::from_function(schema, own_count, [](auto id, ry::SampleWriter& out) {
        out.set("tokens", std::vector<float>(static_cast<std::size_t>(1 + id * 7 % 5), 1));
      });
      for (const auto& batch : ry::prepare_loader(worker, dataset, worker.rank() == 0 ? here : there)) {
        net->forward(batch.data.view({-1, 1})).sum().backward();
      }
    });
  };
  for (const std::string& error : errors_with({.global_batch_size = 8}, {.global_batch_size = 8}, 25)) {
    CHECK_THAT(error, ContainsSubstring("\"samples: 25\" on rank 1 and \"samples: 24\" on rank 0"));
  }
  for (const std::string& error : errors_with({.global_batch_size = 8, .shuffle = true, .bucket_by = "tokens"},
                                              {.global_batch_size = 8, .bucket_by = "tokens"}, 24)) {
    CHECK_THAT(error, ContainsSubstring("\"shuffle: false\" on rank 1 and \"shuffle: true\" on rank 0"));
  }
}

TEST_CASE(
    "Micro-batches: a prepared optimizer that steps or clips before the last of them is refused, with the remedy") {
  using namespace equal_settings;
  using Optimizer = ry::PreparedOptimizer<optim::SGD>;
  using Meddle = std::function<void(Optimizer&)>;
  const Meddle step = [](Optimizer& optimizer) { optimizer.step(); };
  const Meddle clip = [](Optimizer& optimizer) { ry::clip_grad_norm_(optimizer, 1.0); };
  const Meddle look = [](Optimizer& optimizer) { static_cast<void>(optimizer.full_gradients()); };
  for (const auto& [meddle, call] : {std::pair{step, "optimizer.step()"}, std::pair{clip, "clip_grad_norm_()"},
                                     std::pair{look, "full_gradients()"}}) {
    for (const std::string& error : errors_of(2, [=, act = meddle](auto& worker) {
           auto net = ry::prepare_model(worker, make_net);
           auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
           auto loader =
               ry::prepare_loader(worker, samples(), {.global_batch_size = 8, .drives_step = true, .micro_batches = 4});
           for (const auto& batch : loader) {
             net->forward(batch.data).sum().backward();
             act(optimizer);
           }
         })) {
      CHECK_THAT(error, ContainsSubstring(call) && ContainsSubstring("step 1 goes on with another micro-batch") &&
                            ContainsSubstring("if (!batch.completes_step()) continue;"));
    }
  }
  // A loop may step for the step before when the next one has begun.
  for (const std::string& error : errors_of(2, [](auto& worker) {
         auto net = ry::prepare_model(worker, make_net);
         auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
         auto loader =
             ry::prepare_loader(worker, samples(), {.global_batch_size = 8, .drives_step = true, .micro_batches = 4});
         bool is_complete = false;
         for (const auto& batch : loader) {
           if (std::exchange(is_complete, batch.completes_step())) {
             optimizer.step();
             optimizer.zero_grad();
           }
           net->forward(batch.data).sum().backward();
         }
       })) {
    CHECK(error == "");
  }
}
