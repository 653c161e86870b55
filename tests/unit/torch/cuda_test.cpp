// SPDX-License-Identifier: MIT
// Training on devices: models, batches and states that lie on GPUs. On the fakes of tests/fakes, with a LibTorch that
// was built for CPUs, to which fake_torch_cuda lends tensors on CUDA devices; or, with RAILYARD_TEST_GPU=1, on the GPU
// of this host, which all ranks share, where tests/gpu.sh runs them.
#include "railyard/collectives/nccl.hpp"
#include "railyard/torch/batch_norm.hpp"
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/torch/sync_batch_norm.hpp"
#include "railyard/train/train_state.hpp"

#include "railyard/workers/processes.hpp"

#include "cuda_devices.hpp"
#include "equal_net.hpp"
#include "fit.hpp"
#include "support/catch.hpp"
#include "support/staged_nccl.hpp"
#include "support/temporary_folder.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cuda {  // suites are compiled as one source as well

namespace {

namespace ry = railyard;
using Catch::Matchers::Contains;
using railyard_test::has_gpu;
using railyard_test::TestNccl;
using test::batch_size;
using test::equal_net;
using test::FakeDevices;
using test::num_samples;
using test::on_devices;
using test::on_processes;
using test::samples_of;

torch::Tensor weights_of(const torch::nn::Sequential& net) {
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach().cpu();
}

torch::Tensor trained_alone(double max_norm) {
  auto net = equal_net(torch::kDouble);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  const auto [data, target] = samples_of(torch::kDouble);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t begin = 0; begin < num_samples; begin += batch_size) {
      const std::int64_t end = std::min(begin + batch_size, num_samples);
      optimizer.zero_grad();
      torch::cross_entropy_loss(net->forward(data.slice(0, begin, end)), target.slice(0, begin, end)).backward();
      if (max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
      optimizer.step();
    }
  }
  return weights_of(net);
}

torch::nn::Sequential net_on(torch::Device home) {
  auto net = equal_net(torch::kDouble);
  net->to(home);
  return net;
}

template <class Optimizer, class Clip>
void train(ry::Worker& worker, torch::nn::Sequential& net, Optimizer& optimizer, std::size_t micro_batches,
           const Clip& clip) {
  const torch::Device home = ry::device(worker);
  auto loader = ry::prepare_loader(
      worker, samples_of(torch::kDouble),
      {.global_batch_size = batch_size, .shuffle = false, .drives_step = true, .micro_batches = micro_batches});
  for (int epoch = 0; epoch < 2; ++epoch) {
    optimizer.zero_grad();
    for (const auto& batch : loader) {
      EXPECT(batch.data.device() == home && batch.target.device() == home);
      torch::cross_entropy_loss(net->forward(batch.data), batch.target).backward();
      if (!batch.completes_step()) continue;
      clip();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
}

// Trains as trained_alone() does, on this worker's device, and expects the same weights.
void train_on_device(ry::Worker& worker, std::size_t micro_batches, double max_norm) {
  const torch::Device home = ry::device(worker);
  EXPECT(home.is_cuda() && home.index() == (has_gpu() ? 0 : worker.local_rank()));
  const torch::optim::AdamOptions options(0.01);
  const torch::Tensor expected = trained_alone(max_norm);
  auto net = ry::prepare_model(worker, [home] { return net_on(home); });
  torch::optim::Adam plain(net->parameters(), options);
  train(worker, net, plain, micro_batches, [&] {
    if (max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
  });
  auto other = ry::prepare_model(worker, [home] { return net_on(home); });
  auto prepared = ry::prepare_optimizer<torch::optim::Adam>(worker, other, options);
  train(worker, other, prepared, micro_batches, [&] {
    if (max_norm > 0) prepared.clip_grad_norm_(max_norm);
  });
  for (const auto& trained : {net, other}) {
    EXPECT(trained->parameters().front().device() == home);
    EXPECT(torch::allclose(weights_of(trained), expected, 1e-9, 1e-12));
  }
}

}  // namespace

TEST_CASE("cuda: the fake gives tensors on a device, whose memory is not the host's to read") {
  const FakeDevices devices;
  const auto tensor = torch::arange(6, torch::kFloat).to(torch::Device(torch::kCUDA, 1));
  CHECK(tensor.device() == torch::Device(torch::kCUDA, 1));
  const auto view = tensor.view({2, 3}).t();
  CHECK(view.storage().is_alias_of(tensor.storage()));
  view.add_(1);
  CHECK(tensor.cpu().equal(torch::arange(6, torch::kFloat) + 1));
  CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) >> 62U == 1);
}

