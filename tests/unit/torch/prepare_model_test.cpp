// SPDX-License-Identifier: MIT
#include "railyard/torch/prepare_model.hpp"

#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"

#include <torch/torch.h>

#include <limits>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

struct Net : torch::nn::Cloneable<Net> {
  explicit Net(at::ScalarType type_ = torch::kFloat) : type(type_) { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
    to(type);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
  at::ScalarType type;
  torch::nn::Linear first{nullptr}, second{nullptr};
};

// 53 samples: with batches of 16 the last one holds 5, which neither 2 nor 4 workers can share evenly.
std::pair<torch::Tensor, torch::Tensor> samples(at::ScalarType type) {
  const auto data = torch::sin(torch::arange(53 * 6).to(torch::kDouble) * 0.37).view({53, 6}).to(type);
  return {data, torch::arange(53) % 3};
}

double largest_gap(torch::nn::Module& one, torch::nn::Module& other) {
  double largest = 0;
  for (std::size_t i = 0; i < one.parameters().size(); ++i) {
    largest = std::max(largest, (one.parameters()[i] - other.parameters()[i]).abs().max().item<double>());
  }
  return largest;
}

// Trains together, and beside it one plain model on the whole of every batch; returns how far they end apart.
template <class MakeOptimizer>
double distance_to_plain(ry::Worker& worker, at::ScalarType type, MakeOptimizer make_optimizer) {
  auto net = ry::prepare_model(worker, [type] { return std::make_shared<Net>(type); });
  auto plain = std::dynamic_pointer_cast<Net>(net->clone());
  auto loader =
      ry::prepare_loader(worker, samples(type), {.global_batch_size = 16, .shuffle = true, .drives_step = true});
  auto optimizer = make_optimizer(net->parameters());
  auto plain_optimizer = make_optimizer(plain->parameters());
  const auto [data, target] = samples(type);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto order =
        ry::detail::shuffled_indices(53, ry::detail::derive_seed(worker.seed(), static_cast<std::uint64_t>(epoch)));
    std::size_t at = 0;
    for (const auto& batch : loader) {
      const std::size_t end = std::min<std::size_t>(at + 16, 53);
      const std::vector<std::size_t> whole(order.begin() + static_cast<std::ptrdiff_t>(at),
                                           order.begin() + static_cast<std::ptrdiff_t>(end));
      at = end;
      optimizer.zero_grad();
      torch::cross_entropy_loss(net->forward(batch.data), batch.target).backward();
      optimizer.step();
      plain_optimizer.zero_grad();
      const auto rows = ry::detail::select_rows({data, target}, whole);
      torch::cross_entropy_loss(plain->forward(rows.first), rows.second).backward();
      plain_optimizer.step();
    }
  }
  return largest_gap(*net, *plain);
}

double distance_of_sgd_f32(ry::Worker& worker) {
  return distance_to_plain(worker, torch::kFloat, [](auto parameters) {
    return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

double distance_of_adaptive_f64(ry::Worker& worker) {
  const auto adam = [](auto p) { return torch::optim::Adam(p, torch::optim::AdamOptions(1e-2)); };
  const auto adamw = [](auto p) { return torch::optim::AdamW(p, torch::optim::AdamWOptions(1e-2)); };
  const auto rmsprop = [](auto p) { return torch::optim::RMSprop(p, torch::optim::RMSpropOptions(1e-2)); };
  return std::max({distance_to_plain(worker, torch::kDouble, adam), distance_to_plain(worker, torch::kDouble, adamw),
                   distance_to_plain(worker, torch::kDouble, rmsprop)});
}

// One parameter w of three zeros, prepared; its gradient is what the loss is multiplied with.
struct Weights : torch::nn::Module {
  Weights() {
    w = register_parameter("w", torch::zeros({3}));
    v = register_parameter("v", torch::zeros({2}));
  }
  torch::Tensor w{}, v{};
};

std::shared_ptr<Weights> make_weights(ry::Worker& worker) {
  return ry::prepare_model(worker, [] { return std::make_shared<Weights>(); });
}

bool is_close(const torch::Tensor& tensor, std::vector<double> values) {
  return tensor.defined() &&
         torch::allclose(tensor.to(torch::kDouble), torch::tensor(values, torch::kDouble), 1e-6, 1e-6);
}

}  // namespace

TEST_CASE(
    "prepare_model: 1, 2 and 4 threads train as one plain loop does on the same batches (FAULTS D1, D2, D3, D4, D36)") {
  for (const int workers : {1, 2, 4}) {
    test::on_both_threads(workers, [](auto& worker) {
      EXPECT(distance_of_sgd_f32(worker) < 1e-6);  // only the order of summation differs
      EXPECT(distance_of_adaptive_f64(worker) < 1e-10);
    });
  }
}

TEST_CASE("prepare_model: 2 processes over Gloo train as one plain loop does") {
  test::on_processes(2, [](auto& worker) {
    EXPECT(distance_of_sgd_f32(worker) < 1e-6);
    EXPECT(distance_of_adaptive_f64(worker) < 1e-10);
  });
}

TEST_CASE("prepare_model: weighs gradients with the samples behind them (FAULTS D1)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    worker.samples(worker.rank() == 0 ? 10 : 30);
    (net->w.sum() * (worker.rank() == 0 ? 1.0 : 2.0)).backward();
    EXPECT(is_close(net->w.grad(), {1.75, 1.75, 1.75}));
    EXPECT(!net->v.grad().defined());  // used by no rank
  });
}

