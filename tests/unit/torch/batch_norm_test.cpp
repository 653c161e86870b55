// SPDX-License-Identifier: MIT
#include "railyard/torch/batch_norm.hpp"

#include "railyard/collectives/shared_memory.hpp"
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/sync_batch_norm.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"

#include <torch/torch.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

// Numbers that repeat nowhere and are equal on all ranks, with a mean of their own in every channel.
torch::Tensor numbers(std::vector<std::int64_t> shape, double pace, at::ScalarType type) {
  std::int64_t count = 1;
  for (const auto size : shape) count *= size;
  auto values = torch::sin(torch::arange(count).to(torch::kDouble) * pace).view(shape);
  std::vector<std::int64_t> channels(shape.size(), 1);
  channels[1] = shape[1];
  return (values + torch::arange(shape[1]).to(torch::kDouble).view(channels)).to(type);
}

// The rows that are a rank's: 3 for rank 0, one less for each of the next, the rest for the last one.
std::pair<std::int64_t, std::int64_t> rows_of(const ry::Worker& worker, std::int64_t rows) {
  std::int64_t begin = 0;
  for (int rank = 0; rank < worker.rank(); ++rank) begin += std::max<std::int64_t>(1, 3 - rank);
  const bool is_last = worker.rank() + 1 == worker.world_size();
  return {begin, is_last ? rows - begin : std::max<std::int64_t>(1, 3 - worker.rank())};
}

double distance(const torch::Tensor& one, const torch::Tensor& other) {
  if (one.defined() != other.defined()) return std::numeric_limits<double>::infinity();
  if (!one.defined() || one.numel() == 0) return 0;
  return (one.to(torch::kDouble) - other.to(torch::kDouble)).abs().max().item<double>();
}

struct Case {
  std::vector<std::int64_t> shape{};
  bool affine = true;
  bool track = true;
  bool cumulative = false;  // momentum none
  at::ScalarType type = torch::kDouble;
};

torch::nn::BatchNormOptions options_of(const Case& given) {
  auto options = torch::nn::BatchNormOptions(given.shape[1]).affine(given.affine).track_running_stats(given.track);
  if (given.cumulative) {
    options.momentum(c10::nullopt);
  }
  return options;
}

// Three steps on this rank's rows beside a plain BatchNorm on all rows. Returns how far outputs, gradients and buffers
// are apart at most.
template <class Ours, class Plain>
double distance_to_plain(ry::Worker& worker, const Case& given) {
  const std::int64_t rows = given.shape[0];
  const auto [begin, mine] = rows_of(worker, rows);
  Ours ours(options_of(given));
  Plain plain(options_of(given));
  ours->to(given.type);
  plain->to(given.type);
  if (given.affine) {
    const torch::NoGradGuard no_grad;
    for (auto* norm : {&ours->weight, &plain->weight}) norm->copy_(torch::arange(1, given.shape[1] + 1) * 0.5);
  }
  EXPECT(ry::sync_batch_norm(worker, ours) == 1);
  const double share = static_cast<double>(mine) / static_cast<double>(rows);
  double largest = 0;
  for (int step = 0; step < 3; ++step) {
    const auto all = numbers(given.shape, 0.37 + step, given.type).set_requires_grad(true);
    const auto part = all.detach().narrow(0, begin, mine).clone().set_requires_grad(true);
    const auto target = numbers(given.shape, 0.11, given.type);
    worker.samples(static_cast<std::uint64_t>(mine));
    ours->zero_grad();
    plain->zero_grad();
    const auto out = ours->forward(part);
    const auto expected = plain->forward(all);
    largest = std::max(largest, distance(out, expected.narrow(0, begin, mine)));
    (out * target.narrow(0, begin, mine)).sin().mean().backward();
    (expected * target).sin().mean().backward();
    // What prepare_model() makes of the ranks' gradients is their sum, weighted with the shares.
    largest = std::max(largest, distance(part.grad() * share, all.grad().narrow(0, begin, mine)));
    for (std::size_t i = 0; i < ours->parameters().size(); ++i) {
      const auto gradient = ours->parameters()[i].grad() * share;
      ry::all_reduce(worker, gradient);
      largest = std::max(largest, distance(gradient, plain->parameters()[i].grad()));
    }
  }
  largest = std::max(largest, distance(ours->running_mean, plain->running_mean));
  largest = std::max(largest, distance(ours->running_var, plain->running_var));
  largest = std::max(largest, distance(ours->num_batches_tracked, plain->num_batches_tracked));
  ours->eval();
  plain->eval();
  if (given.track) {  // eval() without running statistics is each worker's own affair
    const auto all = numbers(given.shape, 0.77, given.type);
    largest = std::max(largest, distance(ours->forward(all), plain->forward(all)));
  }
  return largest;
}

