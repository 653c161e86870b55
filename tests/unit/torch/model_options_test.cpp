// SPDX-License-Identifier: MIT
// What ModelOptions and micro-batches change in the exchange of gradients.
#include "railyard/torch/model_options.hpp"

#include "railyard/torch/power_sgd.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"

#include "autograd_functions.hpp"
#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

// With the same weights each time.
torch::nn::Linear make_linear() {
  torch::manual_seed(11);
  torch::nn::Linear net(4, 3);
  net->to(torch::kFloat64);
  return net;
}

std::pair<torch::Tensor, torch::Tensor> samples() {
  const auto data = torch::sin(torch::arange(23 * 4).to(torch::kFloat64) * 0.37).view({23, 4});
  return {data, torch::arange(23) % 3};
}

// Trains two epochs and returns the weights. What a batch is given in must not matter.
torch::Tensor train(ry::Worker& worker, std::size_t micro_batches, const ry::ModelOptions& options = {}) {
  auto net = ry::prepare_model(worker, make_linear, options);
  auto loader = ry::prepare_loader(worker, samples(),
                                   {.global_batch_size = 9, .drives_step = true, .micro_batches = micro_batches});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.3).momentum(0.5));
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::size_t num_batches = 0;
    optimizer.zero_grad();
    for (const auto& batch : loader) {
      torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target).backward();
      ++num_batches;
      if (!batch.completes_step()) continue;
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT(num_batches == loader.num_batches());
  }
  return net->weight.detach().clone();
}

// One step in which rank 1 has a gradient that is no number; returns what is left in .grad, -1 for undefined.
double step_with_nan(ry::Worker& worker, ry::NonFinite policy) {
  auto net = ry::prepare_model(worker, make_linear, {.non_finite = policy});
  worker.samples(1);
  const double factor = worker.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  (net->weight.sum() * factor).backward();
  return net->weight.grad().defined() ? net->weight.grad().sum().item<double>() : -1;
}

}  // namespace

TEST_CASE(
    "Micro-batches: a batch given in parts trains as the whole does, on any number of workers (FAULTS D5, TRAPS 3)") {
  const auto reference = [](auto& worker) { worker.report({{"sum", train(worker, 1).sum().template item<double>()}}); };
  const double whole = test::on_both_threads(1, reference).at("sum").number();
  for (const int workers : {1, 2, 3}) {
    for (const std::size_t parts : {2U, 4U, 9U}) {
      test::on_both_threads(workers, [whole, parts](auto& worker) {
        EXPECT(std::abs(train(worker, parts).sum().template item<double>() - whole) < 1e-10);
        worker.report({{"done", true}});
      });
    }
  }
}

TEST_CASE("Micro-batches: all ranks have equal weights, and one without a sample counts nothing") {
  test::on_both_threads(4, [](auto& worker) {
    const auto own = train(worker, 4);  // of 9 samples: two for four ranks
    auto first = own.clone();
    worker.broadcast(ry::buffer_of(first), 0);
    EXPECT(torch::equal(own, first));
    worker.report({{"done", true}});
  });
}

TEST_CASE("Micro-batches: those of an epoch that was left early are forgotten") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, make_linear);
    auto loader =
        ry::prepare_loader(worker, samples(), {.global_batch_size = 8, .drives_step = true, .micro_batches = 4});
    for (const auto& batch : loader) {
      net->forward(batch.data).sum().backward();
      break;
    }
    std::vector<torch::Tensor> gradients;
    for (const auto& batch : loader) {
      net->forward(batch.data).mean().backward();
      if (!batch.completes_step()) continue;
      gradients.push_back(net->weight.grad().clone());
      break;
    }
    auto plain = make_linear();
    plain->forward(samples().first.slice(0, 0, 8)).mean().backward();
    EXPECT(torch::allclose(gradients.at(0), plain->weight.grad()));
    worker.report({{"done", true}});
  });
}