TEST_CASE("prepare_model: leaves a rank without samples out, NaN and all (FAULTS D10, TRAPS 16)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    worker.samples(worker.rank() == 0 ? 4 : 0);
    const double factor = worker.rank() == 0 ? 3.0 : std::numeric_limits<double>::quiet_NaN();
    auto loss = net->w.sum() * factor;
    if (worker.rank() == 1) loss = loss + net->v.sum();
    loss.backward();
    EXPECT(is_close(net->w.grad(), {3, 3, 3}));
    EXPECT(!net->v.grad().defined());  // nothing remains of what only the rank without samples has done
  });
}

TEST_CASE("prepare_model: a parameter that one rank has not used counts as zero there (FAULTS D28)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    worker.samples(1);
    (worker.rank() == 0 ? net->w.sum() + net->v.sum() : net->w.sum()).backward();
    EXPECT(is_close(net->w.grad(), {1, 1, 1}));
    EXPECT(is_close(net->v.grad(), {0.5, 0.5}));
    const auto before = net->v.grad().clone();
    net->w.sum().backward();  // no rank uses v: it stays as it was
    EXPECT(torch::equal(net->v.grad(), before));
  });
}

TEST_CASE("prepare_model: several backward passes add up as on one worker (TRAPS 4)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    for (const std::uint64_t step : {1U, 2U}) {
      worker.samples(worker.rank() == 0 ? step : 3 * step);
      (net->w.sum() * (worker.rank() == 0 ? 1.0 : 2.0)).backward();
    }
    EXPECT(is_close(net->w.grad(), {3.5, 3.5, 3.5}));
  });
}

TEST_CASE("prepare_model: averages two models and tied, frozen and thawed parameters") {
  test::on_both_threads(2, [](auto& worker) {
    auto one = make_weights(worker);
    auto other = make_weights(worker);
    auto again = ry::prepare_model(worker, one);  // known already: averaged once all the same
    worker.samples(1);
    const double factor = worker.rank() == 0 ? 1.0 : 3.0;
    one->v.set_requires_grad(false);
    (one->w.sum() * factor + one->w.sum() * factor + one->v.sum()).backward();
    EXPECT(again.get() == one.get() && is_close(one->w.grad(), {4, 4, 4}));
    EXPECT(!other->w.grad().defined() && !one->v.grad().defined());
    one->v.set_requires_grad(true);
    (other->w.sum() * factor + one->v.sum() * factor).backward();
    EXPECT(is_close(other->w.grad(), {2, 2, 2}) && is_close(one->v.grad(), {2, 2}));
    EXPECT(is_close(one->w.grad(), {4, 4, 4}));
  });
}

TEST_CASE("prepare_model: averages parameters that were frozen when it was called") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] {
      auto weights = std::make_shared<Weights>();
      weights->v.set_requires_grad(false);
      return weights;
    });
    EXPECT(!net->v.requires_grad());
    net->v.set_requires_grad(true);
    worker.samples(1);
    (net->v.sum() * (worker.rank() == 0 ? 1.0 : 3.0)).backward();
    EXPECT(is_close(net->v.grad(), {2, 2}));
  });
}

