// SPDX-License-Identifier: MIT
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include "railyard/torch/prepare_model.hpp"

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include <filesystem>
#include <limits>

namespace ry = railyard;

namespace {

torch::nn::Sequential make_net(torch::Dtype dtype = torch::kFloat64) {
  torch::nn::Sequential net(torch::nn::Linear(8, 13), torch::nn::Tanh(), torch::nn::Linear(13, 3));
  net->to(dtype);
  return net;
}

torch::Tensor batch_of(int step, int rows) {
  const auto numbers = torch::arange(step * 100, step * 100 + rows * 8, torch::kFloat64).reshape({rows, 8});
  return (numbers * 0.37).sin();
}

// This rank's rows of a batch of 12 in parts that differ in size.
torch::Tensor own_rows(const torch::Tensor& batch, int rank, int size) {
  const std::int64_t begin = rank == 0 ? 0 : 12 * rank / size - 1;
  const std::int64_t end = rank + 1 == size ? 12 : 12 * (rank + 1) / size - 1;
  return batch.slice(0, begin, end);
}

// The sum of all weights times their numbers, which no two trainings have in common by chance.
double fingerprint(const std::vector<torch::Tensor>& parameters) {
  double sum = 0;
  for (const auto& parameter : parameters) {
    const auto flat = parameter.detach().to(torch::kFloat64).reshape({-1});
    sum += (flat * torch::arange(1, flat.numel() + 1, torch::kFloat64)).sum().item<double>();
  }
  return sum;
}

template <class X, class Options>
double trained_alone(const Options& options, double max_norm, torch::Dtype dtype) {
  torch::manual_seed(3);
  auto net = make_net(dtype);
  X optimizer(net->parameters(), options);
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    net->forward(batch_of(step, 12).to(dtype)).pow(2).mean().backward();
    if (max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
    optimizer.step();
  }
  return fingerprint(net->parameters());
}

template <class X, class Options>
auto train_together(const Options& options, double max_norm, torch::Dtype dtype) {
  return [options, max_norm, dtype](auto& worker) {
    auto net = ry::prepare_model(worker, [dtype] { return make_net(dtype); });
    auto optimizer = ry::prepare_optimizer<X>(worker, net, options);
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      const auto rows = own_rows(batch_of(step, 12), worker.rank(), worker.world_size()).to(dtype);
      worker.samples(static_cast<std::uint64_t>(rows.size(0)));
      net->forward(rows).pow(2).mean().backward();
      if (max_norm > 0) ry::clip_grad_norm_(optimizer, max_norm);
      optimizer.step();
    }
    worker.report({{"fingerprint", fingerprint(net->parameters())}, {"is_sharded", optimizer.is_sharded()}});
  };
}

template <class X, class Options>
void compare(const Options& options, double max_norm = 0, torch::Dtype dtype = torch::kFloat64, double bound = 1e-10) {
  const double alone = trained_alone<X>(options, max_norm, dtype);
  for (const int workers : {1, 2, 3}) {
    const auto metrics = test::on_threads(workers, train_together<X>(options, max_norm, dtype));
    INFO(workers << " workers");
    CHECK(std::abs(metrics.at("fingerprint").number() / alone - 1) < bound);
    CHECK(metrics.at("is_sharded").template as<bool>() == (workers > 1));
  }
}

}  // namespace

TEST_CASE("prepare_optimizer: every optimizer trains as it does alone on the global batch") {
  compare<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
  compare<torch::optim::SGD>(torch::optim::SGDOptions(0.1), 0, torch::kFloat32, 1e-5);
  compare<torch::optim::Adam>(torch::optim::AdamOptions(0.02).weight_decay(1e-3));
  compare<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02));
  compare<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05));
  compare<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5));
}

TEST_CASE("prepare_optimizer: one norm is clipped, that of the whole averaged gradient (TRAPS 19)") {
  compare<torch::optim::SGD>(torch::optim::SGDOptions(0.1), 0.01);
}

TEST_CASE("prepare_optimizer: processes train to the same weights as threads do") {
  const torch::optim::AdamOptions options(0.02);
  const auto train = train_together<torch::optim::Adam>(options, 0.1, torch::kFloat64);
  const auto processes = test::on_processes(2, train);
  CHECK(processes.at("fingerprint").number() == test::on_threads(2, train).at("fingerprint").number());
  CHECK(processes.at("is_sharded").as<bool>());
}

