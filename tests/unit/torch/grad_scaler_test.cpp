// SPDX-License-Identifier: MIT
#include "railyard/torch/grad_scaler.hpp"
#include "railyard/torch/autocast.hpp"
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/train/train_state.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Catch::ContainsSubstring;

namespace scaling {

namespace {

namespace ry = railyard;
namespace optim = torch::optim;

constexpr double infinity = std::numeric_limits<double>::infinity();

// The same weights every time.
torch::nn::Sequential make_scaled_net(torch::Dtype dtype = torch::kFloat) {
  torch::nn::Sequential net(torch::nn::Linear(5, 37), torch::nn::Tanh(), torch::nn::Linear(37, 3));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters())
    parameter.copy_(torch::arange(parameter.numel()).sin().view_as(parameter) * 0.3);
  net->to(dtype);
  return net;
}

torch::Tensor flat_weights(const torch::nn::Module& net) {
  std::vector<torch::Tensor> parts;
  for (const auto& parameter : net.parameters()) parts.push_back(parameter.detach().flatten());
  return torch::cat(parts).clone();
}

// The samples of a global batch of 6 that a rank has.
torch::Tensor inputs_of(const ry::Worker& worker, int step, torch::Dtype dtype = torch::kFloat) {
  const auto all = (torch::arange(30, torch::kDouble).view({6, 5}) * 0.7 + step).sin().to(dtype);
  const std::int64_t count = 6 / worker.world_size();
  return all.narrow(0, worker.rank() * count, count);
}

struct Way {
  bool is_prepared = false;
  bool clips = false;
  bool enabled = true;
  int num_micro_batches = 1;
  torch::Dtype dtype = torch::kFloat;
};

template <class Optimizer>
void train_with(ry::Worker& worker, torch::nn::Sequential& net, Optimizer& optimizer, const Way& way) {
  ry::GradScaler scaler{worker, {.init_scale = 1024, .growth_interval = 3, .enabled = way.enabled}};
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    const auto x = inputs_of(worker, step, way.dtype);
    const auto parts = x.chunk(way.num_micro_batches);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      worker.samples(static_cast<std::uint64_t>(parts[part].size(0)), part + 1 == parts.size());
      scaler.scale(net->forward(parts[part]).square().mean()).backward();
    }
    scaler.unscale_(optimizer);
    if (way.clips) {
      if constexpr (requires { optimizer.inner(); }) {
        ry::clip_grad_norm_(optimizer, 0.2);
      } else {
        torch::nn::utils::clip_grad_norm_(net->parameters(), 0.2);
      }
    }
    EXPECT(scaler.step(optimizer));
    scaler.update();
  }
  EXPECT(scaler.scale() == (way.enabled ? 4096 : 1));
}

torch::Tensor train_as(ry::Worker& worker, const Way& way) {
  auto net = ry::prepare_model(worker, [&] { return make_scaled_net(way.dtype); });
  if (way.is_prepared) {
    auto optimizer = ry::prepare_optimizer<optim::AdamW>(worker, net, optim::AdamWOptions(0.01));
    train_with(worker, net, optimizer, way);
  } else {
    optim::AdamW optimizer(net->parameters(), optim::AdamWOptions(0.01));
    train_with(worker, net, optimizer, way);
  }
  return flat_weights(*net);
}

// One step with a loss of the given factor on this rank. Returns whether the weights were updated.
template <class Optimizer>
bool step_once(ry::Worker& worker, ry::GradScaler& scaler, torch::nn::Sequential& net, Optimizer& optimizer,
               double factor = 1) {
  optimizer.zero_grad();
  worker.samples(3);
  (scaler.scale(net->forward(inputs_of(worker, 1)).square().mean()) * factor).backward();
  const bool is_updated = scaler.step(optimizer);
  scaler.update();
  return is_updated;
}

// A rank's error in a run of two, whose only content this is.
std::string scaler_error(const std::function<void(ry::Worker&, torch::nn::Sequential&)>& function,
                         ry::NonFinite policy = ry::NonFinite::skip) {
  return test::error_of(2, [=](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); }, {.non_finite = policy});
    function(worker, net);
  });
}

}  // namespace