TEST_CASE("Micro-batches: a loop that drops gradients, clips or steps in each of them is refused, with the remedy") {
  using Meddle = std::function<void(torch::optim::SGD&)>;
  const Meddle drop = [](torch::optim::SGD& optimizer) {
    for (auto& parameter : optimizer.param_groups()[0].params()) parameter.mutable_grad().reset();
  };
  const Meddle fill_with_zeros = [](torch::optim::SGD& optimizer) {
    for (auto& parameter : optimizer.param_groups()[0].params()) {
      if (parameter.grad().defined()) parameter.mutable_grad().zero_();
    }
  };
  const Meddle clip = [](torch::optim::SGD& optimizer) {
    torch::nn::utils::clip_grad_norm_(optimizer.param_groups()[0].params(), 1e-6);
  };
  const Meddle step = [](torch::optim::SGD& optimizer) { optimizer.step(); };
  // Before the backward pass of each micro-batch, and after it.
  for (const bool is_before : {true, false}) {
    for (const auto& [meddle, what] : {std::pair{drop, "gradient"}, std::pair{fill_with_zeros, "gradient"},
                                       std::pair{clip, "gradient"}, std::pair{step, "value"}}) {
      if (is_before && what == std::string{"value"}) continue;  // as the forward pass of a module may change it
      const auto error = test::error_of(2, [is_before, change = meddle](auto& worker) {
        auto net = ry::prepare_model(worker, make_linear);
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        auto loader =
            ry::prepare_loader(worker, samples(), {.global_batch_size = 8, .drives_step = true, .micro_batches = 4});
        for (const auto& batch : loader) {
          if (is_before) change(optimizer);
          net->forward(batch.data).sum().backward();
          if (!is_before) change(optimizer);
        }
      });
      CHECK_THAT(error, ContainsSubstring(what + std::string{" of \""}) &&
                            ContainsSubstring("was changed between two micro-batches of step 1") &&
                            ContainsSubstring("if (!batch.completes_step()) continue;"));
    }
  }
}

TEST_CASE("Micro-batches: weights that a forward pass changes, or that are put back after a pass, are none of that") {
  test::on_both_threads(2, [](auto& worker) {
    auto table = ry::prepare_model(
        worker, [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 3).max_norm(0.1).norm_type(2)); });
    auto net = ry::prepare_model(worker, make_linear);
    for (int step = 0; step < 2; ++step) {
      for (const bool is_last : {false, true}) {
        worker.samples(1, is_last);
        auto weight = net->weight.detach();
        const auto kept = weight.clone();
        weight.add_(is_last ? 0.25 : 0.5);
        (table->forward(torch::tensor({is_last ? 1 : 2})).sum() + net->weight.sum()).backward();
        weight.copy_(kept);
      }
      EXPECT(net->weight.grad().defined());
    }
  });
}

TEST_CASE("Micro-batches: a step whose last backward pass is left out on all ranks leaves nothing to the next") {
  for (const bool drops_gradients : {false, true}) {
    test::on_both_threads(2, [drops_gradients](auto& worker) {
      auto net = ry::prepare_model(worker, make_linear);
      for (int step = 0; step < 3; ++step) {
        for (const bool is_last : {false, true}) {
          worker.samples(2, is_last);
          if (step == 1 && is_last) continue;
          (net->weight.sum() * (step + 1)).backward();
        }
        if (step == 1 && !drops_gradients) continue;
        if (step != 1) EXPECT(torch::allclose(net->weight.grad(), torch::full_like(net->weight, step + 1.0)));
        net->weight.mutable_grad().reset();
      }
    });
  }
}

TEST_CASE("Micro-batches: one that does not reach a parameter is no reason to leave out what was done to it") {
  const auto error = test::error_of(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, make_linear);
    for (const bool is_last : {false, true}) {
      worker.samples(1, is_last);
      if (is_last) net->bias.mutable_grad().reset();
      (is_last ? net->weight.sum() : net->weight.sum() + net->bias.sum()).backward();
    }
  });
  CHECK_THAT(error, ContainsSubstring("the gradient of \"bias\" was changed between two micro-batches"));
}

