// SPDX-License-Identifier: MIT
#include "railyard/torch/pool.hpp"
#include "railyard/torch/detail/worker_pool.hpp"
#include "railyard/torch/prepare_model.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <thread>

namespace ry = railyard;

TEST_CASE("Pool: tensors of its thread come from it, and go back") {
  ry::Pool pool;
  const auto before = pool.statistics();
  {
    const auto tensor = torch::ones({1000, 1000});
    CHECK(pool.contains(tensor.data_ptr()));
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0);
    CHECK(pool.statistics().in_use_bytes >= before.in_use_bytes + 4'000'000);
    CHECK(tensor.sum().item<double>() == 1e6);
  }
  CHECK(pool.statistics().in_use_bytes == before.in_use_bytes);
  CHECK(pool.statistics().held_bytes > 4'000'000);
  pool.trim();
  CHECK(pool.statistics().held_bytes < 4'000'000);
}

TEST_CASE("Pool: gradients, clones and tensors that grow lie in it") {
  ry::Pool pool;
  auto weight = torch::randn({200, 200}, torch::requires_grad());
  (weight * weight).sum().backward();
  CHECK(pool.contains(weight.grad().data_ptr()));
  auto grown = torch::zeros({2});
  grown.resize_({5000});
  CHECK(pool.contains(grown.data_ptr()));
  CHECK(pool.contains(grown.clone().data_ptr()));
  CHECK_FALSE(torch::empty({0}).data_ptr() != nullptr);
  float own[4] = {1, 2, 3, 4};
  CHECK_FALSE(pool.contains(torch::from_blob(own, {4}).data_ptr()));
}

TEST_CASE("Pool: a tensor outlives the pool and its thread, and is freed by another (TRAPS 15a)") {
  torch::Tensor tensor;
  std::thread{[&tensor] {
    ry::Pool pool;
    tensor = torch::full({300'000}, 3.0F);
    REQUIRE(pool.contains(tensor.data_ptr()));
  }}.join();
  CHECK(tensor.sum().item<double>() == 900'000);
  tensor.reset();
}

TEST_CASE("Pool: other threads keep LibTorch's own allocator, and two pools are apart") {
  ry::Pool pool;
  bool is_outside = false;
  bool is_in_own = false;
  std::thread{[&] {
    is_outside = !pool.contains(torch::ones({1000}).data_ptr());
    ry::Pool second;
    const auto tensor = torch::ones({1000});
    is_in_own = second.contains(tensor.data_ptr()) && !pool.contains(tensor.data_ptr());
  }}.join();
  CHECK(is_outside);
  CHECK(is_in_own);
}

TEST_CASE("Pool: an inner one takes over, and the outer one comes back") {
  ry::Pool outer;
  {
    ry::Pool inner;
    CHECK(inner.contains(torch::ones({100}).data_ptr()));
  }
  CHECK(outer.contains(torch::ones({100}).data_ptr()));
}

TEST_CASE("Pool: where it is used up LibTorch's own allocator helps out (TRAPS 15a)") {
  ry::Pool pool{{.reserve_bytes = std::size_t{64} << 20U}};
  const auto small = torch::ones({1000});
  const auto large = torch::ones({64, 1 << 20});
  CHECK(pool.contains(small.data_ptr()));
  CHECK_FALSE(pool.contains(large.data_ptr()));
  CHECK(pool.statistics().exhausted >= 1);
  CHECK(large[63][77].item<float>() == 1);
}

TEST_CASE("Pool: tensors from before it was made are freed as they were allocated (TRAPS 15a)") {
  auto before = torch::ones({100'000});
  ry::Pool pool;
  const auto in_use = pool.statistics().in_use_bytes;
  before.reset();
  CHECK(pool.statistics().in_use_bytes == in_use);
}

TEST_CASE("Pool: memory that LibTorch's libraries take without a tensor goes back to where it came from") {
  c10::Allocator* plain = c10::GetAllocator(c10::DeviceType::CPU);
  void* early = plain->raw_allocate(1000);
  ry::Pool pool;
  c10::Allocator* current = c10::GetAllocator(c10::DeviceType::CPU);
  void* pooled = current->raw_allocate(1000);
  CHECK(pool.contains(pooled));
  const auto in_use = pool.statistics().in_use_bytes;
  current->raw_deallocate(early);
  CHECK(pool.statistics().in_use_bytes == in_use);
  current->raw_deallocate(pooled);
  CHECK(pool.statistics().in_use_bytes < in_use);
}

TEST_CASE("Pool: a prepared model's gradients lie in memory that the other ranks see") {
  const auto body = [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(10, 10); });
    worker.samples(1);
    net->forward(torch::ones({1, 10})).sum().backward();
    const bool is_seen = worker.host_memory()->heap()->contains(net->weight.grad().data_ptr());
    worker.report({{"is_seen", is_seen}});
  };
  CHECK(test::on_processes(2, body).at("is_seen").as<bool>());
}

TEST_CASE("Pool: ModelOptions::memory_pool = false leaves the worker's tensors alone") {
  const auto body = [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(10, 10); }, {.memory_pool = false});
    worker.samples(1);
    net->forward(torch::ones({1, 10})).sum().backward();
    const bool is_seen = worker.host_memory()->heap()->contains(net->weight.grad().data_ptr());
    worker.report({{"is_seen", is_seen}, {"gradient", net->weight.grad().sum().item().toDouble()}});
  };
  const auto metrics = test::on_processes(2, body);
  CHECK_FALSE(metrics.at("is_seen").as<bool>());
  CHECK(metrics.at("gradient").number() == 100);
}

TEST_CASE("pool_statistics: says what a worker's tensors take of its pool, and nothing where it has none") {
  const auto body = [](auto& worker) {
    EXPECT(!ry::pool_statistics(worker));
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(10, 10); });
    const ry::PoolStatistics before = ry::pool_statistics(worker).value();
    constexpr std::size_t size_bytes = 300 * 1000 * sizeof(float);
    {
      const auto tensor = torch::zeros({300, 1000});
      const ry::PoolStatistics now = ry::pool_statistics(worker).value();
      EXPECT(now.in_use_bytes >= before.in_use_bytes + size_bytes);
      EXPECT(now.in_use_bytes < before.in_use_bytes + 2 * size_bytes);
      EXPECT(now.allocations > before.allocations && now.exhausted == 0);
    }
    const ry::PoolStatistics after = ry::pool_statistics(worker).value();
    EXPECT(after.in_use_bytes == before.in_use_bytes);
    EXPECT(after.peak_bytes >= before.in_use_bytes + size_bytes);
    EXPECT(after.held_bytes >= after.in_use_bytes);
    worker.report({{"held_bytes", after.held_bytes}});
  };
  CHECK(test::error_of(2, body) == "");
  CHECK(test::error_on_processes(2, body) == "");
  const auto without = [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(10, 10); }, {.memory_pool = false});
    EXPECT(!ry::pool_statistics(worker));
  };
  CHECK(test::error_on_processes(2, without) == "");
}

TEST_CASE("Pool: where ranks do not see each other's memory, each keeps its part of what the host has left at most") {
  const auto result = test::try_run<ry::Local, ry::Threads>(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(10, 10); });
    const auto heap = worker.template extension<ry::detail::WorkerPool>().binding->heap();
    EXPECT(worker.host_memory() == nullptr && heap->contains(torch::ones({10}).data_ptr()));
    EXPECT(heap->max_cached() > 0 && heap->max_cached() <= ry::detail::physical_memory() / 4);
  });
  CHECK(result.error() == "");
}
