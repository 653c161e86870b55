// SPDX-License-Identifier: MIT
// Prepared optimizers of weights on GPUs, whose state and work the ranks divide. See cuda_test.cpp.
#include "railyard/torch/grad_scaler.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/train/train_state.hpp"

#include "railyard/collectives/shared_memory.hpp"

#include "cuda_devices.hpp"
#include "fit.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace divided {

namespace {

namespace ry = railyard;
namespace optim = torch::optim;
using Catch::Matchers::Contains;
using railyard_test::TestNccl;
using test::FakeDevices;

constexpr std::int64_t batch_rows = 12;
constexpr std::size_t one_by_one = 1;  // bytes of a block: each parameter has one of its own

// Of which two or three ranks have uneven parts; with weights that no generator has drawn.
torch::nn::Sequential uneven_net(torch::Dtype dtype = torch::kDouble) {
  torch::nn::Sequential net(torch::nn::Linear(20, 17), torch::nn::Tanh(), torch::nn::Linear(17, 3));
  net->to(dtype);
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : net->parameters()) {
    const auto places = torch::arange(parameter.numel()).to(torch::kDouble) * 1.7 + (phase += 0.9);
    parameter.copy_(places.sin().mul(0.4).view(parameter.sizes()));
  }
  return net;
}
torch::nn::Sequential net_on_device(ry::Worker& worker, torch::Dtype dtype = torch::kDouble) {
  const auto home = ry::device(worker);
  return ry::prepare_model(worker, [home, dtype] {
    auto net = uneven_net(dtype);
    net->to(home);
    return net;
  });
}

torch::Tensor rows_of(int step) {
  return (torch::arange(batch_rows * 20).to(torch::kDouble) * 0.37 + step).sin().view({batch_rows, 20});
}
// A rank's rows of them, of which one has more than another.
torch::Tensor own_rows_of(const ry::Worker& worker, int step) {
  const std::int64_t size = worker.world_size();
  const auto begin = [&](std::int64_t rank) {
    return rank == 0 || rank == size ? batch_rows * rank / size : batch_rows * rank / size - 1;
  };
  return rows_of(step).slice(0, begin(worker.rank()), begin(worker.rank() + 1));
}

torch::Tensor flat(const std::vector<torch::Tensor>& parameters) {
  return torch::nn::utils::parameters_to_vector(parameters).detach().cpu().to(torch::kDouble);
}
bool are_near(const torch::Tensor& some, const torch::Tensor& others) {
  return torch::allclose(some, others, 1e-9, 1e-12);
}

// With an option of its own for biases.
template <class Options>
std::vector<optim::OptimizerParamGroup> groups_of(const std::vector<torch::Tensor>& parameters,
                                                  const Options& options) {
  auto other = options;
  other.lr(options.lr() / 4);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{parameters[0], parameters[2]}, std::make_unique<Options>(options));
  groups.emplace_back(std::vector<torch::Tensor>{parameters[1], parameters[3]}, std::make_unique<Options>(other));
  return groups;
}

constexpr int num_steps = 6;