TEST_CASE(
    "GradScaler: training is that without one to the bit, clipped, in micro-batches, optimizers prepared or not") {
  for (const bool is_prepared : {false, true}) {
    for (const Way way : {Way{is_prepared, false}, Way{is_prepared, true}, Way{is_prepared, true, true, 3}}) {
      test::on_both_threads(2, [way](auto& worker) {
        Way without = way;
        without.enabled = false;
        const auto expected = train_as(worker, without);
        EXPECT(torch::equal(train_as(worker, way), expected));
        EXPECT(torch::isfinite(expected).all().template item<bool>());
      });
    }
  }
}

TEST_CASE("GradScaler: two workers train as one does with the same global batch, as threads and as processes") {
  const auto train = [](auto& worker) {
    Way way{true, true};
    way.dtype = torch::kDouble;
    const auto weights = train_as(worker, way);
    worker.report({{"sum", (weights * torch::arange(1, weights.numel() + 1)).sum().template item<double>()}});
  };
  const double one = test::on_threads(1, train).at("sum").number();
  CHECK(test::on_both_threads(2, train).at("sum").number() == Approx(one).epsilon(1e-10));
  CHECK(test::on_processes(2, train).at("sum").number() == Approx(one).epsilon(1e-10));
}

TEST_CASE("GradScaler: an overflow on one rank leaves the step out and lowers the scale on all, without a warning") {
  const auto train = [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); });
    auto prepared = ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.01));
    ry::GradScaler scaler{worker};
    const auto before = flat_weights(*net);
    EXPECT(!step_once(worker, scaler, net, prepared, worker.rank() == 1 ? infinity : 1));
    EXPECT(torch::equal(flat_weights(*net), before));
    EXPECT(scaler.scale() == 32768);
    EXPECT(step_once(worker, scaler, net, prepared));
    EXPECT(!torch::equal(flat_weights(*net), before));
    EXPECT(scaler.scale() == 32768);
    EXPECT(!step_once(worker, scaler, net, prepared, worker.rank() == 0 ? infinity : 1));
    EXPECT(scaler.scale() == 16384);
    const auto all = ry::all_gather(worker, flat_weights(*net));
    EXPECT(torch::equal(all[0], all[1]));
  };
  for (const ry::Result& result :
       {test::try_run<ry::Local, ry::Threads>(2, train), test::try_run<ry::SharedMemory, ry::Threads>(2, train),
        test::try_run<ry::Gloo, ry::Processes>(2, train)}) {
    CHECK(result.error() == "");
    CHECK(result.warnings().empty());
    CHECK(result.step_times().skipped == 2);
  }
}

TEST_CASE("GradScaler: a gradient that does overflow in f32 is one on a single worker as well") {
  test::on_threads(1, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); });
    optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.01));
    ry::GradScaler scaler{worker, {.init_scale = 0x1p100}};
    EXPECT(!step_once(worker, scaler, net, optimizer, 0x1p30));
    EXPECT(scaler.scale() == 0x1p99);
    EXPECT(!net->parameters()[0].grad().defined());
    EXPECT(step_once(worker, scaler, net, optimizer));
  });
}

TEST_CASE("GradScaler: the scale grows after enough good steps in a row, which an overflow interrupts") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); });
    optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.01));
    ry::GradScaler scaler{worker,
                          {.init_scale = 100, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2}};
    std::vector<double> scales;
    for (const bool is_good : {true, false, true, true, true, true, false}) {
      EXPECT(step_once(worker, scaler, net, optimizer, is_good || worker.rank() == 0 ? 1 : infinity) == is_good);
      scales.push_back(scaler.scale());
    }
    EXPECT(scales == std::vector<double>{100, 25, 25, 75, 75, 225, 56.25});
  });
}

TEST_CASE("GradScaler: does not grow beyond f32, nor vanish") {
  test::on_threads(1, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); });
    optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.0));
    {
      ry::GradScaler scaler{worker, {.init_scale = 0x1p127, .growth_interval = 1}};
      EXPECT(step_once(worker, scaler, net, optimizer, 1e-30));
      EXPECT(scaler.scale() == 0x1p127);
    }
    ry::GradScaler scaler{worker, {.init_scale = 0x1p-125}};
    for (int step = 0; step < 3; ++step) EXPECT(!step_once(worker, scaler, net, optimizer, infinity));
    EXPECT(scaler.scale() == 0x1p-126);
  });
}