TEST_CASE("cuda: backward passes of the fake run on a thread of the device") {
  const FakeDevices devices;
  const auto weight = torch::ones({3}, torch::TensorOptions(torch::kCUDA)).requires_grad_();
  std::thread::id thread;
  const auto hooked = weight * 2;
  hooked.register_hook([&thread](const torch::Tensor&) { thread = std::this_thread::get_id(); });
  hooked.sum().backward();
  CHECK(thread != std::this_thread::get_id());
  CHECK(weight.grad().is_cuda());
  CHECK(weight.grad().cpu().equal(torch::full({3}, 2.0F)));
}

TEST_CASE("cuda: workers with a GPU each end where a plain loop ends") {
  const FakeDevices devices;
  for (const int workers : {1, 2, 4}) {
    for (const std::size_t micro_batches : {1U, 3U}) {
      for (const double max_norm : {0.0, 0.02}) {
        const auto result = on_devices(workers, [micro_batches, max_norm](ry::Worker& worker) {
          train_on_device(worker, micro_batches, max_norm);
        });
        CHECK(result.error() == "");
      }
    }
  }
}

TEST_CASE("cuda: processes with a GPU each end where a plain loop ends") {
  const FakeDevices devices;
  const auto result = on_processes(2, [](ry::Worker& worker) { train_on_device(worker, 1, 0.02); });
  CHECK(result.error() == "");
}