template <class X, class Options>
torch::Tensor trained_alone(const Options& options, double max_norm) {
  auto net = uneven_net();
  X optimizer(groups_of(net->parameters(), options), options);
  optim::StepLR scheduler(optimizer, 2, 0.5);
  for (int step = 0; step < num_steps; ++step) {
    optimizer.zero_grad();
    net->forward(rows_of(step)).square().mean().backward();
    if (max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
    optimizer.step();
    scheduler.step();
  }
  return flat(net->parameters());
}

template <class Optimizer>
void step_once(ry::Worker& worker, torch::nn::Sequential& net, Optimizer& optimizer, int step, double max_norm = 0) {
  optimizer.zero_grad();
  const auto rows = own_rows_of(worker, step).to(net->parameters()[0].options());
  worker.samples(static_cast<std::uint64_t>(rows.size(0)));
  net->forward(rows).square().mean().backward();
  if (max_norm > 0) ry::clip_grad_norm_(optimizer, max_norm);
  optimizer.step();
}

template <class X, class Options>
torch::Tensor trained_together(ry::Worker& worker, const Options& options, double max_norm, std::size_t block_bytes) {
  auto net = net_on_device(worker);
  auto optimizer =
      ry::prepare_optimizer<X>(worker, groups_of(net->parameters(), options), options, {.block_bytes = block_bytes});
  EXPECT(optimizer.is_sharded() == (worker.world_size() > 1));
  optim::StepLR scheduler(optimizer, 2, 0.5);
  for (int step = 0; step < num_steps; ++step) {
    step_once(worker, net, optimizer, step, max_norm);
    scheduler.step();
  }
  EXPECT(net->parameters()[0].device() == ry::device(worker));
  return flat(net->parameters());
}

template <class X, class Options>
void compare(const Options& options, double max_norm = 0) {
  const FakeDevices devices;
  for (const int workers : {1, 2, 3}) {
    INFO(ry::detail::OptimizerFields<X>::name << " of " << workers << " workers");
    const auto result = test::on_devices(workers, [=](ry::Worker& worker) {
      const torch::Tensor expected = trained_alone<X>(options, max_norm);  // here: what is forked later could not
      const auto trained = trained_together<X>(worker, options, max_norm, ry::PreparedOptimizerOptions{}.block_bytes);
      EXPECT(are_near(trained, expected));
      EXPECT(trained_together<X>(worker, options, max_norm, one_by_one).equal(trained));
    });
    CHECK(result.error() == "");
  }
}

// Elements of a rank's state.
template <class X>
std::int64_t num_kept(ry::PreparedOptimizer<X>& optimizer) {
  std::int64_t count = 0;
  for (const auto& tensor : optimizer.state().tensors) {
    if (tensor.is_piece && !tensor.shape.empty()) count += tensor.end - tensor.begin;
  }
  return count;
}

}  // namespace

TEST_CASE("cuda optimizer: every optimizer trains as it does alone, with groups and a scheduler") {
  compare<optim::SGD>(optim::SGDOptions(0.1));
  compare<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(true));
  compare<optim::Adam>(optim::AdamOptions(0.02).weight_decay(1e-3));
  compare<optim::AdamW>(optim::AdamWOptions(0.02).amsgrad(true));
  compare<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.01));
  compare<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

TEST_CASE("cuda optimizer: one norm is clipped, that of the whole averaged gradient") {
  compare<optim::SGD>(optim::SGDOptions(0.5), 0.01);
}

TEST_CASE("cuda optimizer: processes train to the same weights") {
  const FakeDevices devices;
  const optim::AdamOptions options(0.02);
  const auto result = test::on_processes(2, [=](ry::Worker& worker) {
    const torch::Tensor expected = trained_alone<optim::Adam>(options, 0.1);
    EXPECT(are_near(trained_together<optim::Adam>(worker, options, 0.1, one_by_one), expected));
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: each rank keeps its part of the state, and of few weights no more than a line too much") {
  const FakeDevices devices;
  for (const int workers : {2, 3, 4}) {
    const auto result = test::on_devices(workers, [](ry::Worker& worker) {
      const auto home = ry::device(worker);
      auto net = ry::prepare_model(worker, [home] {
        torch::nn::Linear layer(60, 50);
        layer->to(home);
        return layer;
      });
      auto optimizer = ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.1));
      worker.samples(1);
      net->forward(torch::ones({1, 60}, torch::TensorOptions(home))).sum().backward();
      optimizer.step();
      const std::int64_t all = 2 * (60 * 50 + 50);
      EXPECT(num_kept(optimizer) <= all / worker.world_size() + 2 * 64);
      double sum = static_cast<double>(num_kept(optimizer));
      sum = worker.mean(sum) * worker.world_size();
      EXPECT(sum == static_cast<double>(all));
    });
    CHECK(result.error() == "");
  }
}