TEST_CASE("Micro-batches: f16 is refused, in which a weighted gradient may overflow") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = ry::prepare_model(worker, make_linear);
                              net->to(torch::kHalf);
                              worker.samples(1, false);
                            }),
             ContainsSubstring("is of type f16"));
}

TEST_CASE("ModelOptions: a second model with others is refused, and the same is not") {
  for (const ry::AnyCommHook& hook : {ry::AnyCommHook{}, ry::AnyCommHook{ry::F16Hook{}}}) {
    const auto prepare = [hook](auto& worker) {
      const auto net = ry::prepare_model(worker, make_linear, {.comm_hook = hook});
      const auto same = ry::prepare_model(worker, make_linear, {.comm_hook = hook});
      static_cast<void>(ry::prepare_model(worker, make_linear, {.comm_hook = ry::Bf16Hook{}}));
    };
    CHECK_THAT(test::error_of(2, prepare),
               ContainsSubstring(hook ? "F16Hook," : "comm_hook none") && ContainsSubstring("Bf16Hook,"));
  }
}

TEST_CASE("ModelOptions: ranks that have different hooks are told so at once") {
  const auto prepare = [](auto& worker) {
    const auto hook = worker.rank() == 0 ? ry::AnyCommHook{ry::F16Hook{}} : ry::AnyCommHook{ry::Bf16Hook{}};
    static_cast<void>(ry::prepare_model(worker, make_linear, {.comm_hook = hook}));
  };
  CHECK_THAT(test::error_of(2, prepare), ContainsSubstring("different ModelOptions") &&
                                             ContainsSubstring("::F16Hook,") && ContainsSubstring("::Bf16Hook,"));
}

TEST_CASE("prepare_model: ranks whose parameters lie in another order are refused by name") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              static_cast<void>(ry::prepare_model(worker, [&worker] {
                                torch::nn::Conv2d net(torch::nn::Conv2dOptions(3, 4, 2));
                                if (worker.rank() == 0) {
                                  net->weight.set_data(net->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
                                }
                                return net;
                              }));
                            }),
             ContainsSubstring("parameter weight") && ContainsSubstring("strides"));
}

TEST_CASE(
    "prepare_model: names rank, tensor and shape where parameters differ in order, type or name (FAULTS A12, A13)") {
  // Makes a model of what a rank is given, in its order, and returns what two ranks are told.
  using Parameters = std::vector<std::pair<std::string, torch::Tensor>>;
  const auto error_of = [](const Parameters& of_rank_0, const Parameters& of_rank_1) {
    return test::error_of(2, [&](auto& worker) {
      auto net = ry::prepare_model(worker, [&] {
        auto module = std::make_shared<torch::nn::Module>();
        for (const auto& [name, value] : worker.rank() == 0 ? of_rank_0 : of_rank_1) {
          module->register_parameter(name, value.clone());
        }
        return module;
      });
    });
  };
  const auto a = torch::zeros({3});
  const auto b = torch::zeros({2, 2});
  CHECK_THAT(
      error_of({{"a", a}, {"b", b}}, {{"b", b}, {"a", a}}),
      ContainsSubstring("tensor 0 is \"parameter b Float[2, 2]\" on rank 1 and \"parameter a Float[3]\" on rank 0"));
  CHECK_THAT(error_of({{"a", a}, {"b", b}}, {{"a", a}, {"b", b.to(torch::kDouble)}}),
             ContainsSubstring("\"parameter b Double[2, 2]\" on rank 1 and \"parameter b Float[2, 2]\" on rank 0"));
  CHECK_THAT(error_of({{"a", a}, {"b", b}}, {{"a", a}, {"c", b}}),
             ContainsSubstring("\"parameter c Float[2, 2]\" on rank 1 and \"parameter b Float[2, 2]\" on rank 0"));
  CHECK_THAT(error_of({{"a", a}}, {{"a", a}, {"b", b}}),
             ContainsSubstring("rank 1 has 2 tensors, rank 0 has 1") &&
                 ContainsSubstring("\"parameter b Float[2, 2]\" on rank 1 and \"nothing more\" on rank 0"));
}

