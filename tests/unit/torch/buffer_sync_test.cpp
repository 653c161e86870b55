// SPDX-License-Identifier: MIT
#include "railyard/torch/buffer_sync.hpp"

#include "railyard/torch/collectives.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"

#include <torch/torch.h>

#include <vector>

namespace ry = railyard;

namespace {

// Floats, doubles, halves, integers, flags, a transposed one, a complex one, an empty and an undefined one.
std::vector<torch::Tensor> buffers_of(int rank) {
  const auto base = torch::arange(6).view({2, 3}).to(torch::kFloat) + 4.0 * rank;
  return {base.clone(),
          base.to(torch::kDouble) * 3,
          base.to(torch::kBFloat16),
          torch::tensor(10 + rank, torch::kLong),
          base.gt(5),
          base.clone().t(),
          torch::complex(base, -base),
          torch::empty({0}),
          torch::Tensor{},
          base.clone() * 2};
}

void check(ry::Worker& worker, ry::BufferSync policy) {
  auto mine = buffers_of(worker.rank());
  ry::detail::sync_buffers(worker, mine, policy);
  const auto first = buffers_of(0);
  const double middle = 4.0 * (worker.world_size() - 1) / 2;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (!mine[i].defined()) continue;
    auto expected = first[i];
    if (policy == ry::BufferSync::leave) expected = buffers_of(worker.rank())[i];
    if (policy == ry::BufferSync::average) {
      if (i == 0 || i == 2 || i == 5) expected = expected + middle;
      if (i == 1) expected = expected + 3 * middle;
      if (i == 6)
        expected = expected + torch::complex(torch::tensor(middle), torch::tensor(-middle)).to(expected.dtype());
      if (i == 9) expected = expected + 2 * middle;
    }
    EXPECT(mine[i].scalar_type() == first[i].scalar_type());
    EXPECT(torch::equal(mine[i], expected));
  }
}

}  // namespace

TEST_CASE("sync_buffers: leaves, broadcasts or averages buffers of all types on 1, 2 and 3 workers") {
  for (const auto policy : {ry::BufferSync::leave, ry::BufferSync::broadcast, ry::BufferSync::average}) {
    for (const int workers : {1, 2, 3}) {
      test::on_threads(workers, [policy](ry::Worker& worker) { check(worker, policy); });
    }
    test::on_processes(2, [policy](ry::Worker& worker) { check(worker, policy); });
  }
}

TEST_CASE("sync_buffers: exchanges nothing for leave") {
  test::on_threads(2, [](ry::Worker& worker) {
    const auto mine = buffers_of(worker.rank());
    if (worker.rank() == 0) ry::detail::sync_buffers(worker, mine, ry::BufferSync::leave);
    EXPECT(worker.mean(worker.rank()) == 0.5);  // would meet the exchange
  });
}

TEST_CASE("sync_buffers: a graph that has saved a buffer's values notices") {
  test::on_threads(2, [](ry::Worker& worker) {
    const std::vector<torch::Tensor> buffers{torch::ones({3}) * worker.rank()};
    const auto x = torch::ones({3}).set_requires_grad(true);
    const auto out = (x * buffers[0]).sum();
    ry::detail::sync_buffers(worker, buffers, ry::BufferSync::average);
    bool has_thrown = false;
    try {
      out.backward();
    } catch (const c10::Error&) {
      has_thrown = true;
    }
    EXPECT(has_thrown);
  });
}