TEST_CASE("GradScaler: several optimizers have one scale, and a step that overflows leaves out all of them") {
  test::on_both_threads(2, [](auto& worker) {
    auto first = ry::prepare_model(worker, [] { return make_scaled_net(); });
    auto second = ry::prepare_model(worker, [] { return make_scaled_net(); });
    auto prepared = ry::prepare_optimizer<optim::Adam>(worker, first, optim::AdamOptions(0.01));
    optim::Adam plain(second->parameters(), optim::AdamOptions(0.01));
    ry::GradScaler scaler{worker, {.init_scale = 8, .growth_interval = 1}};
    for (int step = 0; step < 3; ++step) {
      const auto before = flat_weights(*second);
      prepared.zero_grad();
      plain.zero_grad();
      worker.samples(3);
      const auto x = inputs_of(worker, step);
      scaler.scale(first->forward(x).square().mean() + second->forward(x).square().mean()).backward();
      if (step == 1) {
        worker.samples(3);
        scaler.scale(second->forward(x).sum() * (worker.rank() == 0 ? infinity : 1)).backward();
      }
      EXPECT(scaler.step(prepared) == (step != 1));
      scaler.unscale_(plain);
      EXPECT(scaler.step(plain) == (step != 1));
      scaler.update();
      EXPECT(scaler.scale() == (step == 0 ? 16 : step == 1 ? 8 : 16));
      EXPECT(torch::equal(flat_weights(*second), before) == (step == 1));
    }
    EXPECT(torch::equal(flat_weights(*first), flat_weights(*second)));
  });
}

TEST_CASE(
    "GradScaler: a step that is left out leaves running statistics as they were, where NaNs would end the run too") {
  for (const auto policy : {ry::NonFinite::skip, ry::NonFinite::stop}) {
    test::on_both_threads(2, [policy](auto& worker) {
      auto net = ry::prepare_model(
          worker, [] { return torch::nn::Sequential(torch::nn::Linear(5, 3), torch::nn::BatchNorm1d(3)); },
          {.non_finite = policy});
      optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.01));
      ry::GradScaler scaler{worker};
      const auto mean = [&net] { return net->buffers()[0].clone(); };
      EXPECT(!step_once(worker, scaler, net, optimizer, worker.rank() == 1 ? infinity : 1));
      EXPECT(mean().eq(0).all().template item<bool>());
      EXPECT(step_once(worker, scaler, net, optimizer));
      EXPECT(!mean().eq(0).all().template item<bool>());
    });
  }
}

TEST_CASE("GradScaler: where gradients stay that are not finite, the step is left out all the same") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); }, {.non_finite = ry::NonFinite::allow});
    optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.01));
    ry::GradScaler scaler{worker};
    const auto before = flat_weights(*net);
    EXPECT(!step_once(worker, scaler, net, optimizer, worker.rank() == 1 ? infinity : 1));
    EXPECT(net->parameters()[0].grad().defined());
    EXPECT(torch::equal(flat_weights(*net), before));
    EXPECT(scaler.scale() == 32768);
    EXPECT(step_once(worker, scaler, net, optimizer));
  });
  test::on_threads(1, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); }, {.non_finite = ry::NonFinite::allow});
    optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.01));
    ry::GradScaler scaler{worker};
    EXPECT(!step_once(worker, scaler, net, optimizer, infinity));
    EXPECT(step_once(worker, scaler, net, optimizer));
  });
}