TEST_CASE("cuda: collectives on tensors of a device, contiguous or not, and on numbers of the host") {
  const FakeDevices devices;
  const auto result = on_devices(3, [](ry::Worker& worker) {
    const auto tensor = torch::arange(6, torch::kFloat).to(ry::device(worker)).view({2, 3}).t() + worker.rank();
    ry::all_reduce(worker, tensor);
    EXPECT(tensor.cpu().equal((torch::arange(6, torch::kFloat).view({2, 3}).t() * 3 + 3)));
    EXPECT(ry::all_gather(worker, tensor).device() == tensor.device());
    EXPECT(worker.mean(static_cast<double>(worker.rank())) == 1);
    worker.barrier();
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda: what names no device is made on the worker's, which no other draws the same numbers on") {
  const FakeDevices devices;
  const auto result = on_devices(2, [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] {
      torch::nn::Linear plain(4, 4);
      plain->to(torch::kCUDA);
      return plain;
    });
    EXPECT(net->weight.device() == ry::device(worker));
    const auto drawn = torch::rand({16}, torch::TensorOptions(torch::kCUDA));
    EXPECT(drawn.device() == ry::device(worker));
    const auto all = ry::all_gather(worker, drawn).cpu();
    EXPECT(!all[0].equal(all[1]));
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda: a NaN on one rank leaves the step out on all") {
  const FakeDevices devices;
  const auto result = on_devices(2, [](ry::Worker& worker) {
    const auto home = ry::device(worker);
    auto net = ry::prepare_model(worker, [home] { return net_on(home); });
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto before = weights_of(net);
    worker.samples(2);
    auto data = torch::ones({2, 6}, torch::TensorOptions(torch::kDouble).device(home));
    if (worker.rank() == 1) data.mul_(std::numeric_limits<double>::quiet_NaN());
    net->forward(data).sum().backward();
    optimizer.step();
    EXPECT(weights_of(net).equal(before));
    worker.samples(2);
    net->forward(torch::ones_like(data)).sum().backward();
    optimizer.step();
    EXPECT(!weights_of(net).equal(before));
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda: normalisation over all ranks, of which one has more of the batch") {
  const FakeDevices devices;
  struct Net : torch::nn::Module {
    Net() {
      embedding = register_module("embedding", torch::nn::Embedding(10, 4));
      norm = register_module("norm", ry::nn::BatchNorm1d(4));
      to(torch::kDouble);
    }
    torch::Tensor forward(const torch::Tensor& words) { return norm->forward(embedding->forward(words)); }
    torch::nn::Embedding embedding{nullptr};
    ry::nn::BatchNorm1d norm{nullptr};
  };
  const auto build = [] {
    torch::manual_seed(5);
    return std::make_shared<Net>();
  };
  const auto words = torch::arange(7) * 3 % 10;
  const auto alone = build();
  (alone->forward(words) * torch::arange(4).to(torch::kDouble).sin()).pow(2).mean().backward();
  const auto gradient = alone->embedding->weight.grad().clone();
  const auto variance = alone->norm->running_var.clone();
  const auto result = on_devices(2, [=](ry::Worker& worker) {
    const auto home = ry::device(worker);
    auto net = ry::prepare_model(worker, [&] {
      auto plain = build();
      plain->to(home);
      return plain;
    });
    EXPECT(ry::sync_batch_norm(worker, net) == 1);
    const auto mine = worker.rank() == 0 ? words.slice(0, 0, 2) : words.slice(0, 2, 7);
    worker.samples(static_cast<std::uint64_t>(mine.size(0)));
    const auto factors = torch::arange(4).to(torch::kDouble).sin().to(home);
    (net->forward(mine.to(home)) * factors).pow(2).mean().backward();
    EXPECT(torch::allclose(net->embedding->weight.grad().cpu(), gradient, 1e-9, 1e-12));
    EXPECT(torch::allclose(net->norm->running_var.cpu(), variance, 1e-9, 1e-12));
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda: a weight on another GPU than the worker's is an error, and one on the CPU is told of") {
  const FakeDevices devices;
  const auto elsewhere = on_devices(2, [](ry::Worker& worker) {
    static_cast<void>(ry::prepare_model(worker, [] {
      torch::nn::Linear net(2, 2);
      net->to(torch::Device(torch::kCUDA, 3));
      return net;
    }));
  });
  CHECK_THAT(elsewhere.error(),
             Contains("weight lies on cuda:3, and this worker's GPU is cuda:") && Contains("->to(ry::device(worker))"));
  const auto on_cpu = on_devices(2, [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(2, 1); });
    worker.samples(1);
    net->forward(torch::full({1, 2}, static_cast<float>(worker.rank() + 1))).sum().backward();
    EXPECT(net->weight.grad().equal(torch::full({1, 2}, 1.5F)));
  });
  CHECK(on_cpu.error() == "");
  REQUIRE(!on_cpu.warnings().empty());
  CHECK_THAT(on_cpu.warnings().front(), Contains("2 of the model's 2 tensors, such as weight, lie on the CPU"));
}

TEST_CASE("cuda: processes that fail go on with equal bits, what their GPUs draw included") {
  const FakeDevices devices;
  const auto sum_of = [](bool fails) {
    const TemporaryFolder folder;
    ry::RunConfig config{.name = "run", .storage_path = folder.path(), .seed = 3, .progress = ry::Progress::quiet};
    config.checkpoint.every_steps = 2;
    config.failure.max_failures = 1;
    config.collective_timeout = std::chrono::seconds{20};
    ry::Trainer<TestNccl, ry::Processes> trainer{
        [fails](ry::Worker& worker) {
          const auto home = ry::device(worker);
          auto net = ry::prepare_model(worker, [home] {
            torch::nn::Sequential layers(torch::nn::Linear(6, 20), torch::nn::Dropout(0.4), torch::nn::Linear(20, 1));
            layers->to(torch::kDouble);
            layers->to(home);
            return layers;
          });
          auto loader =
              ry::prepare_loader(worker, samples_of(torch::kDouble), {.global_batch_size = 8, .drives_step = true});
          torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
          ry::TorchRandom random;
          ry::TrainState state{worker,
                               {{"net", net}, {"optimizer", optimizer}, {"loader", loader}, {"random", random}}};
          for ([[maybe_unused]] const int epoch : state.epochs(2)) {
            for (const auto& batch : loader) {
              if (fails && worker.attempt() == 0 && worker.steps() == 5) throw std::runtime_error{"as planned"};
              optimizer.zero_grad();
              (net->forward(batch.data).squeeze(1) - batch.target).pow(2).mean().backward();
              optimizer.step();
            }
          }
          const auto weights = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
          worker.report({{"sum", (weights * weights.sin()).sum().template item<double>()}});
        },
        {.num_workers = 2},
        config};
    return trainer.fit().value_or_throw().metrics().at("sum").number();
  };
  CHECK(sum_of(true) == sum_of(false));
}

TEST_CASE("cuda: processes forked after a backward pass are told that they can run none") {
  const FakeDevices devices;
  torch::ones({2}).requires_grad_().sum().backward();  // on the CPU, and yet it begins the devices' threads
  const auto result = on_processes(2, [](ry::Worker& worker) {
    static_cast<void>(ry::prepare_model(worker, [&worker] { return net_on(ry::device(worker)); }));
  });
  CHECK_THAT(result.error(), Contains("forked from one that had run backward() before") &&
                                 Contains("or in a training function of its own, or use Launched"));
}

}  // namespace cuda