TEST_CASE("Micro-batches: two passes in one of them are refused, and so is a batch in no part") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = ry::prepare_model(worker, make_linear);
                              worker.samples(1, false);
                              net->weight.sum().backward();
                              worker.samples(1);
                              net->weight.sum().backward();
                              net->weight.sum().backward();
                            }),
             ContainsSubstring("was called twice in step 1"));
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              static_cast<void>(
                                  ry::prepare_loader(worker, samples(), {.global_batch_size = 8, .micro_batches = 0}));
                            }),
             ContainsSubstring("micro_batches is 0"));
}

TEST_CASE("ModelOptions: a NaN on one rank leaves the step out on all ranks, ends it, or stays (FAULTS D9, TRAPS 9)") {
  const auto skip = [](auto& worker) { EXPECT(step_with_nan(worker, ry::NonFinite::skip) == -1); };
  const auto allow = [](auto& worker) { EXPECT(std::isnan(step_with_nan(worker, ry::NonFinite::allow))); };
  const auto stop = [](auto& worker) { step_with_nan(worker, ry::NonFinite::stop); };
  const std::string stopped = "step 1: the gradient of \"weight\", averaged over all ranks, is not finite";
  CHECK(test::error_of(2, skip) == "");
  CHECK(test::error_of(2, allow) == "");
  CHECK_THAT(test::error_of(2, stop), ContainsSubstring(stopped));
  CHECK(test::error_on_processes(2, skip) == "");
  CHECK(test::error_on_processes(2, allow) == "");
  CHECK_THAT(test::error_on_processes(2, stop), ContainsSubstring(stopped));
  test::on_both_threads(1, [](auto& worker) {
    auto net = ry::prepare_model(worker, make_linear);
    worker.samples(1);
    (net->weight.sum() * std::numeric_limits<double>::infinity()).backward();
    EXPECT(!net->weight.grad().defined());
    worker.report({{"done", true}});
  });
}

TEST_CASE("ModelOptions: steps that were left out are counted, and the Result warns of them (FAULTS D9)") {
  const auto check = [](int num_bad, const auto& run) {
    const ry::Result result = run([num_bad](auto& worker) {
      auto net = ry::prepare_model(worker, make_linear);
      for (int step = 0; step < 3; ++step) {
        worker.samples(1);
        const bool is_bad = worker.rank() == 1 && step < num_bad;
        const double factor = is_bad ? std::numeric_limits<double>::quiet_NaN() : 1.0;
        ((net->weight.sum() + net->bias.sum()) * factor).backward();
      }
    });
    REQUIRE(result);
    CHECK(result.step_times().steps == 3);
    CHECK(result.step_times().skipped == static_cast<std::uint64_t>(num_bad));
    REQUIRE(result.warnings().size() == (num_bad == 0 ? 0U : 2U));
    if (num_bad == 0) return;
    CHECK_THAT(result.warnings()[0], ContainsSubstring("step 1: the gradient of \"weight\"") &&
                                         ContainsSubstring("is left out on all ranks"));
    CHECK_THAT(result.warnings()[1], ContainsSubstring(num_bad == 3 ? "all steps, 3 in number, were left out"
                                                                    : std::to_string(num_bad) + " of 3 steps"));
  };
  for (const int num_bad : {0, 1, 2, 3}) {
    check(num_bad, [](auto function) { return test::try_run<ry::SharedMemory, ry::Threads>(2, function); });
    check(num_bad, [](auto function) { return test::try_run<ry::SharedMemory, ry::Processes>(2, function); });
  }
}

TEST_CASE("prepare_model: a rank that leaves out a backward pass is named with its step (FAULTS A10, A15, TRAPS 17)") {
  const auto error = test::error_of(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, make_linear);
    for (int step = 0; step < 3; ++step) {
      worker.samples(1);
      if (step == 1 && worker.rank() == 1) continue;
      net->weight.sum().backward();
    }
  });
  CHECK_THAT(error, ContainsSubstring("rank 1 is in backward pass 1 of its step 3, rank 0 in pass 1 of its step 2"));
}

