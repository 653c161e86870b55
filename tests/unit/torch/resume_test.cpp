// SPDX-License-Identifier: MIT
// Runs that fail half way and go on from what was saved of everything that trains.
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/train/random.hpp"
#include "railyard/train/train_state.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace ry = railyard;

namespace {

// One that draws random numbers has dropout as well, which only the states of the generators bring back.
torch::nn::Sequential make_layers(bool is_random) {
  torch::nn::Sequential layers(torch::nn::Linear(8, 40));
  if (is_random) {
    layers->push_back(torch::nn::BatchNorm1d(40));
    layers->push_back(torch::nn::Dropout(0.3));
  }
  layers->push_back(torch::nn::Tanh());
  layers->push_back(torch::nn::Linear(40, 3));
  layers->to(torch::kFloat64);
  return layers;
}

double sum_of_weights(const torch::nn::Module& net) {
  double sum = 0;
  for (const auto& parameter : net.parameters()) {
    const auto flat = parameter.detach().reshape({-1});
    sum += (flat * torch::arange(1, flat.numel() + 1, torch::kFloat64)).sum().item<double>();
  }
  return sum;
}

template <class W>
void train_and_fail(W& worker, std::uint64_t failing_step, bool is_random) {
  auto net = ry::prepare_model(worker, [=] { return make_layers(is_random); });
  const auto data = (torch::arange(44 * 8, torch::kFloat64).view({44, 8}) * 0.37).sin();
  auto loader = ry::prepare_loader(worker, std::pair{data, data.sum(1)},
                                   {.global_batch_size = 8, .shuffle = true, .drives_step = true});
  auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(0.01));
  torch::optim::StepLR scheduler(optimizer, 4, 0.7);
  ry::TorchRandom random;
  std::mt19937_64 engine(worker.seed());
  ry::TrainState state{worker,
                       {{"net", net},
                        {"optimizer", optimizer},
                        {"scheduler", scheduler},
                        {"loader", loader},
                        {"random", random},
                        {"engine", engine}}};
  for ([[maybe_unused]] const int epoch : state.epochs(3)) {
    for (const auto& batch : loader) {
      if (worker.attempt() == 0 && worker.steps() == failing_step) throw std::runtime_error{"as planned"};
      optimizer.zero_grad();
      const double noise = is_random ? static_cast<double>(engine() >> 11U) * 0x1p-53 : 0.5;
      (net->forward(batch.data) - batch.target.unsqueeze(1) - noise).pow(2).mean().backward();
      optimizer.step();
      scheduler.step();
    }
  }
  worker.report({{"sum", sum_of_weights(*net)}});
}

constexpr std::uint64_t never = 1000;

std::string new_folder() {
  std::string folder = (std::filesystem::temp_directory_path() / "railyard_torch_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw ry::Error{"cannot make " + folder};
  return folder;
}

// Each attempt of the run has so many workers.
template <class Backend, class Scaling>
double sum_of(std::uint64_t failing_step, bool is_random, int num_workers, int num_workers_later) {
  const std::string folder = new_folder();
  ry::RunConfig config{.name = "run", .storage_path = folder, .seed = 3, .progress = ry::Progress::quiet};
  config.checkpoint.every_steps = 3;
  config.collective_timeout = std::chrono::seconds{20};
  const auto fit = [&](int workers) {
    ry::Trainer<Backend, Scaling> trainer{
        [=](auto& worker) { train_and_fail(worker, failing_step, is_random); }, {.num_workers = workers}, config};
    return trainer.fit();
  };
  config.failure.max_failures = num_workers == num_workers_later ? 1 : 0;
  ry::Result result = fit(num_workers);
  if (!result && num_workers != num_workers_later) {
    config.failure.max_failures = 1;  // the first attempt of this program fails as well
    result = fit(num_workers_later);
  }
  std::filesystem::remove_all(folder);
  return result.value_or_throw().metrics().at("sum").number();
}

}  // namespace

TEST_CASE(
    "Resume: processes end with equal bits, dropout, BatchNorm and a user's random numbers included (FAULTS F15)") {
  const double whole = sum_of<ry::Gloo, ry::Processes>(never, true, 2, 2);
  for (const std::uint64_t step : {1U, 5U, 8U, 13U}) {
    INFO("failed in step " << step);
    CHECK(sum_of<ry::Gloo, ry::Processes>(step, true, 2, 2) == whole);
  }
}