TEST_CASE("GradScaler: NaNs that go on are told of once by a policy that skips, and end a run by one that stops") {
  const auto train = [](ry::NonFinite policy, int num_bad, double init_scale) {
    return test::try_run<ry::SharedMemory, ry::Threads>(2, [=](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return make_scaled_net(); }, {.non_finite = policy});
      optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.01));
      ry::GradScaler scaler{worker, {.init_scale = init_scale, .most_skipped = 5}};
      for (int step = 0; step < num_bad; ++step) {
        step_once(worker, scaler, net, optimizer, worker.rank() == 0 ? std::nan("") : 1);
      }
      step_once(worker, scaler, net, optimizer);
    });
  };
  const std::string told =
      "step 5: the gradient of \"0.weight\" is not finite, as those of the last 5 steps were not, with a loss that the "
      "GradScaler has come to scale by 4096 only";
  CHECK(train(ry::NonFinite::skip, 4, 65536).warnings().empty());
  CHECK(train(ry::NonFinite::stop, 4, 65536).error() == "");
  const ry::Result skipped = train(ry::NonFinite::skip, 12, 65536);
  CHECK(skipped.error() == "");
  REQUIRE(skipped.warnings().size() == 1);
  CHECK_THAT(skipped.warnings()[0], ContainsSubstring(told) && ContainsSubstring("Look for NaNs in the data"));
  CHECK_THAT(train(ry::NonFinite::stop, 12, 65536).error(), ContainsSubstring(told));
  // A scale below 1 comes before so many steps.
  CHECK_THAT(train(ry::NonFinite::stop, 3, 2).error(),
             ContainsSubstring("as those of the last 2 steps were not, with a loss that the GradScaler has come to "
                               "scale by 1 only"));
}

TEST_CASE("GradScaler: a run that fails goes on with its scale and its count of good steps, to the bit") {
  const auto run = [](std::uint64_t failing_step) {
    std::string folder = (std::filesystem::temp_directory_path() / "railyard_scaler_XXXXXX").string();
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    ry::RunConfig config{.storage_path = folder, .progress = ry::Progress::quiet};
    config.checkpoint.every_steps = 1;
    config.failure.max_failures = 1;
    const auto train = [failing_step](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return make_scaled_net(); });
      const auto data = (torch::arange(60).to(torch::kFloat).view({12, 5}) * 0.7).sin();
      auto loader = ry::prepare_loader(worker, std::pair{data, data.sum(1)},
                                       {.global_batch_size = 2, .shuffle = true, .drives_step = true});
      auto optimizer = ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.01));
      ry::GradScaler scaler{worker, {.growth_interval = 4}};
      ry::TrainState state{worker, {{"net", net}, {"loader", loader}, {"optimizer", optimizer}, {"scaler", scaler}}};
      for ([[maybe_unused]] const int epoch : state.epochs(2)) {
        for (const auto& batch : loader) {
          if (worker.attempt() == 0 && worker.steps() == failing_step) throw std::runtime_error{"as planned"};
          optimizer.zero_grad();
          const bool overflows = worker.steps() % 7 == 2 && worker.rank() == 1;
          (scaler.scale(net->forward(batch.data).square().mean()) * (overflows ? infinity : 1)).backward();
          scaler.step(optimizer);
          scaler.update();
        }
      }
      worker.report({{"scale", scaler.scale()}, {"weights", flat_weights(*net).sum().template item<double>()}});
    };
    ry::Trainer<ry::SharedMemory, ry::Threads> trainer{train, {.num_workers = 2}, config};
    const ry::Result result = trainer.fit();
    std::filesystem::remove_all(folder);
    return result.value_or_throw().metrics();
  };
  const ry::Metrics whole = run(1000);
  CHECK(whole.at("scale").number() == 32768);  // 12 steps: down at 2 and 9, up after 4 good ones between
  for (const std::uint64_t step : {2U, 3U, 5U, 10U}) {
    const ry::Metrics metrics = run(step);
    CHECK(metrics.at("scale").number() == whole.at("scale").number());
    CHECK(metrics.at("weights").number() == whole.at("weights").number());
  }
}