TEST_CASE("prepare_model: a step after .to() is averaged again (TRAPS 5)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    net->to(torch::kDouble);
    auto loader =
        ry::prepare_loader(worker, {torch::ones({4}), torch::ones({4})}, {.global_batch_size = 2, .drives_step = true});
    for (const auto& batch : loader) {
      static_cast<void>(batch);
      net->zero_grad();
      (net->w.sum() * (worker.rank() == 0 ? 1.0 : 3.0)).backward();
      EXPECT(is_close(net->w.grad(), {2, 2, 2}));
    }
  });
}

TEST_CASE("prepare_model: a step after .to() is averaged with samples() alone, too") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    net->to(torch::kDouble);
    worker.samples(1);
    (net->w.sum() * (worker.rank() == 0 ? 1.0 : 3.0)).backward();
    EXPECT(is_close(net->w.grad(), {2, 2, 2}));
    net->to(torch::kFloat);
    net = ry::prepare_model(worker, net);
    net->zero_grad();
    worker.samples(1);
    (net->w.sum() * (worker.rank() == 0 ? 1.0 : 3.0)).backward();
    EXPECT(is_close(net->w.grad(), {2, 2, 2}));
  });
}

TEST_CASE("prepare_model: refuses a model that is converted once training has begun (TRAPS 5)") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = make_weights(worker);
                              worker.samples(1);
                              net->to(torch::kDouble);  // takes the hooks away, so backward() exchanges nothing
                              net->w.sum().backward();
                              worker.samples(1);
                            }),
             ContainsSubstring("\"w\"") && ContainsSubstring("before prepare_model()"));
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = make_weights(worker);
                              worker.samples(1);
                              net->v.set_data(net->v.to(torch::kDouble));
                              (net->w.sum() + net->v.sum()).backward();
                            }),
             ContainsSubstring("\"v\""));
}

TEST_CASE("prepare_model: refuses parameters that came into the model later, until it is prepared again") {
  const auto replace_second = [](auto& worker, bool prepare_again) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
    net->second = net->replace_module("second", torch::nn::Linear(8, 3));
    if (prepare_again) net = ry::prepare_model(worker, net);
    worker.samples(1);
    net->forward(torch::full({1, 6}, worker.rank() + 1.0)).sum().backward();
    const auto gradients = ry::all_gather(worker, net->second->weight.grad());
    EXPECT(torch::equal(gradients[0], gradients[1]));
  };
  CHECK_THAT(test::error_of(2, [&](auto& worker) { replace_second(worker, false); }),
             ContainsSubstring("\"second.weight\"") && ContainsSubstring("prepare_model(worker, model) again"));
  test::on_processes(2, [&](auto& worker) { replace_second(worker, true); });
}

TEST_CASE("prepare_model: names backward() where ranks do not call it equally often") {
  std::string message;
  std::string operation;
  static_cast<void>(test::error_of(2, [&](auto& worker) {
    auto net = make_weights(worker);
    worker.samples(1);
    if (worker.rank() == 1) return worker.barrier();
    try {
      net->w.sum().backward();
    } catch (const ry::CollectiveError& error) {
      message = error.what();
      operation = error.operation();
      throw;
    }
  }));
  CHECK_THAT(message,
             ContainsSubstring("backward() on rank 0/2 exchanges gradients") && ContainsSubstring("equally often"));
  CHECK_THAT(operation, ContainsSubstring("exchange of gradients"));
}

TEST_CASE("prepare_model: averages gradients of any layout (FAULTS D25)") {
  test::on_both_threads(2, [](auto& worker) {
    auto conv = ry::prepare_model(worker, [] {
      auto layer = torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3));
      layer->weight.set_data(layer->weight.contiguous(at::MemoryFormat::ChannelsLast));
      return layer;
    });
    auto turned = ry::prepare_model(worker, [] {
      auto weights = std::make_shared<Weights>();
      weights->w.set_data(torch::zeros({4, 5}).t());
      return weights;
    });
    const auto x = torch::arange(2 * 25).to(torch::kFloat).view({1, 2, 5, 5}) / 50;
    const auto y = torch::arange(20).to(torch::kFloat).view({5, 4});
    const auto expected = torch::autograd::grad({conv(x * 2).sum()}, {conv->weight})[0];
    const double factor = worker.rank() == 0 ? 1.0 : 3.0;
    for (const bool has_other_layout : {false, true}) {
      conv->weight.mutable_grad().reset();
      turned->w.mutable_grad().reset();
      if (has_other_layout && worker.rank() == 1) {  // LibTorch adds to what is there, as it lies
        conv->weight.mutable_grad() = torch::zeros({3, 2, 3, 3});
        turned->w.mutable_grad() = torch::zeros({5, 4});
      }
      worker.samples(1);
      (conv(x * factor).sum() + (turned->w * y * factor).sum()).backward();
      EXPECT(torch::allclose(conv->weight.grad(), expected, 1e-5, 1e-5));
      EXPECT(torch::allclose(turned->w.grad(), y * 2));
      EXPECT(turned->w.grad().is_contiguous() == (has_other_layout && worker.rank() == 1));
    }
  });
}

