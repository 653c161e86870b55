// SPDX-License-Identifier: MIT
#include "railyard/torch/recompute.hpp"
#include "railyard/torch/autocast.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

using Catch::ContainsSubstring;

namespace recomputing {

namespace {

namespace ry = railyard;

// A stack of blocks, each computed as the test says.
struct Stack : torch::nn::Module {
  explicit Stack(double dropout = 0, bool has_norm = false) {
    for (int i = 0; i < 3; ++i) {
      torch::nn::Sequential block(torch::nn::Linear(6, 6), torch::nn::Tanh());
      if (has_norm) block->push_back(torch::nn::BatchNorm1d(6));
      if (dropout > 0) block->push_back(torch::nn::Dropout(dropout));
      blocks.push_back(register_module("block" + std::to_string(i), block));
    }
  }
  torch::Tensor forward(torch::Tensor x, bool recomputes) {
    for (auto& block : blocks) x = recomputes ? ry::recompute(block, x) : block->forward(x);
    return x;
  }
  std::vector<torch::nn::Sequential> blocks{};
};

std::shared_ptr<Stack> make_stack(double dropout = 0, bool has_norm = false) {
  torch::manual_seed(11);
  return std::make_shared<Stack>(dropout, has_norm);
}

std::vector<torch::Tensor> gradients_of(const torch::nn::Module& net) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

bool are_equal(const std::vector<torch::Tensor>& one, const std::vector<torch::Tensor>& other) {
  if (one.size() != other.size()) return false;
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (one[i].defined() != other[i].defined()) return false;
    if (one[i].defined() && !torch::equal(one[i], other[i])) return false;
  }
  return true;
}

torch::Tensor input(std::int64_t rows = 5) {
  return (torch::arange(rows * 6).to(torch::kFloat) * 0.3).sin().view({rows, 6});
}

// What is seen of one pass, and the random numbers that come after it.
struct Pass {
  std::vector<torch::Tensor> gradients{};
  torch::Tensor output{};
  torch::Tensor input_gradient{};
  torch::Tensor next_numbers{};
};
Pass pass_of(Stack& net, bool recomputes, bool needs_input_gradient = true) {
  net.zero_grad();
  torch::manual_seed(7);
  const auto x = input().set_requires_grad(needs_input_gradient);
  Pass pass;
  pass.output = net.forward(x, recomputes);
  const auto weights = torch::rand({5, 6});  // drawn between forward and backward
  (pass.output * weights).sum().backward();
  pass.next_numbers = torch::rand({4});
  for (const auto& gradient : gradients_of(net)) pass.gradients.push_back(gradient.clone());
  if (needs_input_gradient) pass.input_gradient = x.grad();
  return pass;
}

// Something whose backward pass needs a tensor of 1000 elements that it makes, which the given pointer knows.
using Known = c10::weak_intrusive_ptr<c10::TensorImpl>;
torch::Tensor square_wide(const torch::Tensor& x, std::vector<Known>& known) {
  const auto wide = x.expand({1000}) * 2;
  known.emplace_back(wide.getIntrusivePtr());
  return (wide * wide).mean();
}

}  // namespace

TEST_CASE("recompute: gradients are those of plain blocks to the bit, dropout included, and draws nothing more") {
  for (const double dropout : {0.0, 0.4}) {
    for (const bool needs_input_gradient : {true, false}) {
      const auto net = make_stack(dropout);
      const Pass plain = pass_of(*net, false, needs_input_gradient);
      const Pass again = pass_of(*net, true, needs_input_gradient);
      CHECK(torch::equal(again.output, plain.output));
      CHECK(are_equal(again.gradients, plain.gradients));
      CHECK(torch::equal(again.next_numbers, plain.next_numbers));
      if (needs_input_gradient) CHECK(torch::equal(again.input_gradient, plain.input_gradient));
    }
  }
}

TEST_CASE("recompute: keeps the inputs alone from the forward pass to the backward pass") {
  for (const bool recomputes : {false, true}) {
    std::vector<Known> known;
    const auto x = torch::ones({1}, torch::requires_grad());
    const auto square = [&known](const torch::Tensor& in) { return square_wide(in, known); };
    const auto y = recomputes ? ry::recompute(square, x) : square(x);
    REQUIRE(known.size() == 1);
    CHECK(known[0].expired() == recomputes);
    y.backward();
    CHECK(x.grad().item<double>() == Approx(8));
    REQUIRE(known.size() == (recomputes ? 2 : 1));
    CHECK((known.back().expired() || !recomputes));
  }
}