double distance_in_all_dimensions(ry::Worker& worker, Case given) {
  double largest = 0;
  const auto look = [&](double far) { largest = std::max(largest, far); };
  given.shape = {9, 4};
  look(distance_to_plain<ry::nn::BatchNorm1d, torch::nn::BatchNorm1d>(worker, given));
  given.shape = {9, 4, 5};
  look(distance_to_plain<ry::nn::BatchNorm1d, torch::nn::BatchNorm1d>(worker, given));
  given.shape = {9, 4, 3, 5};
  look(distance_to_plain<ry::nn::BatchNorm2d, torch::nn::BatchNorm2d>(worker, given));
  given.shape = {9, 4, 2, 3, 2};
  look(distance_to_plain<ry::nn::BatchNorm3d, torch::nn::BatchNorm3d>(worker, given));
  return largest;
}

void check_all_options(ry::Worker& worker) {
  for (const bool affine : {true, false}) {
    for (const bool track : {true, false}) {
      for (const bool cumulative : {true, false}) {
        const Case given{.affine = affine, .track = track, .cumulative = cumulative};
        EXPECT(distance_in_all_dimensions(worker, given) < 1e-12);
      }
    }
  }
  EXPECT(distance_in_all_dimensions(worker, {.type = torch::kFloat}) < 1e-6);
}

ry::nn::BatchNorm2d joined(ry::Worker& worker, std::int64_t features) {
  ry::nn::BatchNorm2d norm(features);
  ry::sync_batch_norm(worker, norm);
  return norm;
}

struct ConvNet : torch::nn::Module {
  explicit ConvNet(at::ScalarType type) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).bias(false)));
    norm = register_module("norm", ry::nn::BatchNorm2d(4));
    last = register_module("last", torch::nn::Linear(4 * 36, 10));
    last_norm = register_module("last_norm", ry::nn::BatchNorm1d(10));
    to(type);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last_norm(last(torch::relu(norm(first(x))).flatten(1))); }
  torch::nn::Conv2d first{nullptr};
  ry::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear last{nullptr};
  ry::nn::BatchNorm1d last_norm{nullptr};
};

double largest_difference(torch::nn::Module& one, torch::nn::Module& other) {
  double largest = 0;
  for (std::size_t i = 0; i < one.parameters().size(); ++i) {
    largest = std::max(largest, distance(one.parameters()[i], other.parameters()[i]));
  }
  for (std::size_t i = 0; i < one.buffers().size(); ++i) {
    largest = std::max(largest, distance(one.buffers()[i], other.buffers()[i]));
  }
  return largest;
}

// Trains for two epochs in batches of 16, beside a model on the whole of every batch. Of 50 images the last batch holds
// 2, so that a third worker has none.
double training_distance(ry::Worker& worker, at::ScalarType type, std::size_t count) {
  const auto rows_in_all = static_cast<std::int64_t>(count);
  const auto images = numbers({rows_in_all, 1, 8, 8}, 0.37, type);
  const auto digits = torch::arange(rows_in_all) % 10;
  auto net = ry::prepare_model(worker, [type] { return std::make_shared<ConvNet>(type); });
  ry::sync_batch_norm(worker, net);
  ConvNet plain(type);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < plain.parameters().size(); ++i) plain.parameters()[i].copy_(net->parameters()[i]);
  }
  auto loader = ry::prepare_loader(worker, std::pair{images, digits},
                                   {.global_batch_size = 16, .shuffle = true, .drives_step = true});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  torch::optim::SGD plain_optimizer(plain.parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  bool had_none = false;
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto order =
        ry::detail::shuffled_indices(count, ry::detail::derive_seed(worker.seed(), static_cast<std::uint64_t>(epoch)));
    std::size_t at = 0;
    for (const auto& batch : loader) {
      had_none = had_none || batch.size() == 0;
      optimizer.zero_grad();
      torch::cross_entropy_loss(net->forward(batch.data), batch.target).backward();
      optimizer.step();
      const std::size_t end = std::min<std::size_t>(at + 16, count);
      std::vector<std::int64_t> rows(order.begin() + static_cast<std::ptrdiff_t>(at),
                                     order.begin() + static_cast<std::ptrdiff_t>(end));
      at = end;
      const auto index = torch::tensor(rows);
      plain_optimizer.zero_grad();
      torch::cross_entropy_loss(plain.forward(images.index_select(0, index)), digits.index_select(0, index)).backward();
      plain_optimizer.step();
    }
  }
  EXPECT(had_none == (count == 50 && worker.rank() == 2));
  return largest_difference(*net, plain);
}