TEST_CASE("prepare_optimizer: the weights exist once, and .grad is undefined after backward (TRAPS 19)") {
  const auto metrics = test::on_processes(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    ry::HostMemory& memory = *worker.host_memory();
    const auto parameters = net->parameters();
    EXPECT((memory.place_of(parameters[0].data_ptr()) != 0) == (worker.rank() == 0));
    worker.samples(1);
    net->forward(batch_of(worker.rank(), 2)).pow(2).mean().backward();
    for (const auto& parameter : parameters) EXPECT(!parameter.grad().defined());
    const auto full = optimizer.full_gradients();
    EXPECT(full.size() == parameters.size());
    for (std::size_t i = 0; i < full.size(); ++i) EXPECT(full[i].sizes() == parameters[i].sizes());
    const auto before = parameters[0].detach().clone();
    optimizer.step();
    EXPECT(torch::allclose(parameters[0].detach(), before - 0.1 * full[0]));
    worker.report({{"done", true}});
  });
  CHECK(metrics.at("done").as<bool>());
}

TEST_CASE("prepare_optimizer: a parameter that nobody uses keeps its value and its state (TRAPS 10)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    const auto parameters = net->parameters();
    auto optimizer = ry::prepare_optimizer<torch::optim::AdamW>(worker, net, torch::optim::AdamWOptions(0.1));
    const auto before = parameters[2].detach().clone();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      worker.samples(1);
      parameters[0].sum().backward();
      optimizer.step();
    }
    EXPECT(torch::equal(parameters[2].detach(), before));
    worker.report({{"done", true}});
  });
}

TEST_CASE("prepare_optimizer: several backward passes of a step add up, and micro-batches as well") {
  for (const bool in_passes : {true, false}) {
    test::on_both_threads(2, [in_passes](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return make_net(); });
      auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.5));
      const auto parameters = net->parameters();
      const auto before = parameters[0].detach().clone();
      worker.samples(1, in_passes);
      (parameters[0].sum() * (worker.rank() + 1)).backward();
      if (!in_passes) worker.samples(3);
      (parameters[0].sum() * 4).backward();
      optimizer.step();
      // Passes: the mean of 1 and 2, and 4. Micro-batches: 1 and 2 once each, 4 six times.
      const double gradient = in_passes ? 5.5 : (1 + 2 + 6 * 4) / 8.0;
      EXPECT(torch::allclose(parameters[0].detach(), before - 0.5 * gradient));
      worker.report({{"done", true}});
    });
  }
}

TEST_CASE("prepare_optimizer: a gradient that is not finite on one rank leaves the step out on all (FAULTS D9)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(0.5));
    const auto parameters = net->parameters();
    const auto before = parameters[0].detach().clone();
    worker.samples(1);
    const double factor = worker.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    (parameters[0].sum() * factor).backward();
    optimizer.step();
    EXPECT(torch::equal(parameters[0].detach(), before));
    worker.report({{"done", true}});
  });
}

TEST_CASE("prepare_optimizer: groups keep their options, and a scheduler reaches them") {
  const auto groups_of = [](const std::vector<torch::Tensor>& parameters) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<torch::Tensor>{parameters[0], parameters[1]},
                        std::make_unique<torch::optim::SGDOptions>(1.0));
    groups.emplace_back(std::vector<torch::Tensor>{parameters[2], parameters[3]},
                        std::make_unique<torch::optim::SGDOptions>(0.25));
    return groups;
  };
  const auto train = [](const auto& parameters, auto& optimizer, const auto& begin) {
    torch::optim::StepLR scheduler(optimizer, 1, 0.5);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      begin();
      (parameters[0].sum() + parameters[2].sum()).backward();
      optimizer.step();
      scheduler.step();
    }
  };
  test::on_both_threads(2, [&](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    std::vector<torch::Tensor> plain;
    for (const auto& parameter : net->parameters()) plain.push_back(parameter.detach().clone().set_requires_grad(true));
    torch::optim::SGD plain_optimizer(groups_of(plain), torch::optim::SGDOptions(9.0));
    train(plain, plain_optimizer, [] {});
    const auto parameters = net->parameters();
    auto optimizer =
        ry::prepare_optimizer<torch::optim::SGD>(worker, groups_of(parameters), torch::optim::SGDOptions(9.0));
    train(parameters, optimizer, [&worker] { worker.samples(1); });
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT(torch::allclose(parameters[i], plain[i]));
    worker.report({{"done", true}});
  });
}