TEST_CASE("recompute: takes and returns several tensors, some undefined, without gradient, or of whole numbers") {
  auto x = torch::full({3}, 2.0, torch::requires_grad());
  const auto y = torch::full({3}, 5.0);
  const torch::Tensor none;
  const auto function = [](const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& c) {
    if (c.defined()) throw std::runtime_error{"not expected"};
    return std::tuple{a * b, (a + b).argmax(), a.exp()};
  };
  const auto [product, place, unused] = ry::recompute(function, x, y, none);
  CHECK(torch::equal(product.detach(), torch::full({3}, 10.0)));
  CHECK(place.scalar_type() == torch::kLong);
  CHECK(!place.requires_grad());
  product.sum().backward();
  CHECK(torch::equal(x.grad(), y));
  CHECK(!y.grad().defined());

  x = torch::full({3}, 2.0, torch::requires_grad());
  const auto list = ry::recompute([](const torch::Tensor& a) { return std::vector<torch::Tensor>{a * 2, a * 3}; }, x);
  REQUIRE(list.size() == 2);
  (list[0] + list[1]).sum().backward();
  CHECK(torch::equal(x.grad(), torch::full({3}, 5.0)));
  CHECK(ry::recompute([] { return torch::ones({2}); }).sum().item<double>() == 2);
}

TEST_CASE("recompute: within recompute, and with a graph that is kept") {
  const auto net = make_stack(0.4);
  const Pass plain = pass_of(*net, false);
  net->zero_grad();
  torch::manual_seed(7);
  auto x = input().set_requires_grad(true);
  const auto whole = [&net](const torch::Tensor& in) { return net->forward(in, true); };
  const auto output = ry::recompute(whole, x);
  const auto loss = (output * torch::rand({5, 6})).sum();
  loss.backward({}, /*retain_graph=*/true);
  CHECK(are_equal(gradients_of(*net), plain.gradients));
  CHECK(torch::equal(x.grad(), plain.input_gradient));
  net->zero_grad();
  loss.backward();
  CHECK(are_equal(gradients_of(*net), plain.gradients));
  CHECK_THROWS(loss.backward());
}

TEST_CASE("recompute: running statistics of a module move once") {
  const auto plain = make_stack(0, true);
  const auto again = make_stack(0, true);
  for (int step = 0; step < 2; ++step) {
    const Pass expected = pass_of(*plain, false);
    CHECK(are_equal(pass_of(*again, true).gradients, expected.gradients));
  }
  CHECK(are_equal(again->buffers(), plain->buffers()));
  CHECK(again->buffers()[2].item<std::int64_t>() == 2);
}

TEST_CASE("recompute: casts as the forward pass did, and weights get gradients wherever backward() is called") {
  for (const bool is_backward_inside : {false, true}) {
    std::vector<std::vector<torch::Tensor>> gradients;
    for (const bool recomputes : {false, true}) {
      const auto net = make_stack();
      std::optional<ry::Autocast> autocast{std::in_place, torch::kCPU};
      // Once without and once within, of which the second must not go by the first one's casts, which have no graph.
      const auto x = net->forward(input(), recomputes);
      CHECK(net->blocks[0]->forward(input()).scalar_type() == torch::kBFloat16);
      const auto loss = net->forward(x, false).to(torch::kFloat).square().sum();
      if (!is_backward_inside) autocast.reset();
      loss.backward();
      gradients.push_back(gradients_of(*net));
      CHECK(gradients.back()[0].defined());
      CHECK(gradients.back()[0].scalar_type() == torch::kFloat);
    }
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      CHECK(torch::allclose(gradients[1][i], gradients[0][i], 0.02, 0.02));
    }
  }
  std::vector<std::vector<torch::Tensor>> gradients;
  for (const bool recomputes : {false, true}) {
    const auto net = make_stack();
    torch::Tensor loss;
    {
      const ry::Autocast autocast{torch::kCPU};
      loss = net->forward(input(), recomputes).to(torch::kFloat).square().sum();
    }
    loss.backward();
    gradients.push_back(gradients_of(*net));
  }
  CHECK(are_equal(gradients[1], gradients[0]));
}