void check_training(ry::Worker& worker) {
  EXPECT(training_distance(worker, torch::kDouble, 50) < 1e-10);
  // Two samples that are nearly alike would magnify the rounding of f32.
  EXPECT(training_distance(worker, torch::kFloat, 56) < 2e-6);
}

}  // namespace

TEST_CASE("BatchNorm: joined over 1, 2 and 3 threads, it is one BatchNorm on the global batch") {
  for (const int workers : {1, 2, 3}) test::on_threads(workers, [](ry::Worker& worker) { check_all_options(worker); });
}

TEST_CASE("BatchNorm: joined over 2 and 3 processes and Gloo, it is one BatchNorm on the global batch") {
  for (const int workers : {2, 3}) test::on_processes(workers, [](ry::Worker& worker) { check_all_options(worker); });
}

TEST_CASE("BatchNorm: joined over shared memory, it is one BatchNorm on the global batch") {
  const auto check = [](ry::Worker& worker) { check_all_options(worker); };
  test::try_run<ry::SharedMemory, ry::Threads>(3, check).value_or_throw();
  test::try_run<ry::SharedMemory, ry::Processes>(2, check).value_or_throw();
}

TEST_CASE("BatchNorm: training with it equals one worker's on the global batch, also when a worker has no sample") {
  for (const int workers : {1, 2, 3}) test::on_threads(workers, [](ry::Worker& worker) { check_training(worker); });
  test::on_processes(3, [](ry::Worker& worker) { check_training(worker); });
  test::try_run<ry::SharedMemory, ry::Processes>(3, [](ry::Worker& worker) {
    check_training(worker);
  }).value_or_throw();
}

TEST_CASE("BatchNorm: alone it is LibTorch's, bit by bit") {
  for (const bool track : {true, false}) {
    const auto options = torch::nn::BatchNormOptions(4).track_running_stats(track);
    ry::nn::BatchNorm2d ours(options);
    torch::nn::BatchNorm2d plain(options);
    for (const bool training : {true, false}) {
      ours->train(training);
      plain->train(training);
      const auto x = numbers({3, 4, 2, 2}, 0.3, torch::kFloat);
      CHECK(torch::equal(ours->forward(x), plain->forward(x)));
    }
    if (track) CHECK(torch::equal(ours->running_var, plain->running_var));
  }
}

TEST_CASE("BatchNorm: loses no digits where the mean is large") {
  test::on_threads(2, [](ry::Worker& worker) {
    auto norm = joined(worker, 1);
    const auto all = (numbers({64, 1, 4, 4}, 0.37, torch::kFloat) + 3000.0).to(torch::kFloat);
    norm->forward(all.narrow(0, worker.rank() * 24, worker.rank() == 0 ? 24 : 40));
    const double exact = all.to(torch::kDouble).var(/*unbiased=*/true).item<double>();
    // 3000^2 / variance is 2e7: the difference of sums in f32 has no digit left.
    EXPECT(std::abs((norm->running_var.item<double>() - 0.9) / 0.1 - exact) < 1e-5);
  });
}

TEST_CASE("BatchNorm: an empty batch, or one of weight zero that is NaN, counts nothing (TRAPS 18)") {
  for (const bool is_empty : {true, false}) {
    test::on_threads(3, [is_empty](ry::Worker& worker) {
      auto norm = joined(worker, 4);
      torch::nn::BatchNorm2d plain(4);
      const auto all = numbers({5, 4, 3, 3}, 0.4, torch::kFloat);
      const auto whole = all.clone().set_requires_grad(true);
      auto mine = worker.rank() == 0   ? all.narrow(0, 0, 2)
                  : worker.rank() == 2 ? all.narrow(0, 2, 3)
                                       : torch::full({is_empty ? 0 : 2, 4, 3, 3}, std::nan(""));
      mine = mine.clone().set_requires_grad(true);
      worker.samples(worker.rank() == 1 ? 0U : static_cast<std::uint64_t>(mine.size(0)));
      norm->forward(mine).sin().mean().backward();
      plain->forward(whole).sin().mean().backward();
      EXPECT(distance(norm->running_mean, plain->running_mean) < 1e-6);
      EXPECT(distance(norm->running_var, plain->running_var) < 1e-6);
      if (worker.rank() != 1) {
        const auto gradient = mine.grad() * (static_cast<double>(mine.size(0)) / 5);
        EXPECT(distance(gradient, whole.grad().narrow(0, worker.rank() == 0 ? 0 : 2, mine.size(0))) < 1e-6);
      }
    });
  }
}