TEST_CASE("cuda optimizer: a parameter that nobody uses keeps its value and its state") {
  const FakeDevices devices;
  const auto result = test::on_devices(2, [](ry::Worker& worker) {
    auto net = net_on_device(worker);
    const auto parameters = net->parameters();
    auto optimizer = ry::prepare_optimizer<optim::AdamW>(worker, net, optim::AdamWOptions(0.1));
    const auto before = parameters[0].detach().clone();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      worker.samples(1);
      parameters[2].sum().backward();
      optimizer.step();
    }
    EXPECT(parameters[0].detach().equal(before));
    EXPECT(worker.mean(static_cast<double>(num_kept(optimizer))) == 2 * 51 / 2.0);
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: a gradient that is not finite on one rank leaves the step out on all") {
  const FakeDevices devices;
  const auto result = test::on_devices(2, [](ry::Worker& worker) {
    for (const bool has_masters : {false, true}) {
      auto net = net_on_device(worker, has_masters ? torch::kBFloat16 : torch::kDouble);
      auto optimizer =
          ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.5), {.master_weights = has_masters});
      const auto before = flat(net->parameters());
      worker.samples(1);
      const double factor = worker.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      (net->parameters()[0].sum() * factor).backward();
      optimizer.step();
      EXPECT(flat(net->parameters()).equal(before));
      EXPECT(has_masters || optimizer.state().tensors.empty());
      step_once(worker, net, optimizer, 0);
      EXPECT(!flat(net->parameters()).equal(before));
    }
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: an overflow of a scaled loss leaves weights and state alone") {
  const FakeDevices devices;
  const auto result = test::on_devices(2, [](ry::Worker& worker) {
    auto net = net_on_device(worker);
    const auto options = optim::SGDOptions(0.1).momentum(0.5);
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, options);
    ry::GradScaler scaler{worker, {.init_scale = 1024}};
    auto plain_net = uneven_net();
    optim::SGD plain(plain_net->parameters(), options);
    for (int step = 0; step < 4; ++step) {
      const bool overflows = step == 1;
      optimizer.zero_grad();
      const auto rows = own_rows_of(worker, step).to(ry::device(worker));
      worker.samples(static_cast<std::uint64_t>(rows.size(0)));
      const double factor = overflows && worker.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
      scaler.scale(net->forward(rows).square().mean() * factor).backward();
      scaler.unscale_(optimizer);
      ry::clip_grad_norm_(optimizer, 0.3);
      EXPECT(scaler.step(optimizer) == !overflows);
      scaler.update();
      if (overflows) continue;
      plain.zero_grad();
      plain_net->forward(rows_of(step)).square().mean().backward();
      torch::nn::utils::clip_grad_norm_(plain_net->parameters(), 0.3);
      plain.step();
    }
    EXPECT(scaler.scale() == 512);
    EXPECT(are_near(flat(net->parameters()), flat(plain_net->parameters())));
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: with master weights small updates add up, are clipped alike and follow what is written") {
  const FakeDevices devices;
  for (const int workers : {1, 2, 3}) {
    const auto result = test::on_devices(workers, [](ry::Worker& worker) {
      const auto home = ry::device(worker);
      struct Halves : torch::nn::Module {
        explicit Halves(torch::Device place) {
          first = register_parameter("first", torch::ones({150}, torch::kBFloat16).to(place));
          second = register_parameter("second", torch::ones({3, 5}, torch::kBFloat16).to(place));
          third = register_parameter("third", torch::ones({2}, torch::kFloat).to(place));
        }
        torch::Tensor first{}, second{}, third{};
      };
      auto net = ry::prepare_model(worker, [home] { return std::make_shared<Halves>(home); });
      auto optimizer =
          ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0x1p-13), {.master_weights = true});
      EXPECT(optimizer.is_sharded() == (worker.world_size() > 1));
      const auto step_down = [&](int steps, double max_norm) {
        for (int step = 0; step < steps; ++step) {
          optimizer.zero_grad();
          worker.samples(1);
          (net->first.to(torch::kFloat).sum() + net->second.to(torch::kFloat).sum() + net->third.sum()).backward();
          if (max_norm > 0) {
            const double norm = ry::clip_grad_norm_(optimizer, max_norm);
            EXPECT(std::abs(norm - std::sqrt(150 + 15 + 2)) < 1e-3);
          }
          optimizer.step();
        }
      };
      const auto are_all = [&](double value) {
        bool all = true;
        for (const auto& tensor : {net->first, net->second, net->third}) {
          all = all && flat({tensor}).equal(torch::full({tensor.numel()}, value, torch::kDouble));
        }
        return all;
      };
      step_down(128, 0);
      EXPECT(net->first.scalar_type() == torch::kBFloat16 && are_all(1 - 0x1p-6));
      step_down(1, 1e-30);
      EXPECT(are_all(1 - 0x1p-6));
      for (const auto& gradient : optimizer.full_gradients()) EXPECT(gradient.defined());
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) parameter.fill_(2);
      }
      step_down(128, 0);
      EXPECT(are_all(2 - 0x1p-6));
    });
    CHECK(result.error() == "");
  }
}

