// SPDX-License-Identifier: MIT
#include "railyard/torch/power_sgd.hpp"

#include "railyard/torch/collectives.hpp"

#include "hooks.hpp"
#include "run.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

torch::Tensor exact_sum(ry::Worker& worker, const torch::Tensor& mine) {
  const auto sum = mine.to(torch::kDouble).clone();
  ry::all_reduce(worker, sum);
  return sum;
}

double relative_distance(const torch::Tensor& one, const torch::Tensor& exact) {
  return ((one.to(torch::kDouble) - exact).norm() / exact.norm()).item<double>();
}

// A matrix of the given rank, different on each rank, whose sum over the ranks has that rank as well.
torch::Tensor matrix_of_rank(int rows, int columns, int rank, int worker_rank) {
  const auto left = test::gradient_of(0, {rows, rank});
  const auto right = test::gradient_of(worker_rank + 1, {rank, columns});
  return left.mm(right);
}

}  // namespace

TEST_CASE("PowerSgdHook: makes directions orthonormal, and asks for new ones where there are none") {
  std::vector<double> rows{3, 0, 4, 6, 0, 8, 1e-8, 1, 0, 0, 0, 0};
  int asked = 0;
  ry::detail::orthonormalise(rows, 3, [&](std::size_t) { return ++asked * 0.5; });
  CHECK(asked == 6);  // the second row is twice the first one, the last one zero
  CHECK(rows[0] == Approx(0.6));
  CHECK(rows[2] == Approx(0.8));
  CHECK(rows[3] / rows[5] == Approx(0.5 / 1.5));
  CHECK(rows[9] * rows[9] + rows[10] * rows[10] + rows[11] * rows[11] == Approx(1));
  CHECK_THAT(ry::detail::Directions{7}(3), Catch::WithinAbs(0, 1));
  CHECK(ry::detail::Directions{7}(3) == ry::detail::Directions{7}(3));
  CHECK(ry::detail::Directions{7}(3) != ry::detail::Directions{8}(3));
}

TEST_CASE("PowerSgdHook: sums exactly what is a vector, too small, or before its start") {
  test::on_threads(2, [](ry::Worker& worker) {
    ry::PowerSgdHook hook{.rank = 2, .start_step = 1};
    const std::vector<torch::Tensor> mine{test::gradient_of(worker.rank(), {30}),
                                          test::gradient_of(worker.rank(), {4, 4}),
                                          test::gradient_of(worker.rank(), {30, 20})};
    for (int step = 0; step < 2; ++step) {
      test::Bucket bucket{mine};
      hook.all_reduce(worker, bucket.view());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const bool is_exact = relative_distance(bucket.parts[i], exact_sum(worker, mine[i])) < 1e-7;
        EXPECT(is_exact == (i < 2 || step == 0));
      }
      test::expect_equal_bits(worker, bucket.flat);
    }
  });
}

TEST_CASE("PowerSgdHook: finds a sum of its own rank within two steps, in matrices and kernels of convolutions") {
  const auto check = [](ry::Worker& worker) {
    ry::PowerSgdHook hook{.rank = 2, .start_step = 0};
    const auto mine = matrix_of_rank(24, 45, 2, worker.rank());
    double far = 0;
    for (int step = 0; step < 2; ++step) {
      test::Bucket bucket{{step == 0 ? mine : mine.clone(), mine.view({24, 5, 3, 3})}};
      hook.all_reduce(worker, bucket.view());
      test::expect_equal_bits(worker, bucket.flat);
      far = std::max(relative_distance(bucket.parts[0], exact_sum(worker, mine)),
                     relative_distance(bucket.parts[1].reshape({24, 45}), exact_sum(worker, mine)));
    }
    EXPECT(far < 1e-4);
  };
  for (const int workers : {1, 2, 3}) test::on_threads(workers, check);
  test::on_processes(2, check);
}

TEST_CASE("PowerSgdHook: loses nothing: over many steps the sums add up to the exact ones") {
  test::on_threads(3, [](ry::Worker& worker) {
    ry::PowerSgdHook hook{.rank = 2, .start_step = 0};
    auto total = torch::zeros({20, 30}, torch::kDouble);
    auto exact = torch::zeros({20, 30}, torch::kDouble);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 200; ++step) {
      const auto mine = test::gradient_of(worker.rank(), {20, 30});
      test::Bucket bucket{{mine}};
      hook.all_reduce(worker, bucket.view());
      total += bucket.parts[0].to(torch::kDouble);
      exact += exact_sum(worker, mine);
      last = relative_distance(total, exact);
      if (step == 0) first = last;
    }
    // A full matrix sent as rank 2: one step misses much of it, the memory brings it in later.
    EXPECT(first > 0.2);
    EXPECT(last < 0.05);
  });
}