TEST_CASE("prepare_optimizer: a backward pass over weights that have been updated since is refused (TRAPS 6)") {
  test::on_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    worker.samples(1);
    net->forward(batch_of(0, 2)).pow(2).mean().backward();
    const auto loss = net->forward(batch_of(0, 2)).pow(2).mean();
    optimizer.step();
    bool was_refused = false;
    try {
      loss.backward();
    } catch (const c10::Error& error) {
      was_refused = std::string{error.what()}.find("inplace") != std::string::npos;
    }
    EXPECT(was_refused);
    worker.report({{"done", true}});
  });
}

TEST_CASE("prepare_optimizer: updates that differ are refused where each rank has its own weights (TRAPS 10)") {
  const auto error_of = [](auto disturb) {
    return test::try_run<ry::Local, ry::Threads>(2,
                                                 [&](auto& worker) {
                                                   auto net = ry::prepare_model(worker, [] { return make_net(); });
                                                   auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(
                                                       worker, net, torch::optim::SGDOptions(0.1).momentum(0.9));
                                                   EXPECT(!optimizer.is_sharded());
                                                   for (int step = 0; step < 4; ++step) {
                                                     worker.samples(2);
                                                     optimizer.zero_grad();
                                                     net->forward(batch_of(step, 2)).sum().backward();
                                                     disturb(worker, optimizer, step);
                                                     worker.end_step();
                                                   }
                                                 })
        .error();
  };
  const auto is_odd = [](const ry::Worker& worker, int step) { return worker.rank() == 1 && step == 1; };
  CHECK_THAT(error_of([&](auto& worker, auto& optimizer, int step) {
               if (is_odd(worker, step)) optimizer.param_groups()[0].options().set_lr(0.2);
               optimizer.step();
             }),
             Catch::ContainsSubstring("rank 1 has not updated its weights as rank 0 has"));
  CHECK_THAT(error_of([&](auto& worker, auto& optimizer, int step) {
               if (!is_odd(worker, step)) optimizer.step();
             }),
             Catch::ContainsSubstring("rank 1 has not updated its weights as rank 0 has"));
  CHECK(error_of([](auto&, auto& optimizer, int step) {
          optimizer.param_groups()[0].options().set_lr(0.1 / (1 + step));
          optimizer.step();
        }).empty());
}

TEST_CASE("prepare_optimizer: what would go wrong without a word is refused (TRAPS 5, 10)") {
  using Catch::ContainsSubstring;
  using SGD = torch::optim::SGD;
  const torch::optim::SGDOptions options(0.1);
  CHECK_THAT(test::error_of(2,
                            [&](auto& worker) {
                              auto net = make_net();
                              static_cast<void>(ry::prepare_optimizer<SGD>(worker, net, options));
                            }),
             ContainsSubstring("is of no prepared model"));
  CHECK_THAT(test::error_of(2,
                            [&](auto& worker) {
                              auto net = ry::prepare_model(worker, [] { return make_net(); });
                              const auto first = ry::prepare_optimizer<SGD>(worker, net, options);
                              static_cast<void>(ry::prepare_optimizer<SGD>(worker, net, options));
                              if (!first.is_sharded()) throw ry::ConfigError{"has a prepared optimizer already"};
                            }),
             ContainsSubstring("has a prepared optimizer already"));
  const auto shared_error = [](auto function) {
    return test::try_run<ry::SharedMemory, ry::Threads>(2, std::move(function)).error();
  };
  CHECK_THAT(shared_error([&](auto& worker) {
               auto net = ry::prepare_model(worker, [] { return make_net(); });
               const auto average = net->parameters()[1].detach();
               static_cast<void>(ry::prepare_optimizer<SGD>(worker, net, options));
             }),
             ContainsSubstring("\"0.bias\" shares its memory with another tensor"));
  CHECK_THAT(shared_error([&](auto& worker) {
               auto net = ry::prepare_model(worker, [] { return make_net(); });
               auto optimizer = ry::prepare_optimizer<SGD>(worker, net, options);
               if (worker.rank() == 1) optimizer.param_groups()[0].options().set_lr(0.2);
               optimizer.step();
             }),
             ContainsSubstring("\"lr of group 0: 0.2\" on rank 1 and \"lr of group 0: 0.1\" on rank 0"));
  CHECK_THAT(shared_error([&](auto& worker) {
               auto net = ry::prepare_model(worker, [] { return make_net(); });
               std::stringstream file;
               torch::save(net, file);
               auto optimizer = ry::prepare_optimizer<SGD>(worker, net, options);
               torch::load(net, file);
               optimizer.step();
             }),
             ContainsSubstring("have been replaced since prepare_optimizer()"));
  CHECK_THAT(
      shared_error([&](auto& worker) {
        auto net = ry::prepare_model(worker, [] { return make_net(); });
        auto parameters = net->parameters();
        if (worker.rank() == 1) std::swap(parameters[0], parameters[1]);
        static_cast<void>(ry::prepare_optimizer<SGD>(worker, {torch::optim::OptimizerParamGroup{parameters}}, options));
      }),
      ContainsSubstring("prepare_optimizer on rank") && ContainsSubstring("tensor 0 is \"parameter 0.bias") &&
          ContainsSubstring("of group 0\" on rank 1 and \"parameter 0.weight"));
}