TEST_CASE("prepare_model: gradients of an ordinary network stay in the memory they were made in") {
  test::on_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] {
      return torch::nn::Sequential(torch::nn::Linear(8, 4), torch::nn::ReLU(), torch::nn::Linear(4, 2));
    });
    for (int step = 0; step < 3; ++step) {
      std::vector<const void*> made;
      std::vector<unsigned> hooks;
      for (const torch::Tensor& parameter : net->parameters()) {
        parameter.mutable_grad().reset();
        made.push_back(nullptr);
        hooks.push_back(parameter.register_hook(
            [&made, at = made.size() - 1](const torch::Tensor& gradient) { made[at] = gradient.data_ptr(); }));
      }
      worker.samples(2);
      net->forward(torch::ones({2, 8})).pow(2).sum().backward();
      for (std::size_t at = 0; at < made.size(); ++at) {
        EXPECT(made[at] != nullptr);
        EXPECT(net->parameters()[at].grad().data_ptr() == made[at]);
        net->parameters()[at].remove_hook(hooks[at]);
      }
    }
  });
}

TEST_CASE("prepare_model: averages half, double and complex gradients, half ones without overflow (FAULTS D11)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] {
      auto module = std::make_shared<torch::nn::Module>();
      module->register_parameter("half", torch::zeros({2}, torch::kBFloat16));
      module->register_parameter("small", torch::zeros({2}, torch::kHalf));
      module->register_parameter("wide", torch::zeros({2}, torch::kDouble));
      module->register_parameter("complex", torch::zeros({2}, torch::kComplexFloat));
      return module;
    });
    worker.samples(1000);
    const double factor = worker.rank() == 0 ? 20000.0 : 60000.0;
    auto parameters = net->parameters();
    torch::autograd::backward(
        {parameters[0] * factor, parameters[1] * factor, parameters[2] * factor},
        {torch::ones({2}, torch::kBFloat16), torch::ones({2}, torch::kHalf), torch::ones({2}, torch::kDouble)});
    torch::real(parameters[3]).sum().mul(factor).backward();
    EXPECT(parameters[0].grad().scalar_type() == torch::kBFloat16);
    EXPECT(torch::allclose(parameters[0].grad().to(torch::kDouble), torch::full({2}, 40000.0, torch::kDouble), 1e-2));
    EXPECT(is_close(parameters[1].grad(), {40000, 40000}));
    EXPECT(is_close(parameters[2].grad(), {40000, 40000}));
    EXPECT(is_close(torch::real(parameters[3].grad()), {40000, 40000}));
  });
}

TEST_CASE("prepare_model: makes sparse gradients dense (FAULTS D20, TRAPS 10)") {
  test::on_both_threads(2, [](auto& worker) {
    auto table =
        ry::prepare_model(worker, [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 1).sparse(true)); });
    worker.samples(1);
    for (int pass = 1; pass <= 2; ++pass) {
      table(torch::tensor({worker.rank(), 3})).sum().backward();
      EXPECT(!table->weight.grad().is_sparse());
      EXPECT(is_close(table->weight.grad().view(-1), {0.5 * pass, 0.5 * pass, 0, 1.0 * pass}));
    }
  });
}