TEST_CASE("GradScaler: calls that are missing, or come twice or too early, are errors that say so") {
  const auto with_sgd = [](const auto& use, const ry::GradScalerOptions& options = {}) {
    return scaler_error([=](ry::Worker& worker, torch::nn::Sequential& net) {
      optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.01));
      ry::GradScaler scaler{worker, options};
      worker.samples(3);
      use(worker, net, scaler, optimizer);
    });
  };
  const auto backward = [](ry::Worker& worker, torch::nn::Sequential& net, ry::GradScaler& scaler) {
    scaler.scale(net->forward(inputs_of(worker, 1)).sum()).backward();
  };
  CHECK_THAT(with_sgd([](auto&, auto& net, auto& scaler, auto& optimizer) {
               net->forward(torch::ones({3, 5})).sum().backward();
               scaler.step(optimizer);
             }),
             ContainsSubstring("no loss was scaled since the last update()"));
  CHECK_THAT(with_sgd([=](auto& worker, auto& net, auto& scaler, auto& optimizer) {
               backward(worker, net, scaler);
               scaler.step(optimizer);
               scaler.step(optimizer);
             }),
             ContainsSubstring("the optimizer has made its step since the last update()"));
  CHECK_THAT(with_sgd([=](auto& worker, auto& net, auto& scaler, auto& optimizer) {
               backward(worker, net, scaler);
               scaler.unscale_(optimizer);
               scaler.unscale_(optimizer);
             }),
             ContainsSubstring("have been divided by the scale already"));
  CHECK_THAT(with_sgd([=](auto& worker, auto& net, auto& scaler, auto&) {
               backward(worker, net, scaler);
               scaler.update();
             }),
             ContainsSubstring("there was no step(optimizer) since the last update()"));
  CHECK_THAT(with_sgd([=](auto& worker, auto& net, auto& scaler, auto& optimizer) {
               worker.samples(2, false);
               backward(worker, net, scaler);
               scaler.step(optimizer);
             }),
             ContainsSubstring("goes on with another micro-batch"));
  CHECK_THAT(with_sgd([](auto& worker, auto&, auto&, auto&) { ry::GradScaler{worker}; }),
             ContainsSubstring("the worker has one already"));
  CHECK_THAT(with_sgd([](auto&, auto&, auto&, auto&) {}, {.backoff_factor = 1}),
             ContainsSubstring("backoff_factor is 1: it must be between 0 and 1"));
  CHECK_THAT(with_sgd([=](auto& worker, auto& net, auto& scaler, auto&) {
               auto other = make_scaled_net();
               optim::SGD optimizer(other->parameters(), optim::SGDOptions(0.01));
               backward(worker, net, scaler);
               other->forward(torch::ones({1, 5})).sum().backward();
               scaler.step(optimizer);
             }),
             ContainsSubstring("of no prepared model"));
}

TEST_CASE("GradScaler: a prepared optimizer is not clipped or stepped with gradients that are still scaled") {
  const auto with_prepared = [](const auto& use) {
    return scaler_error([=](ry::Worker& worker, torch::nn::Sequential& net) {
      auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.01));
      ry::GradScaler scaler{worker};
      worker.samples(3);
      scaler.scale(net->forward(inputs_of(worker, 1)).sum()).backward();
      use(optimizer);
    });
  };
  CHECK_THAT(with_prepared([](auto& optimizer) { ry::clip_grad_norm_(optimizer, 1.0); }),
             ContainsSubstring("clip_grad_norm_() on rank") && ContainsSubstring("scaler.unscale_(optimizer)"));
  CHECK_THAT(with_prepared([](auto& optimizer) { optimizer.step(); }), ContainsSubstring("optimizer.step() on rank"));
}

TEST_CASE("GradScaler: ranks that scale by other numbers are told so") {
  CHECK_THAT(scaler_error([](ry::Worker& worker, torch::nn::Sequential& net) {
               ry::GradScaler scaler{worker, {.init_scale = worker.rank() == 0 ? 512.0 : 1024.0}};
               worker.samples(3);
               scaler.scale(net->forward(inputs_of(worker, 1)).sum()).backward();
             }),
             ContainsSubstring("scale of the GradScaler") && ContainsSubstring("512") && ContainsSubstring("1024"));
}