TEST_CASE("prepare_optimizer: ranks may take a step in different numbers of micro-batches (FAULTS D1, D2, D3, D4)") {
  const double alone = trained_alone<torch::optim::SGD>(torch::optim::SGDOptions(0.1), 0, torch::kFloat64);
  for (const bool is_prepared : {false, true}) {
    for (const auto overlap : {ry::Overlap::off, ry::Overlap::on}) {
      INFO("prepared " << is_prepared << ", overlap " << static_cast<int>(overlap));
      const auto metrics = test::on_both_threads(3, [=](auto& worker) {
        const std::size_t small = 64;  // bytes, so that there are several buckets
        auto net = ry::prepare_model(worker, [] { return make_net(); },
                                     {.overlap = overlap, .bucket_bytes = small, .first_bucket_bytes = small});
        const auto train = [&](auto optimizer) {
          for (int step = 0; step < 8; ++step) {
            optimizer.zero_grad();
            const auto rows = own_rows(batch_of(step, 12), worker.rank(), worker.world_size());
            const std::int64_t parts = worker.rank() + 1;
            for (std::int64_t part = 0; part < parts; ++part) {
              const auto some = rows.slice(0, rows.size(0) * part / parts, rows.size(0) * (part + 1) / parts);
              worker.samples(static_cast<std::uint64_t>(some.size(0)), part + 1 == parts);
              net->forward(some).pow(2).mean().backward();
            }
            optimizer.step();
          }
        };
        const torch::optim::SGDOptions options(0.1);
        if (is_prepared) {
          train(ry::prepare_optimizer<torch::optim::SGD>(worker, net, options));
        } else {
          train(torch::optim::SGD(net->parameters(), options));
        }
        worker.report({{"fingerprint", fingerprint(net->parameters())}});
      });
      CHECK(std::abs(metrics.at("fingerprint").number() / alone - 1) < 1e-10);
    }
  }
}

TEST_CASE("prepare_optimizer: gradients that zero_grad() of the model does not reach are refused at the next update") {
  using SGD = torch::optim::SGD;
  const auto train = [](bool clears_optimizer) {
    return [=](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return make_net(); });
      auto optimizer = ry::prepare_optimizer<SGD>(worker, net, torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 3; ++step) {
        clears_optimizer ? optimizer.zero_grad() : net->zero_grad();
        worker.samples(1);
        net->forward(batch_of(step, 1)).sum().backward();
        net->forward(batch_of(step, 1)).sum().backward();  // of the same step: that adds up
        optimizer.step();
        worker.samples(1);
        net->forward(batch_of(step, 1)).sum().backward();  // of another loss, as a GAN's: that is cleared
      }
    };
  };
  CHECK(test::try_run<ry::SharedMemory, ry::Threads>(2, train(true)).error() == "");
  CHECK_THAT((test::try_run<ry::SharedMemory, ry::Threads>(2, train(false)).error()),
             Catch::ContainsSubstring("still holds that of the step before") &&
                 Catch::ContainsSubstring("call zero_grad() of the optimizer"));
}

