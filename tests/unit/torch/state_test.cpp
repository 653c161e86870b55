// SPDX-License-Identifier: MIT
#include "railyard/torch/state.hpp"

#include "support/catch.hpp"
#include "support/internals.hpp"
#include "support/memory_state.hpp"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace ry = railyard;

namespace {

using railyard_test::put;
using railyard_test::taken;

// Tensors of many kinds and layouts.
struct Zoo : torch::nn::Module {
  explicit Zoo(bool row_by_row = false) {
    const auto laid_out = [&](torch::Tensor tensor, std::int64_t one, std::int64_t other) {
      return row_by_row ? tensor : tensor.transpose(one, other).contiguous().transpose(one, other);
    };
    register_parameter("matrix", laid_out(torch::randn({3, 5}), 0, 1));
    register_parameter("image", laid_out(torch::randn({2, 3, 4, 5}, torch::kFloat64), 1, 3));
    register_parameter("half", torch::randn({4}).to(torch::kHalf));
    register_parameter("bfloat", torch::randn({4}).to(torch::kBFloat16));
    register_parameter("complex", torch::randn({2, 2}, torch::kComplexDouble));
    register_parameter("frozen", torch::randn({2}), /*requires_grad=*/false);
    register_buffer("flags", torch::rand({7}) > 0.5);
    register_buffer("count", torch::randint(1000, {}, torch::kInt64));
    register_buffer("none", torch::Tensor{});
    register_buffer("empty", torch::empty({0, 3}));
    register_buffer("gaps", torch::randn({4, 6}).slice(1, 0, 6, 2));
    child = register_module("child", torch::nn::Linear(3, 2));
    register_module("same_child", child);
  }
  torch::nn::Linear child{nullptr};
};

std::vector<torch::Tensor> all_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> tensors;
  for (const auto& named : ry::detail::tensors_of(module)) {
    if (named.tensor.defined()) tensors.push_back(named.tensor.detach());
  }
  return tensors;
}

std::string error_of_put(auto& part, const ry::State& state) {
  try {
    put(part, state);
  } catch (const ry::ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("state of a module: every tensor comes back, in its place, whatever its type and layout (TRAPS 5)") {
  for (const bool row_by_row : {false, true}) {
    auto from = std::make_shared<Zoo>();
    auto to = std::make_shared<Zoo>(row_by_row);
    std::vector<const void*> places;
    for (const auto& tensor : all_of(*to)) places.push_back(tensor.data_ptr());
    const auto version = to->child->weight._version();
    put(to, taken(from));
    const auto expected = all_of(*from);
    const auto found = all_of(*to);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      INFO("tensor " << i);
      CHECK(torch::equal(found[i], expected[i]));
      CHECK(found[i].data_ptr() == places[i]);
    }
    CHECK(to->child->weight._version() > version);
  }
}

TEST_CASE("state of a module: names, types and bytes are those of a state_dict") {
  auto zoo = std::make_shared<Zoo>();
  const ry::State state = taken(zoo);
  CHECK(state.tensors.size() == all_of(*zoo).size());
  CHECK_FALSE(state.is_own);
  const ry::StateTensor* matrix = state.find_tensor("matrix");
  REQUIRE(matrix != nullptr);
  CHECK(matrix->dtype == ry::Dtype::f32);
  CHECK(matrix->shape == std::vector<std::int64_t>{3, 5});
  std::vector<float> row(5);
  matrix->read(5, 10, reinterpret_cast<std::byte*>(row.data()));
  const auto second = zoo->named_parameters()["matrix"].detach()[1].contiguous();
  CHECK(std::memcmp(row.data(), second.data_ptr(), 20) == 0);
  CHECK(state.find_tensor("complex")->shape == std::vector<std::int64_t>{2, 2, 2});
  CHECK(state.at("complex.complex").as<bool>());
  CHECK(state.find_tensor("child.weight") != nullptr);
  CHECK(state.find_tensor("same_child.weight") != nullptr);
  CHECK(state.find_tensor("none") == nullptr);
}

TEST_CASE("state of a module: values, holders, Sequential and pointers have it") {
  torch::nn::Sequential from(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  torch::nn::Sequential to(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  from->forward(torch::randn({4, 2}));
  put(to, taken(from));
  const auto input = torch::randn({4, 2});
  from->eval();
  to->eval();
  CHECK(torch::equal(from->forward(input), to->forward(input)));
  Zoo zoo;
  put(zoo, taken(std::make_shared<Zoo>()));
  torch::nn::Linear empty{nullptr};
  CHECK_THROWS_WITH(taken(empty), ContainsSubstring("empty module holder"));
}

TEST_CASE("state of a module: all that does not fit is named, and nothing is written") {
  torch::nn::Sequential from(torch::nn::Linear(2, 3), torch::nn::Linear(3, 4));
  torch::nn::Sequential to(torch::nn::Linear(2, 5), torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})),
                           torch::nn::Linear(1, 1));
  to[2]->to(torch::kFloat64);
  const auto before = to[0]->parameters()[0].detach().clone();
  const std::string error = error_of_put(to, taken(from));
  CHECK_THAT(error, ContainsSubstring("\"0.weight\" was saved as f32[3, 2] and is Float[5, 2] here"));
  CHECK_THAT(error, ContainsSubstring("\"1.weight\" was saved as f32[4, 3] and is Float[3] here"));
  CHECK_THAT(error, ContainsSubstring("\"2.bias\" Double[1] was not saved"));
  CHECK_THAT(error, ContainsSubstring("Build the module as it was"));
  CHECK(torch::equal(before, to[0]->parameters()[0].detach()));
  CHECK_THAT(error_of_put(from, taken(to)),
             ContainsSubstring("\"2.weight\" f64[1, 1] was saved and has no place here"));
}