TEST_CASE(
    "prepare_model: refuses to let averaged gradients be differentiated, and takes a penalty by grad() (TRAPS 4)") {
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto net = make_weights(worker);
                              worker.samples(1);
                              net->w.pow(2).sum().backward({}, true, true);
                            }),
             ContainsSubstring("create_graph") && ContainsSubstring("\"w\""));
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    worker.samples(1);
    const auto x = torch::ones({3}, torch::requires_grad()) * (worker.rank() == 0 ? 1.0 : 2.0);
    const auto slope = torch::autograd::grad({((net->w + 1) * x.pow(2)).sum()}, {x}, {}, true, true)[0];
    slope.sum().backward();  // slope = 2 (w + 1) x, so its gradient by w is 2 x: 2 and 4
    EXPECT(is_close(net->w.grad(), {3, 3, 3}));
  });
}

TEST_CASE("prepare_model: goes on after a backward pass that has thrown") {
  test::on_both_threads(1, [](auto& worker) {
    auto net = make_weights(worker);
    bool thrown = false;
    try {
      (net->w.sum() + net->v.sum()).backward();
    } catch (const ry::ConfigError& error) {
      thrown = std::string{error.what()}.find("drives_step") != std::string::npos;
    }
    EXPECT(thrown);  // nobody has stated the samples
    worker.samples(0);
    bool refused = false;
    try {
      net->w.sum().backward();
    } catch (const ry::ConfigError&) {
      refused = true;
    }
    EXPECT(refused);
    worker.samples(1);
    net->w.mutable_grad().reset();
    net->w.sum().backward();
    EXPECT(is_close(net->w.grad(), {1, 1, 1}));
  });
}

TEST_CASE("prepare_model: a rank that has not stated its samples is an error on all") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = make_weights(worker);
                              if (worker.rank() == 0) worker.samples(1);
                              net->w.sum().backward();
                            }),
             ContainsSubstring("worker.samples(n)"));
}

TEST_CASE("prepare_model: gives every rank rank 0's weights and buffers, integers too") {
  test::on_both_threads(3, [](auto& worker) {
    auto norm = torch::nn::BatchNorm1d(4);
    {
      const torch::NoGradGuard no_grad;
      norm->weight.fill_(worker.rank() + 1);
      norm->running_mean.fill_(worker.rank() + 5);
      norm->num_batches_tracked.fill_(worker.rank() + 7);
    }
    auto prepared = ry::prepare_model(worker, norm);
    EXPECT(prepared.get() == norm.get());
    EXPECT(is_close(norm->weight, {1, 1, 1, 1}) && is_close(norm->running_mean, {5, 5, 5, 5}));
    EXPECT(norm->num_batches_tracked.template item<std::int64_t>() == 7);
  });
}

TEST_CASE("prepare_model: takes factories of pointers, holders, Sequentials and values") {
  test::on_processes(2, [](auto& worker) {
    auto pointer = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
    auto value = ry::prepare_model(worker, [] { return Net(); });
    auto holder = ry::prepare_model(worker, [] { return torch::nn::Linear(6, 3); });
    auto chain =
        ry::prepare_model(worker, [] { return torch::nn::Sequential(torch::nn::Linear(6, 3), torch::nn::Tanh()); });
    static_assert(std::is_same_v<decltype(pointer), std::shared_ptr<Net>> &&
                  std::is_same_v<decltype(value), std::shared_ptr<Net>>);
    static_assert(std::is_same_v<decltype(holder), torch::nn::Linear> &&
                  std::is_same_v<decltype(chain), torch::nn::Sequential>);
    worker.samples(1);
    const auto x = torch::full({1, 6}, worker.rank() + 1.0);
    (pointer->forward(x) + value->forward(x) + holder(x) + chain->forward(x)).sum().backward();
    const auto gradients =
        ry::all_gather(worker, torch::cat({pointer->first->weight.grad().view(-1), value->first->bias.grad(),
                                           holder->weight.grad().view(-1), chain->parameters()[0].grad().view(-1)}));
    EXPECT(torch::equal(gradients[0], gradients[1]));
    EXPECT(!torch::equal(pointer->first->weight, value->first->weight));  // a second model starts elsewhere
  });
}

TEST_CASE(
    "prepare_model: weights are a function of the run's seed, and each process draws its own numbers (FAULTS D35, "
    "TRAPS 21)") {
  const auto first_weight = [](std::uint64_t seed) {
    const auto result = test::on_processes(
        2,
        [](auto& worker) {
          auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
          const auto draws = ry::all_gather(worker, torch::rand({4}));
          EXPECT(!torch::equal(draws[0], draws[1]));
          worker.report({{"weight", net->first->weight[0][0].template item<double>()}});
        },
        seed);
    return result.at("weight").number();
  };
  CHECK(first_weight(1) == first_weight(1));
  CHECK(first_weight(1) != first_weight(2));
}