TEST_CASE("cuda optimizer: the full gradient is on every rank, and a model's zero_grad() reaches it") {
  const FakeDevices devices;
  const auto result = test::on_devices(2, [](ry::Worker& worker) {
    auto net = net_on_device(worker);
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
    auto plain = uneven_net();
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      const auto rows = own_rows_of(worker, step).to(ry::device(worker));
      worker.samples(static_cast<std::uint64_t>(rows.size(0)));
      net->forward(rows).square().mean().backward();
      plain->zero_grad();
      plain->forward(rows_of(step)).square().mean().backward();
      const auto gradients = optimizer.full_gradients();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT(are_near(gradients[i].cpu(), plain->parameters()[i].grad()));
        EXPECT(net->parameters()[i].grad().equal(gradients[i]));
      }
      optimizer.step();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : plain->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
    EXPECT(are_near(flat(net->parameters()), flat(plain->parameters())));
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: a backward pass over weights that have been updated since is refused") {
  const FakeDevices devices;
  const auto result = test::on_devices(2, [](ry::Worker& worker) {
    auto net = net_on_device(worker);
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
    const auto rows = rows_of(0).to(ry::device(worker));
    const auto loss = net->forward(rows).square().mean();
    step_once(worker, net, optimizer, 0);
    std::string error;
    try {
      loss.backward();
    } catch (const c10::Error& refused) {
      error = refused.what();
    }
    EXPECT(error.find("inplace") != std::string::npos);
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: weights that lie among others are saved alone, and can have another optimizer later") {
  const FakeDevices devices;
  const auto result = test::on_devices(2, [](ry::Worker& worker) {
    auto net = net_on_device(worker);
    const auto parameters = net->parameters();
    {
      auto first = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
      step_once(worker, net, first, 0);
    }
    EXPECT(parameters[3].storage().nbytes() == 3 * sizeof(double));
    const auto before = flat(parameters);
    auto second = ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.1));
    EXPECT(flat(parameters).equal(before));
    step_once(worker, net, second, 1);
    EXPECT(!flat(parameters).equal(before));
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: the device waits for the gathered weights, and the host for nothing") {
  const FakeDevices devices;
  if (railyard_test::has_gpu()) return;  // there nobody counts
  const auto result = test::on_devices(2, [](ry::Worker& worker) {
    const auto home = ry::device(worker);
    auto net = ry::prepare_model(worker,
                                 [home] {
                                   auto plain = uneven_net();
                                   plain->to(home);
                                   return plain;
                                 },
                                 {.non_finite = ry::NonFinite::allow, .compare_weights = false});
    auto optimizer =
        ry::prepare_optimizer<optim::Adam>(worker, net, optim::AdamOptions(0.1), {.block_bytes = one_by_one});
    const auto rows = rows_of(worker.rank()).to(home);
    unsigned long before = 0;
    for (int step = 0; step < 9; ++step) {
      if (step == 5) before = test::host_waits(home.index());
      optimizer.zero_grad();
      worker.samples(batch_rows);
      net->forward(rows).square().mean().backward();
      optimizer.step();
    }
    EXPECT(test::host_waits(home.index()) == before);
    // With that the last gathering has ended; the fakes give memory back at once, not where its stream has come to it.
    EXPECT(flat(net->parameters()).isfinite().all().item<bool>());
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda optimizer: what would go wrong without a word is refused") {
  const FakeDevices devices;
  const auto error_of = [](auto function) { return test::on_devices(2, std::move(function)).error(); };
  CHECK_THAT(error_of([](ry::Worker& worker) {
               auto net = net_on_device(worker);
               const auto average = net->parameters()[1].detach();
               static_cast<void>(ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1)));
             }),
             Contains("\"0.bias\" shares its memory with another tensor"));
  CHECK_THAT(error_of([](ry::Worker& worker) {
               auto net = net_on_device(worker);
               auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
               net->parameters()[1].set_data(net->parameters()[1].detach().clone());
               optimizer.step();
             }),
             Contains("\"0.bias\" have been replaced since prepare_optimizer()"));
  CHECK_THAT(error_of([](ry::Worker& worker) {
               auto net = net_on_device(worker);
               const ry::PreparedOptimizerOptions options{.block_bytes = worker.rank() == 0 ? 1U : 100000U};
               static_cast<void>(ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1), options));
             }),
             Contains("\"block_bytes: 100000\" on rank 1 and \"block_bytes: 1\" on rank 0"));
  CHECK_THAT(error_of([](ry::Worker& worker) {
               auto net = net_on_device(worker);
               const auto first = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
               static_cast<void>(ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1)));
             }),
             Contains("has a prepared optimizer already"));
  CHECK_THAT(error_of([](ry::Worker& worker) {
               auto net = net_on_device(worker, torch::kBFloat16);
               auto optimizer =
                   ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1), {.master_weights = true});
               step_once(worker, net, optimizer, 0);
               net->zero_grad();
               worker.samples(1);
               net->parameters()[0].sum().backward();
               optimizer.step();
             }),
             Contains("still holds that of the step before") && Contains("call zero_grad() of the optimizer"));
}