TEST_CASE("state of a module: pairs of numbers are no complex ones, and sparse tensors are refused by name") {
  struct One : torch::nn::Module {
    explicit One(torch::Tensor tensor) { register_parameter("one", std::move(tensor), false); }
  };
  One pairs(torch::zeros({3, 2}));
  One complex(torch::zeros({3}, torch::kComplexFloat));
  CHECK_THAT(error_of_put(complex, taken(pairs)), ContainsSubstring("\"one\" was saved as f32[3, 2]"));
  CHECK_THAT(error_of_put(pairs, taken(complex)), ContainsSubstring("of complex numbers"));
  CHECK_THROWS_WITH(taken(One(torch::eye(2).to_sparse())), ContainsSubstring("\"one\""));
  CHECK_THROWS_WITH(taken(One(torch::zeros({2}, torch::kInt16))), ContainsSubstring("\"one\""));
}

namespace {

// Two layers, one parameter that is never used, one that is used from the fourth step on, and a tied one.
struct Small : torch::nn::Module {
  Small() {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 2));
    unused = register_parameter("unused", torch::randn({3}));
    late = register_parameter("late", torch::randn({2}));
    register_parameter("tied", late);
  }
  torch::Tensor loss(int step) {
    const auto input = (torch::arange(12 * step, 12 * step + 20).view({5, 4}) * 0.37).sin();
    auto output = second->forward(torch::tanh(first->forward(input)));
    if (step > 3) output = output + late;
    return output.pow(2).mean();
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::Tensor unused{};
  torch::Tensor late{};
};

std::vector<torch::optim::OptimizerParamGroup> groups_of(const Small& net,
                                                         std::unique_ptr<torch::optim::OptimizerOptions> second) {
  return {torch::optim::OptimizerParamGroup({net.first->weight, net.first->bias, net.unused}),
          torch::optim::OptimizerParamGroup({net.second->weight, net.second->bias, net.late}, std::move(second))};
}

template <class X>
void train(Small& net, X& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    const auto closure = [&] {
      for (auto& parameter : net.parameters()) parameter.mutable_grad() = torch::Tensor{};
      auto loss = net.loss(step);
      loss.backward();
      return loss;
    };
    closure();
    optimizer.step(closure);
  }
}

// b.put(a.take()) and both go on alike: with equal bits where the optimizer allows it, at any step.
template <class X, class Make>
void check_law(const Make& make) {
  for (const int saved_after : {0, 1, 3, 6}) {
    INFO(typeid(X).name() << " saved after " << saved_after);
    Small a_net, b_net;
    auto a = make(a_net);
    auto b = make(b_net);
    train(a_net, *a, 0, saved_after);
    train(b_net, *b, 20, 22);
    static_cast<typename ry::detail::OptimizerFields<X>::Options&>(a->param_groups()[0].options()).lr(0.0123);
    const auto net_state = taken(a_net);
    const auto state = taken(*a);
    train(a_net, *a, saved_after, saved_after + 6);
    put(b_net, net_state);
    put(*b, state);
    CHECK(b->param_groups()[0].options().get_lr() == 0.0123);
    train(b_net, *b, saved_after, saved_after + 6);
    const auto expected = a_net.parameters();
    const auto found = b_net.parameters();
    // LBFGS takes products of whole vectors, whose bits depend on where in memory they begin.
    const bool has_equal_bits = !std::is_same_v<X, torch::optim::LBFGS>;
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(
          (has_equal_bits ? torch::equal(found[i], expected[i]) : torch::allclose(found[i], expected[i], 1e-4, 1e-6)));
    }
  }
}

