// SPDX-License-Identifier: MIT
// Gradients that are summed on the device while the backward pass goes on. As cuda_test.cpp.
#include "railyard/collectives/nccl.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/torch/grad_scaler.hpp"
#include "railyard/torch/prepare_model.hpp"

#include "cuda_devices.hpp"
#include "support/catch.hpp"
#include "support/places.hpp"
#include "support/setting.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace cuda_overlap {  // suites are compiled as one source as well

namespace {

namespace ry = railyard;
using Catch::Matchers::Contains;
using test::FakeDevices;
using test::has_gpu;
using test::host_waits;
using test::on_devices;
using test::on_processes;

// Layers of odd sizes: one of them has two names, one is frozen, one is mostly left out.
struct Net : torch::nn::Module {
  Net() {
    for (const std::int64_t width : {67, 31, 31, 31, 5}) {
      layers.push_back(register_module("layer" + std::to_string(layers.size()), torch::nn::Linear(in, width)));
      in = width;
    }
    tied = register_module("tied", layers[2]);
    spare = register_module("spare", torch::nn::Linear(5, 5));
    layers[1]->bias.set_requires_grad(false);
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel()).to(torch::kDouble).sin().mul(0.3).view_as(parameter));
    }
  }
  torch::Tensor forward(torch::Tensor x, bool uses_spare) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return uses_spare ? spare(x) : x;
  }
  std::int64_t in = 13;
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear tied{nullptr};
  torch::nn::Linear spare{nullptr};
};

std::shared_ptr<Net> prepared_net(ry::Worker& worker, const ry::ModelOptions& options) {
  const auto home = ry::device(worker);
  return ry::prepare_model(
      worker,
      [home] {
        auto net = std::make_shared<Net>();
        net->to(home);
        return net;
      },
      options);
}

torch::Tensor input(const torch::Device& home, std::int64_t samples, double phase) {
  const auto all = torch::sin(torch::arange((samples + 1) * 13).to(torch::kDouble) * 0.1 + phase);
  return all.narrow(0, 0, std::max<std::int64_t>(samples, 1) * 13).view({-1, 13}).to(home);
}

constexpr int num_steps = 12;

// What is left of each step: its gradients, none where there is none, and the weights, on the CPU.
using Seen = std::vector<std::vector<torch::Tensor>>;

// Steps with several micro-batches or passes, in which ranks use different layers and have different numbers of
// samples, or none.
Seen train(ry::Worker& worker, const ry::ModelOptions& options) {
  const auto home = ry::device(worker);
  auto net = prepared_net(worker, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const int rank = worker.rank();
  Seen seen;
  for (int step = 0; step < num_steps; ++step) {
    if (step % 3 == 0) {
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    } else {
      optimizer.zero_grad();  // in LibTorch 1.13 in place
    }
    const int num_parts = step == 6 ? 3 : 1;
    for (int part = 0; part < num_parts; ++part) {
      const std::int64_t samples = step == 7 && rank == 0 ? 0 : 3 + rank + part;
      worker.samples(static_cast<std::uint64_t>(samples), part + 1 == num_parts);
      const bool uses_spare = step == 4 || (step == 5 && rank == 1) || (step == 7 && rank == 0) || step > 9;
      for (int pass = 0; pass < (step == 8 ? 2 : 1); ++pass) {
        const auto x = input(home, samples, 0.1 * rank + step + pass);
        auto loss = net->forward(x, uses_spare && pass == 0).square().mean();
        if (step == 3 && rank == 1) loss = loss * std::numeric_limits<double>::quiet_NaN();  // left out on all
        loss.backward();
      }
    }
    std::vector<torch::Tensor> left;
    for (const auto& parameter : net->parameters()) {
      left.push_back(parameter.grad().defined() ? parameter.grad().cpu().clone() : torch::Tensor{});
    }
    optimizer.step();
    for (const auto& parameter : net->parameters()) left.push_back(parameter.detach().cpu().clone());
    seen.push_back(std::move(left));
  }
  return seen;
}

// Where they part; empty if they do not.
std::string difference(const Seen& one, const Seen& other) {
  for (std::size_t step = 0; step < one.size(); ++step) {
    for (std::size_t at = 0; at < one[step].size(); ++at) {
      const auto& ours = one[step][at];
      const auto& theirs = other.at(step).at(at);
      const bool is_close =
          ours.defined() ? theirs.defined() && torch::allclose(ours, theirs, 1e-9, 1e-12) : !theirs.defined();
      if (!is_close) return "step " + std::to_string(step) + ", tensor " + std::to_string(at);
    }
  }
  return "";
}

// On CPUs, of each rank.
std::vector<Seen> trained_on_cpus(int num_workers) {
  std::vector<Seen> all(static_cast<std::size_t>(num_workers));
  const auto result = test::try_run<ry::SharedMemory, ry::Threads>(num_workers, [&all](ry::Worker& worker) {
    all[static_cast<std::size_t>(worker.rank())] = train(worker, {.overlap = ry::Overlap::off});
  });
  CHECK(result.error() == "");
  return all;
}

ry::ModelOptions one_each(ry::Overlap overlap = ry::Overlap::automatic) {
  ry::ModelOptions options{.overlap = overlap};
  options.bucket_bytes = options.first_bucket_bytes = 1;
  return options;
}

// Trains for some steps and returns how often the host has waited for the device in the last few.
unsigned long waits_of(ry::Worker& worker, const ry::ModelOptions& options) {
  const auto home = ry::device(worker);
  auto net = prepared_net(worker, options);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto x = input(home, 4, worker.rank());
  unsigned long before = 0;
  for (int step = 0; step < 9; ++step) {
    if (step == 5) before = host_waits(home.index());
    worker.samples(4);
    optimizer.zero_grad();
    net->forward(x, false).square().mean().backward();
    optimizer.step();
  }
  return host_waits(home.index()) - before;
}

// Trains, until in rank 1's sixth backward pass, when the gradients of the layers above are on their way, a fault
// comes.
template <class Fault>
void train_until(ry::Worker& worker, Fault fault) {
  const auto home = ry::device(worker);
  auto net = prepared_net(worker, one_each());
  for (int step = 0; step < 1000; ++step) {
    worker.samples(4);
    auto x = input(home, 4, worker.rank());
    for (std::size_t at = 0; at < net->layers.size(); ++at) {
      x = torch::tanh(net->layers[at](x));
      if (at == 1 && step == 5 && worker.rank() == 1) x.register_hook([fault](const torch::Tensor&) { fault(); });
    }
    x.square().mean().backward();
    EXPECT(step < 5);
  }
}

}  // namespace