TEST_CASE("prepare_model: with one worker a run draws what a plain program draws (TRAPS 15)") {
  test::on_both_threads(1, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
    const auto next = torch::rand({3});
    torch::manual_seed(worker.seed());
    Net plain;
    EXPECT(torch::equal(plain.first->weight, net->first->weight) && torch::equal(torch::rand({3}), next));
  });
}

TEST_CASE("prepare_model: says how the ranks' models differ (FAULTS A12, A13)") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net =
                                  ry::prepare_model(worker, [&] { return torch::nn::Linear(6, 3 + worker.rank()); });
                            }),
             ContainsSubstring("parameter weight Float[4, 6]\" on rank 1") &&
                 ContainsSubstring("weight Float[3, 6]\" on rank 0"));
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = ry::prepare_model(worker, [&] {
                                return torch::nn::Linear(torch::nn::LinearOptions(6, 3).bias(worker.rank() == 0));
                              });
                            }),
             ContainsSubstring("rank 1 has 1 tensors, rank 0 has 2") && ContainsSubstring("bias"));
  CHECK_THAT(test::error_of(3,
                            [](auto& worker) {
                              auto net = ry::prepare_model(worker, [&] {
                                auto weights = std::make_shared<Weights>();
                                if (worker.rank() == 2) weights->v.set_requires_grad(false);
                                return weights;
                              });
                            }),
             ContainsSubstring("frozen\" on rank 2"));
}

TEST_CASE("prepare_model: refuses one model for several threads and says to use a factory") {
  auto shared = std::make_shared<Net>();
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK_THAT(test::error_of(2, [shared](auto& worker) { auto net = ry::prepare_model(worker, shared); }),
               ContainsSubstring("ranks 0 and 1 are threads of one process") && ContainsSubstring("factory"));
  }
  const Net value;  // copies of a module share its submodules
  CHECK_THAT(test::error_of(2, [value](auto& worker) { auto net = ry::prepare_model(worker, value); }),
             ContainsSubstring("factory"));
  test::on_processes(2, [shared](auto& worker) { auto net = ry::prepare_model(worker, shared); });
}

TEST_CASE("prepare_model: refuses an empty model") {
  CHECK_THAT(test::error_of(1, [](auto& worker) { auto net = ry::prepare_model(worker, torch::nn::Linear(nullptr)); }),
             ContainsSubstring("empty model"));
}

TEST_CASE("prepare_model: a model that outlives its worker is trained alone afterwards") {
  auto net = std::make_shared<Weights>();
  test::on_threads(1, [net](auto& worker) {
    auto prepared = ry::prepare_model(worker, net);
    worker.samples(1);
    prepared->w.sum().backward();
  });
  net->w.sum().backward();
  CHECK(is_close(net->w.grad(), {2, 2, 2}));
}

TEST_CASE("prepare_model: an error of rank 0 in the middle of a pass ends the others") {
  const auto result = test::try_run<ry::Local, ry::Threads>(2, [](auto& worker) {
    auto net = make_weights(worker);
    worker.samples(1);
    if (worker.rank() == 0) throw std::runtime_error("the data has run out");
    net->w.sum().backward();
  });
  CHECK_THAT(result.error(), ContainsSubstring("the data has run out"));
  CHECK(result.failed_rank() == 0);
}

TEST_CASE("prepare_model: backward passes of two threads overlap (FAULTS C8)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = make_weights(worker);
    worker.samples(1);
    struct Meet : torch::autograd::Function<Meet> {
      static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                                   std::int64_t other) {
        context->saved_data["worker"] = other;
        return x.clone();
      }
      static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                     torch::autograd::variable_list gradients) {
        reinterpret_cast<ry::Worker*>(context->saved_data["worker"].toInt())
            ->barrier();  // ends only if both are in here
        return {gradients[0], torch::Tensor{}};
      }
    };
    ry::Worker& base = worker;
    Meet::apply(net->w, reinterpret_cast<std::int64_t>(&base)).sum().backward();
    EXPECT(is_close(net->w.grad(), {1, 1, 1}));
  });
}