TEST_CASE("ModelOptions: gradients are averaged as well without the pool, which leaves them where they are") {
  test::on_processes(2, [](auto& worker) {
    const auto with_pool = train(worker, 1);
    worker.report({{"sum", with_pool.sum().template item<double>()}});
  });
  const auto sum = [](bool memory_pool) {
    return test::on_processes(2, [memory_pool](auto& worker) {
      worker.report({{"sum", train(worker, 1, {.memory_pool = memory_pool}).sum().template item<double>()}});
    });
  };
  CHECK(sum(false).at("sum").number() == sum(true).at("sum").number());
}

TEST_CASE("ModelOptions: a hook sums the gradients instead") {
  test::on_both_threads(2, [](auto& worker) {
    const auto exact = train(worker, 1);
    const auto hooked = train(worker, 1, {.comm_hook = ry::ExactHook{}});
    EXPECT(torch::allclose(exact, hooked, 1e-12, 1e-12));
    const auto rounded = train(worker, 1, {.comm_hook = ry::Bf16Hook{}});
    EXPECT(torch::allclose(exact, rounded, 0, 0.05));
    EXPECT(!torch::allclose(exact, rounded, 1e-9, 1e-9));
    worker.report({{"done", true}});
  });
}

TEST_CASE("ModelOptions: what a hook leaves out weighs as much in a step of few samples as in one of many") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker,
                                 [] {
                                   auto module = std::make_shared<torch::nn::Module>();
                                   module->register_parameter("w", torch::zeros({12, 12}, torch::kFloat64));
                                   return module;
                                 },
                                 {.comm_hook = ry::PowerSgdHook{.rank = 1, .start_step = 0}});
    const auto weight = net->parameters()[0];
    const auto gradient = (torch::arange(144).to(torch::kFloat64).square() * 0.37).sin().view({12, 12});  // of rank 12
    auto sum = torch::zeros_like(gradient);
    constexpr int num_steps = 400;
    for (int step = 0; step < num_steps; ++step) {
      weight.mutable_grad().reset();
      const bool has_parts = step % 3 == 0;
      worker.samples(step % 2 == 0 ? 64 : 1, !has_parts);
      (weight * gradient).sum().backward();
      if (has_parts) {
        worker.samples(2);
        (weight * gradient).sum().backward();
      }
      sum += weight.grad();
    }
    EXPECT((sum / num_steps - gradient).norm().template item<double>() < 0.1 * gradient.norm().template item<double>());
  });
}

TEST_CASE("ModelOptions: buffers are left alone, rank 0's, or their mean") {
  for (const auto policy : {ry::BufferSync::leave, ry::BufferSync::broadcast, ry::BufferSync::average}) {
    test::on_both_threads(2, [policy](auto& worker) {
      auto net = ry::prepare_model(
          worker, [] { return torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(2).momentum(1.0)); },
          {.buffers = policy});
      worker.samples(4);
      net->forward(torch::rand({4, 2}) + 10.0 * worker.rank()).sum().backward();
      const double mean = net->running_mean.mean().template item<double>();
      const double low = policy == ry::BufferSync::average ? 5
                         : policy == ry::BufferSync::leave ? 10 * worker.rank()
                                                           : 0;
      EXPECT(mean > low && mean < low + 1);
      worker.report({{"done", true}});
    });
  }
}

namespace {

std::shared_ptr<torch::nn::Module> with_buffer(double value) {
  auto module = std::make_shared<torch::nn::Module>();
  module->register_parameter("w", torch::zeros({2}));
  module->register_buffer("b", torch::full({3}, value));
  return module;
}

void take_step(ry::Worker& worker, const torch::nn::Module& module) {
  worker.samples(1);
  module.parameters()[0].sum().backward();
}

}  // namespace