template <class X, class Options>
void check_law_with(const Options& options, const Options& others) {
  check_law<X>([&](const Small& net) {
    return std::make_unique<X>(groups_of(net, std::make_unique<Options>(others)), options);
  });
}

}  // namespace

TEST_CASE("state of an optimizer: whoever is given it goes on with equal bits") {
  namespace optim = torch::optim;
  check_law_with<optim::SGD>(optim::SGDOptions(0.1), optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
  check_law_with<optim::Adam>(optim::AdamOptions(0.02), optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.01));
  check_law_with<optim::AdamW>(optim::AdamWOptions(0.02), optim::AdamWOptions(0.01).betas({0.8, 0.9}));
  check_law_with<optim::RMSprop>(optim::RMSpropOptions(0.01), optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
  // Without a line search, which would decide otherwise after a difference of the last bit; its state is the same.
  check_law<optim::LBFGS>([](const Small& net) {
    const std::vector<torch::Tensor> parameters{net.first->weight, net.first->bias, net.second->weight};
    return std::make_unique<optim::LBFGS>(parameters, optim::LBFGSOptions(0.1).max_iter(3).history_size(4));
  });
}

TEST_CASE("state of an optimizer: Adagrad goes on with equal bits as well") {
  using torch::optim::AdagradOptions;
  check_law<torch::optim::Adagrad>([](const Small& net) {
    const std::vector<torch::Tensor> parameters{net.first->weight, net.first->bias, net.second->weight, net.late};
    return std::make_unique<torch::optim::Adagrad>(parameters, AdagradOptions(0.1).lr_decay(0.1));
  });
}

TEST_CASE("state of an optimizer: a tied parameter has one, and one without a step has none") {
  Small net;
  torch::optim::Adam optimizer(net.parameters(), torch::optim::AdamOptions(0.1));
  train(net, optimizer, 5, 6);
  const ry::State state = taken(optimizer);
  CHECK(state.at("groups.0.parameters").as<std::string>() ==
        "Float[3], Float[2], Float[6, 4], Float[6], Float[2, 6], Float[2]");
  CHECK(state.find_tensor("state.0.0.step") == nullptr);
  CHECK(state.find_tensor("state.0.1.step") != nullptr);
  CHECK(state.tensors.size() == 5 * 3);
}

TEST_CASE("state of an optimizer: what does not fit is named, and nothing changes") {
  Small net;
  torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(0.1));
  train(net, adam, 0, 2);
  const ry::State state = taken(adam);
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.2));
  CHECK_THAT(error_of_put(sgd, state), ContainsSubstring("optimizer is SGD here, and was Adam"));
  torch::optim::Adam smaller(net.first->parameters(), torch::optim::AdamOptions(0.3));
  const std::string error = error_of_put(smaller, state);
  CHECK_THAT(error, ContainsSubstring("groups.0.parameters is Float[6, 4], Float[6] here, and was Float[3], "));
  CHECK(smaller.param_groups()[0].options().get_lr() == 0.3);
  torch::optim::Adam grouped(groups_of(net, std::make_unique<torch::optim::AdamOptions>(0.1)),
                             torch::optim::AdamOptions(0.1));
  CHECK_THAT(error_of_put(adam, taken(grouped)),
             ContainsSubstring("there are 1 groups of parameters here, and were more"));
  ry::State damaged = state;
  damaged.tensors[1].shape = {24};
  damaged.tensors[0].name = "state.0.7.step";
  const std::string damage = error_of_put(adam, damaged);
  CHECK_THAT(damage, ContainsSubstring("f32[24]"));
  CHECK_THAT(damage, ContainsSubstring("\"state.0.7.step\" i64[] was saved and has no place here"));
}

// Without a GPU: tensors without data are of another device as well.
TEST_CASE("state of a module: what a CPU has saved comes to the device on which the module is (FAULTS F7)") {
  struct One : torch::nn::Module {
    explicit One(torch::Device device) { weight = register_parameter("weight", torch::ones({2, 3}, device)); }
    torch::Tensor weight{};
  };
  One from{torch::kCPU};
  One to{torch::kMeta};
  put(to, taken(from));
  CHECK(to.weight.device() == torch::kMeta);
}