TEST_CASE("GradScaler: weights in f16 are refused, but where an optimizer keeps copies of them in f32") {
  const auto train = [](bool has_masters) {
    return test::error_of(2, [has_masters](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return make_scaled_net(torch::kHalf); });
      auto optimizer =
          ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.5), {.master_weights = has_masters});
      ry::GradScaler scaler{worker};
      worker.samples(3);
      const auto before = flat_weights(*net).to(torch::kDouble);
      scaler.scale(net->parameters()[1].to(torch::kFloat).sum() * 0x1p-20).backward();
      scaler.step(optimizer);
      scaler.update();
      const auto moved = (before - flat_weights(*net).to(torch::kDouble)).abs().max().template item<double>();
      EXPECT(moved < 1e-3);
    });
  };
  CHECK_THAT(train(false), ContainsSubstring("a weight of type f16") && ContainsSubstring("master_weights"));
  CHECK(train(true) == "");
}

TEST_CASE("GradScaler: gradients that vanish in f16 are kept, and a scale that overflows there is found") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); });
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(1));
    const auto weight = net->parameters()[1];
    // The gradient of the cast is in f16, which goes from 6e-8 to 65504.
    const auto loss_of = [&weight](double factor) { return weight.to(torch::kHalf).to(torch::kFloat).sum() * factor; };
    const auto gradient = [&] { return optimizer.full_gradients()[1]; };
    worker.samples(3);
    loss_of(1e-9).backward();
    EXPECT(gradient().eq(0).all().template item<bool>());
    ry::GradScaler scaler{worker};
    optimizer.zero_grad();
    worker.samples(3);
    scaler.scale(loss_of(1e-9)).backward();
    scaler.unscale_(optimizer);
    EXPECT(torch::allclose(gradient(), torch::full_like(weight, 1e-9), 1e-2, 0));
    scaler.step(optimizer);
    scaler.update();
    int num_skipped = 0;
    for (bool is_updated = false; !is_updated; num_skipped += is_updated ? 0 : 1) {
      optimizer.zero_grad();
      worker.samples(3);
      scaler.scale(loss_of(worker.rank() == 0 ? 10 : 0.01)).backward();  // 655,360 overflows, 40,960 does not
      is_updated = scaler.step(optimizer);
      if (is_updated) EXPECT(torch::allclose(gradient(), torch::full_like(weight, 5.005), 1e-2, 0));
      scaler.update();
    }
    EXPECT(num_skipped == 4);
    EXPECT(scaler.scale() == 4096);
  });
}

TEST_CASE("GradScaler: trains in f16 where LibTorch computes in it, on CPUs as well") {
  const auto train = [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_scaled_net(); });
    auto optimizer = ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.01));
    ry::GradScaler scaler{worker, {.init_scale = 0x1p40}};
    double loss = 0;
    double first = 0;
    for (int step = 0; step < 60; ++step) {
      torch::Tensor value;
      worker.samples(3);
      optimizer.zero_grad();
      {
        const ry::Autocast autocast{worker, {.dtype = torch::kHalf}};
        const auto y = net->forward(inputs_of(worker, 1));
        EXPECT(y.scalar_type() == torch::kHalf);
        value = (y.to(torch::kFloat) - 1).square().mean();
      }
      scaler.scale(value).backward();
      scaler.unscale_(optimizer);
      ry::clip_grad_norm_(optimizer, 1.0);
      scaler.step(optimizer);
      scaler.update();
      loss = value.template item<double>();
      if (step == 0) first = loss;
    }
    EXPECT(scaler.scale() < 0x1p40);
    EXPECT(scaler.scale() > 1);
    EXPECT(loss < first / 4);
    const auto all = ry::all_gather(worker, flat_weights(*net));
    EXPECT(torch::equal(all[0], all[1]));
  };
  try {
    const ry::Autocast autocast{torch::kCPU, {.dtype = torch::kHalf}};
  } catch (const ry::ConfigError&) {
    WARN("not tested: this LibTorch does not compute in f16 on CPUs");
    return;
  }
  test::on_both_threads(2, train);
}

TEST_CASE("GradScaler: a loss in a half type is scaled in f32") {
  test::on_threads(1, [](auto& worker) {
    ry::GradScaler scaler{worker};
    const auto loss = scaler.scale(torch::full({}, 2.0, torch::kHalf));
    EXPECT(loss.scalar_type() == torch::kFloat);
    EXPECT(loss.template item<double>() == 131072);
    EXPECT(scaler.scale(torch::full({}, 2.0, torch::kDouble)).scalar_type() == torch::kDouble);
  });
}

}  // namespace scaling