TEST_CASE("ModelOptions: a buffer that has come into a prepared model is refused, or left alone") {
  const auto train = [](ry::BufferSync policy, bool prepares_again) {
    return [=](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return with_buffer(0); }, {.buffers = policy});
      take_step(worker, *net);
      net->register_buffer("late", torch::full({3}, worker.rank() + 1.0));
      if (prepares_again) net = ry::prepare_model(worker, net, {.buffers = policy});
      take_step(worker, *net);
    };
  };
  for (const auto policy : {ry::BufferSync::broadcast, ry::BufferSync::average}) {
    CHECK_THAT(test::error_of(2, train(policy, false)), ContainsSubstring("the buffer \"late\" has come"));
    CHECK(test::error_of(2, train(policy, true)) == "");
  }
  CHECK(test::error_of(2, train(ry::BufferSync::leave, false)) == "");
}

TEST_CASE("ModelOptions: a model that is gone on one rank alone does not part the ranks' buffers") {
  for (const auto policy : {ry::BufferSync::broadcast, ry::BufferSync::average}) {
    test::on_both_threads(2, [policy](auto& worker) {
      auto first = ry::prepare_model(worker, [] { return with_buffer(0); }, {.buffers = policy});
      take_step(worker, *first);
      if (worker.rank() == 0) first.reset();
      auto second = ry::prepare_model(worker, [] { return with_buffer(0); }, {.buffers = policy});
      for (int turn = 0; turn < 2; ++turn) {
        second->buffers()[0].fill_(worker.rank() + 1.0);
        take_step(worker, *second);
        const double expected = policy == ry::BufferSync::average ? 1.5 : 1.0;
        EXPECT(second->buffers()[0].eq(expected).all().template item<bool>());
        first.reset();
        second = ry::prepare_model(worker, second, {.buffers = policy});
      }
    });
  }
}

namespace {

struct TwoWeights : torch::nn::Module {
  TwoWeights() {
    torch::manual_seed(5);
    first = register_parameter("first", torch::randn({4, 4}, torch::kFloat64));
    second = register_parameter("second", torch::randn({4, 4}, torch::kFloat64));
  }
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& x, bool is_checkpointed, bool is_tied) const {
    const auto layer = [is_checkpointed](const torch::Tensor& in, const torch::Tensor& weight) {
      return is_checkpointed ? test::Again::apply(in, weight) : torch::tanh(torch::matmul(in, weight));
    };
    return layer(layer(x, first), is_tied ? first : second);
  }
  torch::Tensor first, second;
};

}  // namespace

TEST_CASE("prepare_model: checkpointing averages as a plain pass does, tied weights too (FAULTS D27, TRAPS 4)") {
  for (const bool is_tied : {false, true}) {
    test::on_both_threads(2, [is_tied](auto& worker) {
      std::vector<torch::Tensor> gradients;
      for (const bool is_checkpointed : {false, true}) {
        auto net = ry::prepare_model(worker, [] { return std::make_shared<TwoWeights>(); });
        worker.samples(static_cast<std::uint64_t>(worker.rank() + 1));
        auto x = (torch::ones({1, 4}, torch::kFloat64) * (worker.rank() + 1)).set_requires_grad(true);
        net->forward(x, is_checkpointed, is_tied).sum().backward();
        gradients.push_back(is_tied ? net->first.grad() : torch::cat({net->first.grad(), net->second.grad()}));
      }
      EXPECT(torch::allclose(gradients[0], gradients[1], 1e-12, 1e-12));
      worker.report({{"done", true}});
    });
  }
}

TEST_CASE("prepare_model: a module without parameters is prepared, and a loss without any is nobody's business") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::ReLU(); });
    worker.samples(1);
    auto x = torch::ones({3}, torch::requires_grad());
    net->forward(x * (worker.rank() + 1)).sum().backward();
    EXPECT(x.grad()[0].template item<float>() == static_cast<float>(worker.rank() + 1));
    worker.report({{"done", true}});
  });
}