TEST_CASE("BatchNorm: a step that is left out leaves no trace in running statistics, joined or not (FAULTS D9)") {
  for (const bool is_joined : {true, false}) {
    for (const int micro_batches : {1, 2}) {
      test::on_both_threads(2, [=](ry::Worker& worker) {
        auto net = ry::prepare_model(worker, [] {
          torch::nn::Sequential made(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
          return made;
        });
        if (is_joined) ry::sync_batch_norm(worker, net);
        const auto step = [&](bool is_bad) {
          for (int micro = 1; micro <= micro_batches; ++micro) {
            worker.samples(3, /*completes_step=*/micro == micro_batches);
            auto batch = numbers({3, 4}, 0.37 + worker.rank(), torch::kFloat);
            if (is_bad && worker.rank() == 1 && micro == 1) batch[1][2] = std::nan("");
            net->forward(batch).sin().sum().backward();
          }
        };
        const auto statistics = [&] {
          std::vector<torch::Tensor> copies;
          for (const auto& buffer : net->buffers()) copies.push_back(buffer.detach().clone());
          return copies;
        };
        step(/*is_bad=*/false);
        const auto before = statistics();
        EXPECT(before.size() == 3 && before.back().item<std::int64_t>() == micro_batches);
        step(/*is_bad=*/true);
        EXPECT(!net->parameters().front().grad().defined());
        const auto after = statistics();
        for (std::size_t at = 0; at < before.size(); ++at) EXPECT(torch::equal(before[at], after[at]));
        step(/*is_bad=*/false);
        const auto later = statistics();
        EXPECT(later.back().item<std::int64_t>() == 2 * micro_batches && !torch::equal(later.front(), before.front()));
      });
    }
  }
}

TEST_CASE("BatchNorm: exchanges nothing in eval") {
  test::on_threads(2, [](ry::Worker& worker) {
    auto norm = joined(worker, 4);
    norm->eval();
    if (worker.rank() == 0) norm->forward(numbers({3, 4, 2, 2}, 0.3, torch::kFloat));
    EXPECT(worker.mean(worker.rank()) == 0.5);  // would meet the exchange
  });
}

TEST_CASE("BatchNorm: two forward passes before one backward pass (FAULTS D32)") {
  test::on_threads(2, [](ry::Worker& worker) {
    auto norm = joined(worker, 4);
    torch::nn::BatchNorm2d plain(4);
    const auto all = numbers({4, 4, 2, 2}, 0.3, torch::kDouble);
    norm->to(torch::kDouble);
    plain->to(torch::kDouble);
    const auto twice = [](auto& module, const torch::Tensor& x) {
      (module->forward(x).sin() + module->forward(x * x).cos()).mean().backward();
    };
    worker.samples(2);
    twice(norm, all.narrow(0, worker.rank() * 2, 2));
    twice(plain, all);
    ry::all_reduce(worker, norm->weight.grad(), ry::ReduceOp::average);
    EXPECT(distance(norm->weight.grad(), plain->weight.grad()) < 1e-12);
  });
}

TEST_CASE("BatchNorm: micro-batches that are divided unevenly add up to one worker's gradients") {
  test::on_threads(2, [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] {
      torch::nn::Sequential made(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
      made->to(torch::kDouble);
      return made;
    });
    const auto plain = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    ry::sync_batch_norm(worker, net);
    const std::int64_t of_first[] = {3, 2};  // rank 0's samples of each micro-batch; rank 1 has 1 and 4
    const std::int64_t of_all[] = {4, 6};
    for (int micro = 0; micro < 2; ++micro) {
      const auto all = numbers({of_all[micro], 4}, 0.37 + micro, torch::kDouble);
      const std::int64_t begin = worker.rank() == 0 ? 0 : of_first[micro];
      const std::int64_t mine = worker.rank() == 0 ? of_first[micro] : of_all[micro] - of_first[micro];
      worker.samples(static_cast<std::uint64_t>(mine), /*completes_step=*/micro == 1);
      net->forward(all.narrow(0, begin, mine)).sin().mean().backward();
      (plain->forward(all).sin().mean() * static_cast<double>(of_all[micro]) / 10.0).backward();
    }
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      EXPECT(distance(net->parameters()[i].grad(), plain->parameters()[i].grad()) < 1e-12);
    }
  });
}

