// SPDX-License-Identifier: MIT
#include "railyard/torch/comm_hook.hpp"

#include "railyard/torch/collectives.hpp"

#include "hooks.hpp"
#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace ry = railyard;

namespace {

struct NoHook {};
struct WrongResult {
  int all_reduce(ry::Worker&, const ry::GradientBucket&) { return 0; }
};
struct Counting {
  void all_reduce(ry::Worker& worker, const ry::GradientBucket& bucket) {
    ++*calls;
    ry::ExactHook{}.all_reduce(worker, bucket);
  }
  std::shared_ptr<int> calls = std::make_shared<int>(0);
};
static_assert(!ry::CommHook<NoHook> && !ry::CommHook<WrongResult> && ry::CommHook<Counting>);

// Both sums, the hook's first, of gradients between 10^-reach and 1 times `scale`.
template <class Hook>
std::pair<torch::Tensor, torch::Tensor> sums(ry::Worker& worker, Hook hook, double scale) {
  const auto mine = test::gradient_of(worker.rank(), {40, 25}) * scale;
  test::Bucket bucket{{mine}};
  hook.all_reduce(worker, bucket.view());
  test::expect_equal_bits(worker, bucket.flat);
  test::Bucket exact{{mine}};
  ry::ExactHook{}.all_reduce(worker, exact.view());
  return {bucket.flat, exact.flat};
}

// What every rank may contribute to the error: its own value, absolute.
torch::Tensor magnitudes(ry::Worker& worker, double scale) {
  const auto sizes = test::gradient_of(worker.rank(), {40, 25}).mul(scale).abs().view({-1});
  ry::all_reduce(worker, sizes);
  return sizes;
}

// Values are rounded before and after the sum, so the bound is twice a type's; 1.001 is for the product of both.
template <class Hook>
void check_bound(ry::Worker& worker, Hook hook, double relative, double absolute) {
  for (const double scale : {1e-30, 1e-12, 1.0, 1e12, 1e30}) {
    const auto [sum, exact] = sums(worker, hook, scale);
    const auto bound = magnitudes(worker, scale) * relative + absolute * scale;
    EXPECT((sum - exact).abs().le(bound).all().template item<bool>());
    EXPECT(sum.ne(0).any().template item<bool>());
  }
}

template <class Hook>
void check_not_finite(ry::Worker& worker, Hook hook) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    auto mine = test::gradient_of(worker.rank(), {40, 25});
    if (worker.rank() == 1) mine[3][4] = bad;
    test::Bucket bucket{{mine}};
    hook.all_reduce(worker, bucket.view());
    EXPECT(!torch::isfinite(bucket.flat).all().template item<bool>());
    test::Bucket next{{test::gradient_of(worker.rank(), {40, 25})}};
    hook.all_reduce(worker, next.view());
    EXPECT(torch::isfinite(next.flat).all().template item<bool>());
  }
}

}  // namespace

TEST_CASE("Bf16Hook: is off by at most 2^-7 of what is summed, and equal on all ranks") {
  for (const int workers : {1, 2, 3}) {
    test::on_threads(workers,
                     [](ry::Worker& worker) { check_bound(worker, ry::Bf16Hook{}, std::ldexp(1.0, -7) * 1.001, 0); });
  }
  test::on_processes(2,
                     [](ry::Worker& worker) { check_bound(worker, ry::Bf16Hook{}, std::ldexp(1.0, -7) * 1.001, 0); });
}

TEST_CASE("F16Hook: is off by at most 2^-10 of what is summed at every scale (FAULTS D11, D12)") {
  const auto check = [](ry::Worker& worker) {
    check_bound(worker, ry::F16Hook{}, std::ldexp(1.0, -10) * 1.001, std::ldexp(1.0, -34));
  };
  for (const int workers : {1, 2, 3}) test::on_threads(workers, check);
  test::on_processes(2, check);
}

TEST_CASE("F16Hook: has room for the sum of the largest values of all ranks") {
  test::on_threads(4, [](ry::Worker& worker) {
    test::Bucket bucket{{torch::full({3}, 60000.0)}};
    ry::F16Hook{}.all_reduce(worker, bucket.view());
    EXPECT((bucket.flat - 240000.0).abs().max().item<double>() < 240000.0 / 1024);
  });
  for (const double largest : {1e-300, 1e-40, 0.7, 1.0, 32767.0, 65504.0, 1e30}) {
    const double scaled = largest * ry::F16Hook::scale_for(largest);
    CHECK(scaled < 32768);
    if (largest > 1e-30) CHECK(scaled >= 16384);
  }
  CHECK(ry::F16Hook::scale_for(0) == 1);
}

TEST_CASE("CommHook: what is not finite on one rank is not finite in the sum, and gone in the next step") {
  test::on_threads(2, [](ry::Worker& worker) {
    check_not_finite(worker, ry::ExactHook{});
    check_not_finite(worker, ry::Bf16Hook{});
    check_not_finite(worker, ry::F16Hook{});
  });
}

TEST_CASE("CommHook: sums f64 gradients and empty buckets") {
  test::on_threads(2, [](ry::Worker& worker) {
    for (ry::AnyCommHook hook : {ry::AnyCommHook{ry::Bf16Hook{}}, ry::AnyCommHook{ry::F16Hook{}}}) {
      test::Bucket bucket{{torch::full({3}, 1.5, torch::kDouble)}};
      hook.all_reduce(worker, bucket.view());
      EXPECT(torch::equal(bucket.flat, torch::full({3}, 3.0, torch::kDouble)));
      test::Bucket none{{torch::empty({0})}};
      hook.all_reduce(worker, none.view());
    }
  });
}

TEST_CASE("AnyCommHook: sums exactly without a hook, and else by the one that it holds") {
  ry::AnyCommHook none;
  CHECK_FALSE(none);
  Counting counting;
  ry::AnyCommHook held = counting;
  CHECK(held);
  test::on_threads(2, [none, held](ry::Worker& worker) mutable {
    for (auto* hook : {&none, &held}) {
      test::Bucket bucket{{torch::full({3}, 1.0 + worker.rank())}};
      hook->all_reduce(worker, bucket.view());
      EXPECT(torch::equal(bucket.flat, torch::full({3}, 3.0)));
    }
  });
  CHECK(*counting.calls == 2);
}

TEST_CASE("Bf16Hook and F16Hook: train on digits within a percent of the exact sum") {
  test::on_processes(2, [](ry::Worker& worker) {
    const auto exact = test::train_digits(worker, ry::ExactHook{});
    EXPECT(exact.accuracy > 0.93);
    for (const auto& found : {test::train_digits(worker, ry::Bf16Hook{}), test::train_digits(worker, ry::F16Hook{})}) {
      EXPECT(std::abs(found.accuracy - exact.accuracy) < 0.01);
      EXPECT(std::abs(found.loss - exact.loss) < 0.01);
    }
  });
}