TEST_CASE("prepare_optimizer: a parameter that was made as a view is one like others") {
  test::on_threads(2, [](auto& worker) {
    struct Views : torch::nn::Module {
      torch::Tensor row = register_parameter("row", torch::ones({6}, torch::kFloat64).unsqueeze(0));
      torch::Tensor turned = register_parameter("turned", torch::ones({2, 3}, torch::kFloat64).t());
    };
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Views>(); });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.5));
    EXPECT(optimizer.is_sharded());
    worker.samples(1);
    (net->row.sum() + net->turned.sum()).backward();
    optimizer.step();
    EXPECT(torch::equal(net->row, torch::full({1, 6}, 0.5, torch::kFloat64)));
    EXPECT(torch::equal(net->turned, torch::full({3, 2}, 0.5, torch::kFloat64)));
  });
}

TEST_CASE(
    "prepare_model: a parameter that is converted on one rank before the first step is named (FAULTS D, TRAPS 5)") {
  const auto error = test::try_run<ry::SharedMemory, ry::Threads>(3, [](auto& worker) {
                       auto net = ry::prepare_model(worker, [] { return make_net(); });
                       if (worker.rank() == 2) net->to(torch::kFloat32);
                       worker.samples(1);
                       const auto type = net->parameters()[0].scalar_type();
                       net->forward(batch_of(0, 1).to(type)).sum().backward();
                     }).error();
  CHECK_THAT(error, Catch::ContainsSubstring("elements of Float on rank 2 and") &&
                        Catch::ContainsSubstring("elements of Double on rank 0") &&
                        Catch::ContainsSubstring("converted after prepare_model()"));
}

TEST_CASE("prepare_optimizer: a rank that leaves out backward() and calls step() is told apart (TRAPS 17)") {
  const auto result = test::try_run<ry::SharedMemory, ry::Threads>(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    worker.samples(1);
    if (worker.rank() == 0) net->parameters()[0].sum().backward();
    optimizer.step();
  });
  CHECK_THAT(result.error(), Catch::ContainsSubstring("rank 1 called the update of shared weights") &&
                                 Catch::ContainsSubstring("rank 0 the exchange of gradients"));
}

TEST_CASE("prepare_optimizer: there may be more groups than one record of an exchange has room for") {
  test::on_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] {
      torch::nn::ParameterList list;
      for (int i = 0; i < 2100; ++i) list->append(torch::ones({1}));
      return list;
    });
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const auto& parameter : net->parameters()) groups.emplace_back(std::vector<torch::Tensor>{parameter});
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, groups, torch::optim::SGDOptions(0.1));
    optimizer.step();
    worker.report({{"done", true}});
  });
}

TEST_CASE("prepare_optimizer: full gradients are in the order of the parameters, with a frozen one first") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] {
      auto made = make_net();
      made->parameters()[0].set_requires_grad(false);
      return made;
    });
    auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    worker.samples(1);
    net->forward(batch_of(worker.rank(), 2)).pow(2).mean().backward();
    const auto full = optimizer.full_gradients();
    EXPECT(!full[0].defined());
    for (std::size_t i = 1; i < full.size(); ++i) EXPECT(full[i].sizes() == net->parameters()[i].sizes());
    worker.report({{"done", true}});
  });
}

TEST_CASE("prepare_optimizer: after the optimizer each rank has the weights to itself") {
  test::on_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    { const auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1)); }
    worker.barrier();
    const torch::NoGradGuard no_grad;
    net->parameters()[0].fill_(worker.rank());
    worker.barrier();
    EXPECT(net->parameters()[0].mean().template item<double>() == worker.rank());
    worker.report({{"done", true}});
  });
}

TEST_CASE("prepare_optimizer: the weights stay what they are for a rank that is still at work when rank 0 has ended") {
  const auto metrics = test::on_processes(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return make_net(); });
    const auto expected = fingerprint(net->parameters());
    const auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
    worker.report({{"done", true}});
    if (worker.rank() == 0) return;
    // Until rank 0 has left the group, and with it all that it owned.
    try {
      worker.barrier();
    } catch (const ry::CollectiveError&) {
      EXPECT(fingerprint(net->parameters()) == expected);
    }
  });
  CHECK(metrics.at("done").as<bool>());
}