TEST_CASE("PowerSgdHook: what is left out plus what was sent is the exact sum in every step") {
  test::on_threads(2, [](ry::Worker& worker) {
    ry::PowerSgdHook hook{.rank = 1, .start_step = 0};
    auto owed = torch::zeros({20, 30}, torch::kDouble);
    for (int step = 0; step < 5; ++step) {
      const auto mine = test::gradient_of(worker.rank(), {20, 30}, step);
      test::Bucket bucket{{mine}};
      hook.all_reduce(worker, bucket.view());
      const auto due = exact_sum(worker, mine) + owed;
      owed = exact_sum(worker, hook.memory[0].error);
      EXPECT(relative_distance(bucket.parts[0] + owed, due) < 1e-5);
    }
  });
}

TEST_CASE("PowerSgdHook: goes on after gradients of zero, and after one that was not finite") {
  test::on_threads(2, [](ry::Worker& worker) {
    ry::PowerSgdHook hook{.rank = 2, .start_step = 0};
    const auto mine = matrix_of_rank(24, 45, 2, worker.rank());
    const auto step = [&](const torch::Tensor& gradient) {
      test::Bucket bucket{{gradient, torch::ones({3})}};
      hook.all_reduce(worker, bucket.view());
      return bucket.parts[0];
    };
    EXPECT(step(torch::zeros({24, 45})).eq(0).all().item<bool>());
    EXPECT(step(torch::zeros({24, 45})).eq(0).all().item<bool>());
    static_cast<void>(step(mine));
    const auto owed = hook.memory[0].error.clone();
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      auto spoilt = mine.clone();
      if (worker.rank() == 1) spoilt[5][6] = bad;
      EXPECT(!torch::isfinite(step(spoilt)).any().item<bool>());
      EXPECT(torch::equal(owed, hook.memory[0].error));
    }
    for (int i = 0; i < 6; ++i) static_cast<void>(step(mine));
    EXPECT(relative_distance(step(mine), exact_sum(worker, mine)) < 1e-3);
  });
}

TEST_CASE("PowerSgdHook: a part is remembered by its id, whatever bucket it comes in") {
  test::on_threads(2, [](ry::Worker& worker) {
    ry::PowerSgdHook together{.rank = 1, .start_step = 0};
    ry::PowerSgdHook apart{.rank = 1, .start_step = 0};
    for (int step = 0; step < 3; ++step) {
      const auto one = test::gradient_of(worker.rank(), {20, 30}, step);
      const auto two = test::gradient_of(worker.rank() + 5, {16, 12}, step);
      test::Bucket both{{one, two}};
      together.all_reduce(worker, both.view());
      test::Bucket second{{two}};
      second.ids = {1};
      apart.all_reduce(worker, second.view());
      test::Bucket first{{one}};
      apart.all_reduce(worker, first.view());
      EXPECT(torch::equal(both.parts[0], first.parts[0]) && torch::equal(both.parts[1], second.parts[0]));
    }
  });
}

TEST_CASE("PowerSgdHook: a copy begins anew") {
  test::on_threads(2, [](ry::Worker& worker) {
    ry::PowerSgdHook hook{.rank = 1, .start_step = 1};
    for (int step = 0; step < 3; ++step) {
      test::Bucket bucket{{test::gradient_of(worker.rank(), {20, 30})}};
      hook.all_reduce(worker, bucket.view());
    }
    ry::PowerSgdHook copy = hook;
    EXPECT(copy.memory[0].steps == 0 && hook.memory[0].steps == 3);
    ry::AnyCommHook held = hook;
    const auto mine = test::gradient_of(worker.rank(), {20, 30});
    test::Bucket bucket{{mine}};
    held.all_reduce(worker, bucket.view());
    EXPECT(relative_distance(bucket.parts[0], exact_sum(worker, mine)) < 1e-7);  // its first step is exact again
  });
}

TEST_CASE("PowerSgdHook: refuses a rank of no columns") {
  const auto error = test::error_of(2, [](ry::Worker& worker) {
    test::Bucket bucket{{torch::ones({20, 30})}};
    ry::PowerSgdHook{.rank = 0}.all_reduce(worker, bucket.view());
  });
  CHECK_THAT(error, ContainsSubstring(".rank is 0"));
}

TEST_CASE("PowerSgdHook: trains on digits nearly as the exact sum does, with a fraction of the bytes") {
  test::on_processes(2, [](ry::Worker& worker) {
    const auto exact = test::train_digits(worker, ry::ExactHook{});
    const auto found = test::train_digits(worker, ry::PowerSgdHook{.rank = 2, .start_step = 20});
    EXPECT(exact.accuracy > 0.93);
    EXPECT(found.accuracy > exact.accuracy - 0.02);
    EXPECT(found.loss < exact.loss + 0.05);
  });
}