TEST_CASE("BatchNorm: takes half types, channels_last and expanded gradients") {
  test::on_threads(2, [](ry::Worker& worker) {
    const auto all = numbers({4, 4, 3, 3}, 0.3, torch::kFloat);
    auto norm = joined(worker, 4);
    torch::nn::BatchNorm2d plain(4);
    const auto whole = all.clone().set_requires_grad(true);
    const auto mine = all.narrow(0, worker.rank() * 2, 2).clone(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
    worker.samples(2);
    const auto weights = numbers({1, 4, 1, 1}, 0.7, torch::kFloat);
    norm->forward(mine).exp().mul(weights).sum().backward();
    plain->forward(whole).exp().mul(weights).sum().backward();
    EXPECT(distance(mine.grad(), whole.grad().narrow(0, worker.rank() * 2, 2)) < 1e-5);
    norm->forward(mine).sum().backward();  // its gradient is one number, expanded

    auto half = joined(worker, 4);
    half->to(torch::kBFloat16);
    const auto small = mine.detach().to(torch::kBFloat16).set_requires_grad(true);
    const auto out = half->forward(small);
    EXPECT(out.scalar_type() == torch::kBFloat16);
    EXPECT(distance(out, norm->forward(mine)) < 0.05);  // bf16 has 8 bits
    out.sum().backward();
    EXPECT(small.grad().scalar_type() == torch::kBFloat16);
    EXPECT(half->weight.grad().scalar_type() == torch::kBFloat16);
  });
}

TEST_CASE("BatchNorm: needs two values per channel on all ranks together, and only there") {
  test::on_threads(2, [](ry::Worker& worker) {
    ry::nn::BatchNorm1d norm(4);
    ry::sync_batch_norm(worker, norm);
    norm->forward(numbers({1, 4}, 0.3 + worker.rank(), torch::kFloat));  // one value per rank: a plain one refuses
  });
  const auto error = test::error_of(2, [](ry::Worker& worker) {
    ry::nn::BatchNorm1d norm(4);
    ry::sync_batch_norm(worker, norm);
    worker.samples(worker.rank() == 0 ? 1 : 0);
    norm->forward(numbers({1, 4}, 0.3, torch::kFloat));
  });
  CHECK_THAT(error, ContainsSubstring("hold 1 values per channel") && ContainsSubstring("make the batch larger"));
}

TEST_CASE("BatchNorm: refuses what it cannot do, and says why") {
  ry::nn::BatchNorm2d norm(4);
  CHECK_THROWS_WITH(norm->forward(torch::ones({2, 4})), ContainsSubstring("the input is Float[2, 4]") &&
                                                            ContainsSubstring("(batch, features, height, width)"));
  CHECK_THROWS_WITH(norm->forward(torch::ones({2, 3, 1, 1})), ContainsSubstring("with 4 features"));
  const auto error = test::error_of(2, [](ry::Worker& worker) {
    auto joint = joined(worker, 4);
    worker.samples(2);
    const auto x = numbers({2, 4, 2, 2}, 0.3, torch::kFloat).set_requires_grad(true);
    torch::autograd::grad({joint->forward(x).sin().sum()}, {x}, {}, c10::nullopt, /*create_graph=*/true);
  });
  CHECK_THAT(error, ContainsSubstring("cannot be differentiated again"));
}

TEST_CASE("BatchNorm: a clone is joined as well, and a module that outlives its worker is alone again") {
  std::shared_ptr<ry::nn::BatchNorm2dImpl> kept;
  test::on_threads(2, [&kept](ry::Worker& worker) {
    auto norm = joined(worker, 4);
    auto copy = std::dynamic_pointer_cast<ry::nn::BatchNorm2dImpl>(norm->clone());
    copy->forward(numbers({2, 4, 2, 2}, 0.3 + worker.rank(), torch::kFloat));
    const auto sum = copy->running_mean.clone();
    ry::all_reduce(worker, sum);
    EXPECT(copy->is_joined() && torch::equal(sum, copy->running_mean * 2));
    if (worker.rank() == 0) kept = norm.ptr();
  });
  REQUIRE(kept);
  CHECK_FALSE(kept->is_joined());
  CHECK(kept->forward(numbers({2, 4, 2, 2}, 0.3, torch::kFloat)).numel() == 32);
}