TEST_CASE("state of an optimizer: it comes to the device of each parameter (FAULTS F8)") {
  const auto on_cpu = torch::ones({3}, torch::requires_grad());
  torch::optim::Adam from({on_cpu}, torch::optim::AdamOptions(0.1));
  on_cpu.sum().backward();
  from.step();
  const auto elsewhere = torch::empty({3}, torch::TensorOptions{torch::kMeta}.requires_grad(true));
  torch::optim::Adam to({elsewhere}, torch::optim::AdamOptions(0.1));
  put(to, taken(from));
  REQUIRE(to.state().size() == 1);
  const auto& state = static_cast<const torch::optim::AdamParamState&>(*to.state().begin()->second);
  CHECK(state.step() == 1);
  CHECK(state.exp_avg().device() == torch::kMeta);
  CHECK(state.exp_avg_sq().device() == torch::kMeta);
}

TEST_CASE("state of a scheduler: it goes on counting where the saved one was (TRAPS 11)") {
  struct Halving : torch::optim::LRScheduler {
    explicit Halving(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer) {}
    std::vector<double> get_lrs() override { return {1.0 / (1 + step_count_)}; }
  };
  const auto check = [](auto make) {
    const auto parameter = torch::zeros({1}, torch::requires_grad());
    torch::optim::SGD a_optimizer({parameter}, torch::optim::SGDOptions(1)),
        b_optimizer({parameter}, torch::optim::SGDOptions(1));
    auto a = make(a_optimizer);
    auto b = make(b_optimizer);
    for (int i = 0; i < 4; ++i) a.step();
    put(b, taken(a));
    put(b_optimizer, taken(a_optimizer));
    for (int i = 0; i < 7; ++i) {
      a.step();
      b.step();
      CHECK(a_optimizer.param_groups()[0].options().get_lr() == b_optimizer.param_groups()[0].options().get_lr());
    }
    CHECK(a_optimizer.param_groups()[0].options().get_lr() < 0.5);
  };
  check([](auto& optimizer) { return torch::optim::StepLR(optimizer, 3, 0.7); });
  check([](auto& optimizer) { return Halving(optimizer); });
}

#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)
TEST_CASE("state of a scheduler: one that waits for a plateau goes on waiting (TRAPS 11)") {
  const auto parameter = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD a_optimizer({parameter}, torch::optim::SGDOptions(1)),
      b_optimizer({parameter}, torch::optim::SGDOptions(1));
  using Scheduler = torch::optim::ReduceLROnPlateauScheduler;
  Scheduler a(a_optimizer, Scheduler::min, 0.5F, 2, 1e-4, Scheduler::rel, 1);
  Scheduler b(b_optimizer, Scheduler::min, 0.5F, 2, 1e-4, Scheduler::rel, 1);
  for (const float metric : {3.0F, 2.0F, 2.0F, 2.0F, 2.0F, 2.0F}) a.step(metric);
  put(b, taken(a));
  put(b_optimizer, taken(a_optimizer));
  for (int i = 0; i < 9; ++i) {
    a.step(2);
    b.step(2);
    CHECK(a_optimizer.param_groups()[0].options().get_lr() == b_optimizer.param_groups()[0].options().get_lr());
  }
  CHECK(a_optimizer.param_groups()[0].options().get_lr() < 0.25);
}
#endif

TEST_CASE("state of random numbers: the default generator and one's own go on alike") {
  ry::TorchRandom random;
  torch::manual_seed(5);
  static_cast<void>(torch::randn({3}));  // which leaves half a pair behind
  const ry::State state = taken(random);
  CHECK(state.is_own);
  const auto expected = torch::randn({5});
  const auto mask = torch::bernoulli(torch::full({9}, 0.5));
  torch::manual_seed(6);
  put(random, state);
  CHECK(torch::equal(torch::randn({5}), expected));
  CHECK(torch::equal(torch::bernoulli(torch::full({9}, 0.5)), mask));

  at::Generator own = at::detail::createCPUGenerator(7);
  const ry::State own_state = taken(own);
  const auto numbers = torch::rand({4}, own);
  put(own, own_state);
  CHECK(torch::equal(torch::rand({4}, own), numbers));
  CHECK_THAT(error_of_put(own, ry::State{}), ContainsSubstring("not that of a generator"));
  ry::State cut = own_state;
  cut.tensors[0].shape = {10};
  CHECK_THAT(error_of_put(own, cut), ContainsSubstring("u8[10]"));
}