namespace {

// Trains, fails at a step if told so, and reports the sum of all weights times their numbers.
void train_resumably(ry::Worker& worker, bool is_on_gpu, int failing_step) {
  const torch::Device home = is_on_gpu ? ry::device(worker) : torch::Device(torch::kCPU);
  auto net = ry::prepare_model(worker, [home] {
    auto plain = uneven_net();
    plain->to(home);
    return plain;
  });
  const auto options = optim::AdamWOptions(0.05);
  auto optimizer = ry::prepare_optimizer<optim::AdamW>(worker, groups_of(net->parameters(), options), options);
  const auto data = torch::cat({rows_of(0), rows_of(1)});
  auto loader = ry::prepare_loader(worker, std::pair{data, torch::ones({2 * batch_rows})},
                                   {.global_batch_size = 3, .shuffle = false, .drives_step = true});
  ry::TrainState state{worker, {{"optimizer", optimizer}, {"net", net}, {"loader", loader}}};
  for ([[maybe_unused]] const int epoch : state.epochs(1)) {
    for (const auto& batch : loader) {
      if (static_cast<int>(worker.steps()) == failing_step) throw std::runtime_error{"as planned"};
      optimizer.zero_grad();
      net->forward(batch.data).square().mean().backward();
      optimizer.step();
    }
  }
  const auto weights = flat(net->parameters());
  worker.report({{"sum", (weights * torch::arange(weights.numel()).to(torch::kDouble)).sum().item<double>()}});
}

// Where workers train: so many, on GPUs or not.
struct Where {
  int num_workers = 1;
  bool is_on_gpu = true;
};

template <class Backend>
ry::Result fit_by(const Where& where, const ry::RunConfig& config, int failing_step) {
  const auto train = [=](auto& worker) { train_resumably(worker, where.is_on_gpu, failing_step); };
  // All of one kind, for processes could run no backward() after threads of this one.
  if (railyard_test::has_gpu()) {
    return ry::Trainer<Backend, ry::Processes>{train, {.num_workers = where.num_workers}, config}.fit();
  }
  return ry::Trainer<Backend, ry::Threads>{train, {.num_workers = where.num_workers}, config}.fit();
}

ry::Result fit(const Where& where, const ry::RunConfig& config, int failing_step) {
  if (where.is_on_gpu) return fit_by<TestNccl>(where, config, failing_step);
  return fit_by<ry::SharedMemory>(where, config, failing_step);
}

}  // namespace

TEST_CASE("cuda optimizer: a state goes on on any number of GPUs, and from and to CPUs") {
  const FakeDevices devices;
  const auto sum_of = [](int failing_step, const Where& first, const Where& later) {
    const TemporaryFolder folder;
    ry::RunConfig config{.name = "run", .storage_path = folder.path(), .progress = ry::Progress::quiet};
    config.checkpoint.every_steps = 1;
    config.collective_timeout = std::chrono::seconds{20};
    if (failing_step >= 0) CHECK_THAT(fit(first, config, failing_step).error(), Contains("as planned"));
    return fit(later, config, -1).value_or_throw().metrics().at("sum").number();
  };
  const double whole = sum_of(-1, {.num_workers = 1}, {.num_workers = 1, .is_on_gpu = false});
  const auto is_whole = [whole](double sum) { return std::abs(sum / whole - 1) < 1e-10; };
  CHECK(is_whole(sum_of(-1, {}, {.num_workers = 2})));
  CHECK(is_whole(sum_of(5, {.num_workers = 2}, {.num_workers = 2})));
  CHECK(is_whole(sum_of(3, {.num_workers = 2}, {.num_workers = 3})));
  CHECK(is_whole(sum_of(4, {.num_workers = 3}, {.num_workers = 1})));
  CHECK(is_whole(sum_of(4, {.num_workers = 1}, {.num_workers = 2})));
  CHECK(is_whole(sum_of(4, {.num_workers = 2}, {.num_workers = 3, .is_on_gpu = false})));
  CHECK(is_whole(sum_of(4, {.num_workers = 3, .is_on_gpu = false}, {.num_workers = 2})));
}

}  // namespace divided