TEST_CASE("Resume: what a loop does after an epoch is not left out where the run fails between the two") {
  const std::string folder = new_folder();
  const auto train = [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(1, 1); });
    auto loader = ry::prepare_loader(worker, std::pair{torch::ones({6, 1}), torch::ones({6})},
                                     {.global_batch_size = 2, .drives_step = true});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1));
    torch::optim::StepLR scheduler(optimizer, 1, 0.5);
    ry::TrainState state{worker,
                         {{"net", net}, {"loader", loader}, {"optimizer", optimizer}, {"scheduler", scheduler}}};
    for (const int epoch : state.epochs(3)) {
      for (const auto& batch : loader) net->forward(batch.data).sum().backward();
      if (epoch == 1 && worker.attempt() == 0) throw std::runtime_error{"as planned"};
      scheduler.step();
      worker.report({{"epoch", epoch}, {"rate", optimizer.param_groups()[0].options().get_lr()}}, state);
    }
  };
  ry::RunConfig config{.name = "run", .storage_path = folder, .progress = ry::Progress::quiet};
  config.checkpoint.every_steps = 1;
  config.failure.max_failures = 1;
  ry::Trainer<ry::SharedMemory, ry::Threads> trainer{train, {.num_workers = 2}, config};
  const ry::Result result = trainer.fit();
  std::filesystem::remove_all(folder);
  REQUIRE(result);
  REQUIRE(result.history().size() == 3);
  CHECK(result.metrics().at("rate").number() == 0.25);  // LibTorch's first step of a scheduler changes nothing
}

TEST_CASE("Resume: tells where gradients are exchanged in other buckets than before, and not where they are not") {
  const std::string folder = new_folder();
  const auto warnings_of = [&folder](std::size_t bucket_bytes, std::uint64_t failing_step) {
    const auto train = [=](auto& worker) {
      const ry::ModelOptions options{
          .overlap = ry::Overlap::on, .bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes};
      auto net = ry::prepare_model(
          worker, [] { return make_layers(false); }, options);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.001));
      ry::TrainState state{worker, {{"net", net}}};
      while (worker.steps() < failing_step) {
        worker.samples(4);
        optimizer.zero_grad();
        net->forward(torch::ones({4, 8}, torch::kFloat64)).sum().backward();
        optimizer.step();
        worker.end_step();
      }
      throw std::runtime_error{"as planned"};
    };
    ry::RunConfig config{.name = "run", .storage_path = folder, .progress = ry::Progress::quiet};
    config.checkpoint = {.keep = 1, .every_steps = 1, .synchronous = true};
    ry::Trainer<ry::Gloo, ry::Processes> trainer{train, {.num_workers = 2}, config};
    const ry::Result result = trainer.fit();
    REQUIRE(result.checkpoint());
    const ry::NamedValues& environment = result.checkpoint()->manifest().environment;
    CHECK(environment.at("bucket_bytes").template as<std::int64_t>() == static_cast<std::int64_t>(bucket_bytes));
    CHECK(environment.find("bucket_plan") != nullptr);
    std::string all;
    for (const std::string& warning : result.warnings()) all += warning + "\n";
    return all;
  };
  CHECK(warnings_of(1000, 6).find("bits may differ") == std::string::npos);
  CHECK(warnings_of(1000, 12).find("bits may differ") == std::string::npos);
  const std::string other = warnings_of(2000, 18);
  std::filesystem::remove_all(folder);
  CHECK_THAT(other,
             ContainsSubstring("with bucket_bytes 2000 instead of 1000, first_bucket_bytes 2000 instead of 1000"));
  CHECK_THAT(other, ContainsSubstring("with bucket_plan ") && ContainsSubstring(" buckets, "));
}

TEST_CASE("Resume: threads do so without random numbers, and other numbers of workers up to rounding") {
  const double whole = sum_of<ry::SharedMemory, ry::Threads>(never, false, 2, 2);
  CHECK(sum_of<ry::SharedMemory, ry::Threads>(10, false, 2, 2) == whole);
  CHECK(sum_of<ry::SharedMemory, ry::Threads>(10, false, 2, 3) == Approx(whole).epsilon(1e-9));
  CHECK(sum_of<ry::SharedMemory, ry::Threads>(10, false, 3, 1) == Approx(whole).epsilon(1e-9));
}
