// SPDX-License-Identifier: MIT
// Who owns a tensor's memory, and who may free it: other threads, raw memory, forked children.
#include "railyard/torch/pool.hpp"

#include "support/catch.hpp"
#include "support/internals.hpp"

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

std::shared_ptr<ry::detail::Heap> small_heap() {
  constexpr std::size_t size_bytes = std::size_t{64} << 20U;
  return ry::detail::make_private_heap(size_bytes, size_bytes);
}

}  // namespace

TEST_CASE("Pool: resize_, set_, clone and from_blob keep the values and the books") {
  const ry::Pool pool;
  {
    auto tensor = torch::arange(10, torch::kFloat);
    tensor.resize_({1000});
    REQUIRE(pool.contains(tensor.data_ptr()));
    REQUIRE(tensor.slice(0, 0, 10).equal(torch::arange(10, torch::kFloat)));
    const auto clone = tensor.slice(0, 0, 10).clone();
    auto other = torch::empty({0});
    other.set_(tensor);
    tensor.reset();
    REQUIRE(other.slice(0, 0, 10).equal(clone));
    std::vector<float> mine(100, 2.0F);
    const auto blob = torch::from_blob(mine.data(), {100});
    REQUIRE_FALSE(pool.contains(blob.data_ptr()));
    REQUIRE(blob.clone().sum().item<float>() == 200.0F);
    other.set_(blob);
    REQUIRE(other.data_ptr() == mine.data());
  }
  REQUIRE(pool.statistics().in_use_bytes == 0);
}

TEST_CASE("Pool: a training has the same bits as without") {
  const auto train = [] {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(64, 300), torch::nn::ReLU(), torch::nn::Linear(300, 10));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      net->forward(torch::randn({32, 64})).square().mean().backward();
      optimizer.step();
    }
    return torch::nn::utils::parameters_to_vector(net->parameters());
  };
  const auto plain = train();
  const ry::Pool pool;
  const auto pooled = train();
  REQUIRE(pool.contains(pooled.data_ptr()));
  REQUIRE(plain.equal(pooled));
}

TEST_CASE("Pool: raw memory goes back where it came from, whoever frees it") {
  void* before = c10::GetAllocator(c10::DeviceType::CPU)->raw_allocate(1000);
  const ry::Pool pool;
  auto* allocator = c10::GetAllocator(c10::DeviceType::CPU);
  REQUIRE(allocator->raw_deleter() != nullptr);
  void* pooled = allocator->raw_allocate(1000);
  REQUIRE(pool.contains(pooled));
  allocator->raw_deallocate(before);
  std::thread{[&] {
    void* unbound = allocator->raw_allocate(1000);
    if (pool.contains(unbound)) throw std::runtime_error{"a thread that has no pool is served from one"};
    allocator->raw_deallocate(unbound);
    allocator->raw_deallocate(pooled);
  }}.join();
  REQUIRE(pool.statistics().in_use_bytes == 0);
  allocator->raw_deallocate(allocator->raw_allocate(0));
}

TEST_CASE("Pool: threads free what others have made, all the time") {
  constexpr int rounds = 2'000;
  std::vector<torch::Tensor> shared(16);
  std::mutex mutex;
  const auto work = [&](std::uint64_t seed) {
    const ry::detail::PoolBinding binding{small_heap()};
    for (int round = 0; round < rounds; ++round) {
      seed = seed * 6364136223846793005U + 1442695040888963407U;
      auto tensor = torch::full({static_cast<std::int64_t>(seed >> 52U) + 1}, round, torch::kInt);
      const std::lock_guard lock{mutex};
      auto& slot = shared[(seed >> 40U) % shared.size()];
      if (slot.defined() && !slot.eq(slot[0]).all().item<bool>()) throw std::runtime_error{"damaged"};
      std::swap(slot, tensor);
    }
  };
  std::thread one{work, 1};
  std::thread two{work, 2};
  one.join();
  two.join();
  for (const auto& tensor : shared) REQUIRE((!tensor.defined() || tensor.eq(tensor[0]).all().item<bool>()));
}

TEST_CASE("Pool: whichever of two ends first, the one that is left serves the thread, and none once both are gone") {
  auto first = std::make_unique<ry::Pool>();
  const auto kept = torch::ones({10});  // the first one's memory stays
  auto second = std::make_unique<ry::Pool>();
  REQUIRE(second->contains(torch::ones({10}).data_ptr()));
  const auto is_of_first = [begin = static_cast<const std::byte*>(kept.data_ptr())](const torch::Tensor& tensor) {
    const auto distance = static_cast<const std::byte*>(tensor.data_ptr()) - begin;
    return distance > -4096 && distance < 4096;
  };
  REQUIRE(is_of_first(kept.clone()) == false);
  first.reset();
  REQUIRE(second->contains(torch::ones({10}).data_ptr()));
  second.reset();
  REQUIRE_FALSE(is_of_first(torch::ones({10})));
}

TEST_CASE("Pool: pools that come and go leave alone what other threads free") {
  const ry::Pool pool;  // from here on LibTorch frees by the pools' book of blocks
  std::atomic<bool> is_over = false;
  std::thread other{[&] {
    c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::CPU);
    while (!is_over) allocator->raw_deallocate(allocator->raw_allocate(64));  // of no pool
  }};
  for (int round = 0; round < 20'000; ++round) {
    const ry::detail::PoolBinding binding{small_heap()};
  }
  is_over = true;
  other.join();
}

TEST_CASE("Pool: a forked child gets nothing from an inherited one, frees into nothing, and may have its own") {
  const ry::Pool pool;
  auto tensor = torch::full({1000}, 7.0F);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto own = torch::full({10}, 1.0F);
    const bool is_right = !pool.contains(own.data_ptr()) && tensor[3].item<float>() == 7.0F;
    tensor.reset();
    const ry::Pool of_child;
    ::_exit(is_right && of_child.contains(torch::full({10}, 1.0F).data_ptr()) ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
}