TEST_CASE("recompute: what needs no gradient is just computed") {
  const auto net = make_stack();
  {
    const torch::NoGradGuard no_grad;
    CHECK(!net->forward(input(), true).requires_grad());
  }
  for (auto& parameter : net->parameters()) parameter.set_requires_grad(false);
  CHECK(!net->forward(input(), true).requires_grad());
  const auto frozen = ry::recompute([&net](const torch::Tensor& x) { return net->forward(x, false); }, input());
  frozen.sum().backward();  // it cannot be known before
  CHECK(!net->parameters()[0].grad().defined());
}

TEST_CASE("recompute: what cannot be computed again, or not as before, is an error that says so") {
  const auto x = torch::ones({3}, torch::requires_grad());
  CHECK_THROWS_WITH(ry::recompute([](const torch::Tensor& in) { return in.detach().add_(1) * in; }, x),
                    ContainsSubstring("changes its input Float[3] in place"));
  const auto square = [](const torch::Tensor& in) { return in * in; };
  CHECK_THROWS_WITH(ry::recompute(square, x).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true),
                    ContainsSubstring("cannot be differentiated again"));
  CHECK_THROWS_WITH(ry::recompute([](const torch::Tensor&) { return torch::Tensor{}; }, x),
                    ContainsSubstring("returned an undefined tensor"));
  auto size = std::make_shared<std::int64_t>(2);
  const auto longer = [size](const torch::Tensor& in) { return in.repeat({(*size)++}); };
  CHECK_THROWS_WITH(ry::recompute(longer, x).sum().backward(),
                    ContainsSubstring("has returned [Float[9]] in backward() and [Float[6]] before"));
  auto count = std::make_shared<int>(0);
  const auto draws = [count](const torch::Tensor& in) {
    for (int i = 0; i <= *count; ++i) static_cast<void>(torch::rand({1}));
    ++*count;
    return in * 2;
  };
  const auto y = ry::recompute(draws, x);
  CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("has drawn other random numbers"));
}

TEST_CASE(
    "recompute: of a prepared model averages as a plain pass does, overlapped or not, optimizers prepared or not") {
  const auto train = [](ry::Worker& worker, bool recomputes, bool is_prepared, ry::Overlap overlap) {
    ry::ModelOptions options{.overlap = overlap};
    options.bucket_bytes = options.first_bucket_bytes = 1;
    auto net = ry::prepare_model(
        worker, [] { return std::make_shared<Stack>(); }, options);
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters())
        parameter.copy_(torch::arange(parameter.numel()).sin().view_as(parameter));
    }
    const auto loop = [&](auto& optimizer) {
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        for (const bool is_last : {false, true}) {
          worker.samples(5, step < 2 || is_last);
          net->forward(input() * (worker.rank() + step + 1), recomputes).square().mean().backward();
          if (step < 2) break;
        }
        optimizer.step();
      }
    };
    if (is_prepared) {
      auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(0.01));
      loop(optimizer);
    } else {
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      loop(optimizer);
    }
    std::vector<torch::Tensor> weights;
    for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().clone());
    return weights;
  };
  test::on_both_threads(2, [&](auto& worker) {
    const auto expected = train(worker, false, false, ry::Overlap::off);
    EXPECT(are_equal(train(worker, true, false, ry::Overlap::off), expected));
    EXPECT(are_equal(train(worker, true, true, ry::Overlap::on), expected));
    EXPECT(are_equal(train(worker, true, false, ry::Overlap::on), expected));
  });
}

TEST_CASE("recompute: workers that are processes each have their own dropout twice") {
  const auto gradient = [](bool recomputes) {
    return test::on_processes(
               2,
               [recomputes](auto& worker) {
                 auto net = ry::prepare_model(worker, [] { return std::make_shared<Stack>(0.4); });
                 worker.samples(5);
                 net->forward(input(), recomputes).square().sum().backward();
                 worker.report({{"gradient", net->parameters()[0].grad().sum().template item<double>()}});
               })
        .at("gradient")
        .number();
  };
  CHECK(gradient(true) == gradient(false));
}

}  // namespace recomputing