TEST_CASE("cuda overlap: gradients and weights of every step are those of workers on CPUs") {
  const FakeDevices devices;
  for (const int workers : {2, 3}) {
    const std::vector<Seen> expected = trained_on_cpus(workers);
    for (const auto& options : {one_each(), one_each(ry::Overlap::off), ry::ModelOptions{}}) {
      const auto result = on_devices(workers, [&expected, options](ry::Worker& worker) {
        const std::string where = difference(train(worker, options), expected[static_cast<std::size_t>(worker.rank())]);
        test::expect(where.empty(), "equal gradients and weights in " + where);
      });
      CHECK(result.error() == "");
    }
  }
}

TEST_CASE("cuda overlap: gradients in half types are summed in f32") {
  const FakeDevices devices;
  const auto result = on_devices(2, [](ry::Worker& worker) {
    const auto home = ry::device(worker);
    auto net = ry::prepare_model(
        worker,
        [home] {
          torch::nn::Sequential layers(torch::nn::Linear(3, 5), torch::nn::Linear(5, 1));
          layers->to(home, torch::kBFloat16);
          return layers;
        },
        one_each());
    for (int step = 0; step < 5; ++step) {
      worker.samples(1000);
      const double value = worker.rank() == 0 ? 1.0 : 1.0 + 1.0 / 64;
      auto loss = torch::zeros({}, torch::TensorOptions(torch::kBFloat16).device(home));
      for (const auto& parameter : net->parameters()) loss = loss + (parameter * value).sum();
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
      loss.backward();
      for (const auto& parameter : net->parameters()) {
        EXPECT(parameter.grad().scalar_type() == torch::kBFloat16);
        EXPECT(parameter.grad().cpu().equal(torch::full_like(parameter, 1.0 + 1.0 / 128).cpu()));
      }
    }
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda overlap: gradients of a bucket are parts of one memory, which stays from step to step") {
  const FakeDevices devices;
  const auto result = on_devices(2, [](ry::Worker& worker) {
    auto net = prepared_net(worker, {});
    std::vector<void*> before;
    for (int step = 0; step < 6; ++step) {
      worker.samples(4);
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
      net->forward(input(ry::device(worker), 4, worker.rank()), false).square().mean().backward();
      std::vector<void*> now;
      for (const auto& parameter : net->parameters()) {
        if (!parameter.grad().defined()) continue;
        now.push_back(parameter.grad().data_ptr());
        const auto& first = net->layers.front()->weight.grad();
        EXPECT(step < 3 || parameter.grad().storage().is_alias_of(first.storage()));
      }
      EXPECT(step < 4 || now == before);
      before = now;
    }
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda overlap: the host waits for nothing of the device in a step") {
  if (has_gpu()) return;  // which does not count
  const FakeDevices devices;
  for (const auto overlap : {ry::Overlap::automatic, ry::Overlap::off}) {
    auto options = one_each(overlap);
    options.non_finite = ry::NonFinite::allow;
    const auto result = on_devices(2, [options](ry::Worker& worker) { EXPECT(waits_of(worker, options) == 0); });
    CHECK(result.error() == "");
  }
}

TEST_CASE("cuda overlap: whether gradients are finite costs one wait in a step, on any number of workers") {
  if (has_gpu()) return;  // which does not count
  const FakeDevices devices;
  for (const int workers : {1, 2}) {
    const auto result = on_devices(workers, [](ry::Worker& worker) { EXPECT(waits_of(worker, one_each()) == 4); });
    CHECK(result.error() == "");
  }
}

TEST_CASE("cuda overlap: a worker alone finds what is not finite, among gradients of one type or of several") {
  const FakeDevices devices;
  const auto result = on_devices(1, [](ry::Worker& worker) {
    const auto home = ry::device(worker);
    auto net = ry::prepare_model(worker, [home] {
      torch::nn::Sequential layers;
      for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16, torch::kDouble}) {
        torch::nn::Linear layer(3, 2);
        layer->to(home, type);
        layers->push_back(layer);
      }
      return layers;
    });
    const auto parameters = net->parameters();
    for (std::size_t at = 0; at <= parameters.size(); ++at) {  // the last time none is
      worker.samples(1);
      for (const auto& parameter : parameters) parameter.mutable_grad().reset();
      auto loss = torch::zeros({}, torch::TensorOptions(torch::kDouble).device(home));
      for (std::size_t other = 0; other < parameters.size(); ++other) {
        const double factor = other == at ? std::numeric_limits<double>::infinity() : 2;
        loss = loss + (parameters[other] * factor).sum().to(torch::kDouble);
      }
      loss.backward();
      for (const auto& parameter : parameters) EXPECT(parameter.grad().defined() == (at == parameters.size()));
    }
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda overlap: an overflow on one rank is found on all, and the step left out") {
  const FakeDevices devices;
  const auto result = on_devices(2, [](ry::Worker& worker) {
    auto net = prepared_net(worker, one_each());
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
    ry::GradScaler scaler{worker, {.init_scale = 1024}};
    for (int step = 0; step < 8; ++step) {
      worker.samples(4);
      optimizer.zero_grad();
      auto loss = net->forward(input(ry::device(worker), 4, worker.rank()), false).square().mean();
      const bool overflows = step == 5;
      if (overflows && worker.rank() == 1) loss = loss * std::numeric_limits<double>::infinity();
      const auto before = torch::nn::utils::parameters_to_vector(net->parameters()).detach().cpu().clone();
      scaler.scale(loss).backward();
      EXPECT(scaler.step(optimizer) != overflows);
      scaler.update();
      const auto after = torch::nn::utils::parameters_to_vector(net->parameters()).detach().cpu();
      EXPECT(after.equal(before) == overflows);
      EXPECT(after.isfinite().all().item<bool>());
    }
    EXPECT(scaler.scale() == 512);
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda overlap: a rank that is killed amid its backward pass is told of by the others") {
  const FakeDevices devices;
  const auto result =
      on_processes(3, [](ry::Worker& worker) { train_until(worker, [] { static_cast<void>(::raise(SIGKILL)); }); });
  CHECK_THAT(result.error(), Contains("rank 1") && Contains("signal 9"));
}

TEST_CASE("cuda overlap: a backward pass that ends by an exception ends the group") {
  const FakeDevices devices;
  const auto result =
      on_devices(2, [](ry::Worker& worker) { train_until(worker, [] { throw std::runtime_error{"as planned"}; }); });
  CHECK_THAT(result.error(), Contains("rank 1") && Contains("as planned"));
}

TEST_CASE("cuda overlap: what streams leave unordered the fake finds") {
  if (has_gpu()) return;
  const FakeDevices devices;
  const railyard_test::Setting counts{"RAILYARD_FAKE_CUDA_RACES", "count"};
  void* const library = ::dlopen(railyard_test::path_of_fake("fake_cudart").c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto races = reinterpret_cast<unsigned long (*)()>(::dlsym(library, "fake_cuda_races"));
  const auto before = races();
  const torch::Device home(torch::kCUDA, 0);
  const auto* guard = c10::impl::getDeviceGuardImpl(home.type());
  const auto tensor = torch::zeros({8}, torch::TensorOptions(home));
  const auto other = guard->getStreamFromGlobalPool(home);
  const auto former = guard->exchangeStream(other);
  c10::Event event(home.type());
  event.record(former);
  event.block(other);
  tensor.add_(1);
  CHECK(races() == before);
  guard->exchangeStream(former);
  tensor.add_(1);  // without waiting for the other stream
  CHECK(races() == before + 1);
  CHECK(tensor.cpu().equal(torch::full({8}, 2.0F)));
}

}  // namespace cuda_overlap
