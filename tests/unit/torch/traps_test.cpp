// SPDX-License-Identifier: MIT
// What goes wrong in a design like this one, and what users of others have met: gradients, steps, and ranks that part.
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "autograd_functions.hpp"
#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <sstream>
#include <vector>

namespace ry = railyard;

namespace traps {  // suites are compiled as one source as well

namespace {

namespace optim = torch::optim;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Two parameters of zeros; a loss is a sum of them with factors, which are then their gradients.
struct Pair : torch::nn::Module {
  explicit Pair(std::int64_t count = 3, torch::Dtype dtype = torch::kDouble) {
    w = register_parameter("w", torch::zeros({count}, dtype));
    v = register_parameter("v", torch::zeros({count}, dtype));
  }
  torch::Tensor w{}, v{};
};

std::shared_ptr<Pair> prepared_pair(ry::Worker& worker, std::int64_t count = 3, torch::Dtype dtype = torch::kDouble) {
  return ry::prepare_model(worker, [=] { return std::make_shared<Pair>(count, dtype); });
}

bool is_all(const torch::Tensor& tensor, double value) {
  return tensor.defined() &&
         torch::allclose(tensor.to(torch::kDouble), torch::full(tensor.sizes(), value, torch::kDouble), 1e-6, 1e-12);
}

}  // namespace

TEST_CASE("TRAPS 1: gradients that the loop fills with zeros and ones that it makes undefined are averaged alike") {
  using Zero = std::function<void(torch::Tensor&)>;
  const std::vector<Zero> ways{[](torch::Tensor& parameter) { parameter.mutable_grad().zero_(); },
                               [](torch::Tensor& parameter) { parameter.mutable_grad().reset(); },
                               [](torch::Tensor& parameter) { optim::SGD({parameter}, 0.1).zero_grad(); }};
  test::on_both_threads(2, [ways](auto& worker) {
    for (const Zero& zero : ways) {
      auto net = prepared_pair(worker);
      for (int step = 1; step <= 4; ++step) {
        worker.samples(1);
        (net->w.sum() * (step + 10.0 * worker.rank())).backward();
        EXPECT(is_all(net->w.grad(), step + 5));
        zero(net->w);
      }
    }
  });
}

TEST_CASE("TRAPS 2: the gradient of an earlier step is not seen where a rank has none") {
  for (const bool in_place : {false, true}) {
    test::on_both_threads(2, [in_place](auto& worker) {
      auto net = prepared_pair(worker, 1000);
      worker.samples(1);
      (net->w.sum() + net->v.sum() * 1000).backward();
      EXPECT(is_all(net->v.grad(), 1000));
      std::vector<torch::Tensor> earlier;  // the memory that is given out next looks like gradients of that step
      for (int i = 0; i < 20; ++i) earlier.push_back(torch::full({1000}, 1000, torch::kDouble));
      earlier.clear();
      for (auto& parameter : net->parameters()) {
        if (in_place) {
          parameter.mutable_grad().zero_();
        } else {
          parameter.mutable_grad().reset();
        }
      }
      worker.samples(1);
      (worker.rank() == 0 ? net->w.sum() + net->v.sum() : net->w.sum()).backward();
      EXPECT(is_all(net->v.grad(), 0.5));
    });
  }
}

TEST_CASE("TRAPS 2: no rank sees what another writes into its gradient after backward()") {
  test::on_both_threads(3, [](auto& worker) {
    auto net = prepared_pair(worker, 40'000, torch::kFloat);
    for (int step = 1; step <= 200; ++step) {
      worker.samples(1);
      // The lazy one of the ranks is another in each step.
      if (step % 3 == worker.rank()) static_cast<void>(torch::ones({20'000}).tanh());
      ((net->w.sum() + net->v.sum()) * (step + worker.rank())).backward();
      EXPECT(is_all(net->w.grad(), step + 1) && is_all(net->v.grad(), step + 1));
      net->w.mutable_grad().fill_(nan);
      net->v.mutable_grad().reset();
      if (step % 2 == 0) net->w.mutable_grad().reset();
      if (step % 2 == 1) net->w.mutable_grad().zero_();
    }
  });
}

TEST_CASE("TRAPS 4: an undefined gradient counts as none, on one rank and on all") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_pair(worker);
    worker.samples(1);
    const auto hidden = test::Forget::apply(net->v);
    (net->w.sum() + (worker.rank() == 0 ? net->v : hidden).sum()).backward();
    EXPECT(is_all(net->v.grad(), 0.5));
    net->zero_grad();
    net->v.mutable_grad().reset();
    (net->w.sum() + test::Forget::apply(net->v).sum()).backward();
    EXPECT(!net->v.grad().defined());
  });
}

TEST_CASE(
    "TRAPS 4: a loss that reaches no parameter exchanges nothing, and on one rank alone is an error with its step") {
  const auto train = [](bool is_on_all) {
    return [is_on_all](auto& worker) {
      auto net = prepared_pair(worker);
      auto x = torch::ones({3}, torch::kDouble).set_requires_grad(true);
      for (int step = 1; step <= 4; ++step) {
        worker.samples(1);
        const bool reaches_none = step == 2 && (is_on_all || worker.rank() == 1);
        (reaches_none ? (x * 2).sum() : (net->w * x.detach()).sum()).backward();
        if (reaches_none) EXPECT(is_all(x.grad(), 2));
        if (!reaches_none) EXPECT(is_all(net->w.grad(), step < 3 ? 1 : step - 1));  // nobody clears it
      }
    };
  };
  CHECK(test::error_of(2, train(true)) == "");
  CHECK_THAT(test::error_of(2, train(false)),
             ContainsSubstring("rank 1 is in backward pass 1 of its step 3, rank 0 in pass 1 of its step 2") &&
                 ContainsSubstring("a loss that uses no prepared parameter"));
}

TEST_CASE("TRAPS 4: a generator and a discriminator train as they do alone") {
  struct Net : torch::nn::Module {
    explicit Net(double first) {
      layer = register_module("layer", torch::nn::Linear(4, 4));
      layer->to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : layer->parameters()) {
        parameter.copy_((torch::arange(parameter.numel()).to(torch::kDouble) + first).sin().view(parameter.sizes()));
      }
    }
    torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(layer(x)); }
    torch::nn::Linear layer{nullptr};
  };
  const auto train = [](Net& generator, Net& discriminator, std::int64_t begin, std::int64_t end, auto&& begin_step) {
    optim::Adam generator_optimizer(generator.parameters(), optim::AdamOptions(0.01));
    optim::Adam discriminator_optimizer(discriminator.parameters(), optim::AdamOptions(0.02));
    for (int step = 0; step < 6; ++step) {
      const auto noise = (torch::arange(24).to(torch::kDouble) * (step + 1.3)).cos().view({6, 4}).slice(0, begin, end);
      const auto real = (torch::arange(24).to(torch::kDouble) * (step + 0.2)).sin().view({6, 4}).slice(0, begin, end);
      begin_step(end - begin);
      discriminator_optimizer.zero_grad();
      discriminator.forward(real).mean().neg().backward();  // two passes, and one that crosses both models
      discriminator.forward(generator.forward(noise).detach()).mean().backward();
      discriminator_optimizer.step();
      generator_optimizer.zero_grad();
      discriminator.forward(generator.forward(noise)).mean().neg().backward();
      generator_optimizer.step();
    }
    return torch::cat({generator.layer->weight.detach(), discriminator.layer->weight.detach()});
  };
  Net lone_generator{1};
  Net lone_discriminator{2};
  const auto expected = train(lone_generator, lone_discriminator, 0, 6, [](std::int64_t) {});
  test::on_both_threads(2, [&](auto& worker) {
    auto generator = ry::prepare_model(worker, [] { return std::make_shared<Net>(1); });
    auto discriminator = ry::prepare_model(worker, [] { return std::make_shared<Net>(2); });
    const auto together = train(*generator, *discriminator, worker.rank() == 0 ? 0 : 2, worker.rank() == 0 ? 2 : 6,
                                [&](std::int64_t samples) { worker.samples(static_cast<std::uint64_t>(samples)); });
    EXPECT(torch::allclose(together, expected, 0, 1e-10));
  });
}

namespace {

// Loads other weights behind the library's back, and trains a step; or prepares the model again in between.
void load_and_step(ry::Worker& worker, torch::nn::Linear& net, optim::SGD& optimizer, bool prepares_again) {
  std::stringstream file;
  torch::save(torch::nn::Linear(3, 2), file);
  torch::load(net, file);
  if (prepares_again) net = ry::prepare_model(worker, net);
  for (const auto& parameter : net->parameters()) ry::broadcast(worker, parameter.detach(), 0);
  const auto before = net->weight.detach().clone();
  optimizer.zero_grad();
  worker.samples(1);
  (net->forward(torch::ones({1, 3})).sum() * (worker.rank() == 0 ? 1.0 : 3.0)).backward();
  optimizer.step();
  EXPECT(is_all(net->weight.detach() - before, -2));
}

}  // namespace

TEST_CASE("TRAPS 5: a model whose storage torch::load() has replaced is trained on, or refused; never left as it is") {
  const auto train = [](bool prepares_again) {
    return [prepares_again](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(3, 2); });
      optim::SGD optimizer(net->parameters(), optim::SGDOptions(1.0));
      load_and_step(worker, net, optimizer, false);  // nothing has been trained yet
      load_and_step(worker, net, optimizer, prepares_again);
    };
  };
  CHECK(test::error_of(2, train(true)) == "");
  // Some releases of LibTorch take the hook away with the storage, which is then found out.
  CHECK_THAT(test::error_of(2, train(false)),
             Catch::Equals("") || ContainsSubstring("call prepare_model(worker, model) again"));
}

namespace {

struct Tied : torch::nn::Module {
  Tied() {
    first = register_parameter("first", torch::zeros({3}, torch::kDouble));
    second = register_parameter("second", first);
  }
  torch::Tensor first{}, second{};
};

}  // namespace

TEST_CASE("TRAPS 7: a tied parameter is averaged once, and a prepared optimizer moves it once") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Tied>(); });
    EXPECT(net->parameters().size() == 2 && net->first.is_same(net->second));
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(1.0));
    worker.samples(1);
    const double factor = worker.rank() == 0 ? 1.0 : 3.0;
    ((net->first.sum() + net->second.sum() * 10) * factor).backward();
    optimizer.step();
    EXPECT(is_all(net->first.detach(), -22));
  });
}

TEST_CASE("TRAPS 8: a forward pass needs no other rank") {
  for (const auto buffers : {ry::BufferSync::leave, ry::BufferSync::broadcast, ry::BufferSync::average}) {
    std::atomic<bool> has_run = false;
    test::on_both_threads(2, [&](auto& worker) {
      auto net = ry::prepare_model(
          worker, [] { return torch::nn::Sequential(torch::nn::BatchNorm1d(2), torch::nn::Linear(2, 2)); },
          {.buffers = buffers});
      if (worker.rank() == 0) {
        net->forward(torch::ones({4, 2}));
        has_run = true;
        has_run.notify_all();
      } else {
        has_run.wait(false);  // comes to the next exchange only when rank 0 has got through
      }
      worker.samples(4);
      net->forward(torch::ones({4, 2})).sum().backward();
    });
  }
}

namespace {

// Trains one step, and then one in which rank 1's gradient is NaN; returns how far the second has moved the weights.
template <class Optimizer>
double moved_by_nan(ry::Worker& worker, Pair& net, Optimizer& optimizer) {
  torch::Tensor before;
  for (const double factor : {1.0, worker.rank() == 1 ? nan : 1.0}) {
    before = net.w.detach().clone();
    optimizer.zero_grad();
    worker.samples(1);
    (net.w.sum() * factor + net.v.sum()).backward();
    optimizer.step();
  }
  EXPECT(before.abs().min().item<double>() > 0.01);
  return (net.w.detach() - before).abs().max().item<double>();
}

}  // namespace

TEST_CASE("TRAPS 9: a step that is left out for a NaN on one rank moves no weight, momentum or not (FAULTS D9)") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_pair(worker);
    optim::Adam plain(net->parameters(), optim::AdamOptions(0.1));
    EXPECT(moved_by_nan(worker, *net, plain) == 0);
    auto other = prepared_pair(worker);
    auto prepared = ry::prepare_optimizer<optim::Adam>(worker, other, optim::AdamOptions(0.1));
    EXPECT(moved_by_nan(worker, *other, prepared) == 0);
  });
}

TEST_CASE("TRAPS 9: where one of the backward passes of a step is not finite, the step is left out as a whole") {
  for (const int bad_pass : {0, 1}) {
    test::on_both_threads(2, [bad_pass](auto& worker) {
      auto net = prepared_pair(worker);
      worker.samples(1);
      for (const int pass : {0, 1}) {
        const double factor = pass == bad_pass && worker.rank() == 1 ? nan : 1.0;
        ((pass == 0 ? net->w : net->v).sum() * factor).backward();
      }
      EXPECT(!net->w.grad().defined() && !net->v.grad().defined());
      worker.samples(1);
      (net->w.sum() + net->v.sum()).backward();
      EXPECT(is_all(net->w.grad(), 1) && is_all(net->v.grad(), 1));
    });
  }
}

TEST_CASE("TRAPS 10: a parameter that goes unused in some steps trains as it does alone") {
  const auto train = [](Pair& net, auto& optimizer, double factor, auto&& begin_step) {
    for (int step = 0; step < 9; ++step) {
      optimizer.zero_grad();
      begin_step();
      auto loss = (net.w * (net.w + step + 1)).sum() * factor;
      if (step % 3 != 1) loss = loss + (net.v * (net.v + step + 2)).sum() * factor;
      loss.backward();
      optimizer.step();
    }
    return torch::cat({net.w.detach(), net.v.detach()});
  };
  const auto options = optim::AdamWOptions(0.1).weight_decay(0.1);
  Pair lone{100};
  struct Undefining : optim::AdamW {  // LibTorch 1.13 fills gradients with zeros, which would move v
    using optim::AdamW::AdamW;
    void zero_grad() {
      for (auto& group : param_groups()) {
        for (auto& parameter : group.params()) parameter.mutable_grad().reset();
      }
    }
  };
  Undefining lone_optimizer(lone.parameters(), options);
  const auto expected = train(lone, lone_optimizer, 2, [] {});
  test::on_both_threads(2, [&](auto& worker) {
    auto net = prepared_pair(worker, 100);
    auto optimizer = ry::prepare_optimizer<optim::AdamW>(worker, net, options);
    const auto together = train(*net, optimizer, worker.rank() == 0 ? 1 : 3, [&] { worker.samples(1); });
    EXPECT(torch::allclose(together, expected, 0, 1e-10));
  });
}

TEST_CASE(
    "TRAPS 12: an accumulator is held without a graph, whatever pointer LibTorch gives, and its owners are counted") {
  namespace impl = torch::autograd::impl;
  ry::detail::GradientSlot slot{.name = "w", .parameter = torch::zeros({3}, torch::requires_grad())};
  slot.accumulator = impl::grad_accumulator(slot.parameter);
  CHECK(impl::try_get_grad_accumulator(slot.parameter) == slot.accumulator);
  CHECK(slot.is_ended());  // nobody else has it
  {
    const auto loss = slot.parameter.sum();
    CHECK_FALSE(slot.is_ended());
  }
  {
    const auto of_model = slot.parameter;
    CHECK_FALSE(slot.is_ended());
  }
  slot.parameter.sum().backward();
  CHECK(slot.is_ended());
  slot.accumulator = {};
  CHECK(impl::try_get_grad_accumulator(slot.parameter) == nullptr);
  CHECK(slot.is_ended());
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_pair(worker);
    for (int step = 1; step <= 2; ++step) {  // no graph lives from one step to the next
      net->w.mutable_grad().reset();
      worker.samples(1);
      (net->w.sum() * step * (1 + 2 * worker.rank())).backward();
      EXPECT(is_all(net->w.grad(), 2 * step));
    }
  });
}

TEST_CASE("TRAPS 15: threads that build models at once do not mix their random numbers") {
  torch::manual_seed(3);
  const auto expected = torch::randn({100'000});
  std::atomic<int> num_drawing = 0;
  const auto draw = [&](auto& worker) {
    for (int turn = 0; turn < 20; ++turn) {
      auto net = ry::prepare_model(worker, [&] {
        auto drawn = std::make_shared<torch::nn::Module>();
        EXPECT(++num_drawing == 1);
        const auto numbers = torch::randn({100'000});
        --num_drawing;
        if (turn == 0) EXPECT(torch::equal(numbers, expected));
        drawn->register_parameter("numbers", numbers);
        return drawn;
      });
    }
  };
  test::on_both_threads(4, draw);
  test::on_processes(2, draw);
}

TEST_CASE("FAULTS A1, A2, TRAPS 17: a rank that leaves its loop early is named with its step, and nobody hangs") {
  const auto train = [](auto& worker) {
    auto net = prepared_pair(worker);
    auto loader = ry::prepare_loader(worker, {torch::ones({40}), torch::ones({40})},
                                     {.global_batch_size = 4, .drives_step = true});
    int step = 0;
    for (const auto& batch : loader) {
      if (++step == 4 && worker.rank() == 1) break;
      (net->w.sum() * batch.data.sum()).backward();
    }
  };
  CHECK_THAT(test::error_of(2, train), ContainsSubstring("rank 1 of 2") && ContainsSubstring("returned") &&
                                           ContainsSubstring("exchanges gradients in step 4"));
  const auto train_on = [train](auto& worker) {
    train(worker);
    auto net = prepared_pair(worker);
  };
  CHECK_THAT(test::error_of(2, train_on), ContainsSubstring("rank 1 called all_gather(") &&
                                              ContainsSubstring("rank 0 the exchange of gradients") &&
                                              ContainsSubstring("(step 3"));
}

namespace {

// The data of a rank, which is divided already, and unevenly: rank 0 has three samples and each further one two more.
torch::Tensor own_share(int rank) { return torch::arange(3 + 2 * rank).to(torch::kDouble) + 10 * rank; }

}  // namespace

TEST_CASE("FAULTS A3, TRAPS 18: ranks with shares of different sizes, whose own loops just end, are an error") {
  const auto error = test::error_of(3, [](auto& worker) {
    auto net = prepared_pair(worker);
    const auto share = own_share(worker.rank());
    for (std::int64_t at = 0; at < share.numel(); ++at) {
      worker.samples(1);
      (net->w.sum() * share[at]).backward();
    }
  });
  CHECK_THAT(error, ContainsSubstring("rank 0 of 3") && ContainsSubstring("returned from the training function while"));
}

TEST_CASE("FAULTS A3, TRAPS 18: a rank whose share has ended keeps step at weight zero, and the mean is that of all") {
  test::on_both_threads(3, [](auto& worker) {
    auto net = prepared_pair(worker);
    const auto share = own_share(worker.rank());
    for (std::int64_t at = 0;; ++at) {
      const bool has_more = at < share.numel();
      double sums[2] = {has_more ? share[at].template item<double>() : 0, has_more ? 1.0 : 0};
      worker.samples(has_more ? 1 : 0);
      const double mine = has_more ? sums[0] : nan;
      worker.all_reduce(ry::buffer_of(sums), ry::ReduceOp::sum);
      if (sums[1] == 0) break;
      net->w.mutable_grad().reset();
      (net->w.sum() * mine).backward();
      EXPECT(is_all(net->w.grad(), sums[0] / sums[1]));
    }
  });
}

TEST_CASE(
    "FAULTS A19: where a gradient has overflowed on one rank, all take part in the norm, and leave the step out") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_pair(worker, 100);
    auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(0.1));
    worker.samples(1);
    const double factor = worker.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
    (net->w.sum() * factor + net->v.sum()).backward();
    EXPECT(ry::clip_grad_norm_(optimizer, 1.0) == 0);
    optimizer.step();
    EXPECT(is_all(net->w.detach(), 0) && is_all(net->v.detach(), 0));
    worker.samples(1);
    net->w.sum().backward();
    EXPECT(std::abs(ry::clip_grad_norm_(optimizer, 1.0) - 10) < 1e-9);
  });
}

TEST_CASE("FAULTS D5: weighted with tokens, micro-batches of all ranks have one denominator") {
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_pair(worker);
    // Tokens of each micro-batch, by rank, and what their mean gradient is.
    const std::vector<std::vector<std::uint64_t>> tokens{{7, 1, 0}, {2, 30, 4}};
    double sum = 0;
    double count = 0;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::size_t i = 0; i < 3; ++i) {
        sum += static_cast<double>(tokens[rank][i] * (i + 1 + 10 * rank));
        count += static_cast<double>(tokens[rank][i]);
      }
    }
    const auto rank = static_cast<std::size_t>(worker.rank());
    for (std::size_t i = 0; i < 3; ++i) {
      worker.samples(tokens[rank][i], i == 2);
      (net->w.sum() * (tokens[rank][i] == 0 ? nan : static_cast<double>(i + 1 + 10 * rank))).backward();
    }
    EXPECT(is_all(net->w.grad(), sum / count));
  });
}

TEST_CASE("FAULTS D5: a gradient that is there before micro-batches counts as it is, on all parameters") {
  for (const bool is_in_last : {true, false}) {
    test::on_both_threads(2, [is_in_last](auto& worker) {
      auto net = prepared_pair(worker);
      for (const double earlier : {5.0, 0.0}) {
        for (torch::Tensor& parameter : net->parameters())
          parameter.mutable_grad() = torch::full_like(parameter, earlier);
        const double factor = worker.rank() == 0 ? 1.0 : 3.0;
        worker.samples(2, false);
        (net->w.sum() * factor).backward();
        worker.samples(1);
        ((is_in_last ? net->w : net->v).sum() * factor * 10).backward();
        EXPECT(is_all(net->w.grad(), earlier + (is_in_last ? (2 + 6 + 10 + 30) / 6.0 : (2 + 6) / 6.0)));
        EXPECT(is_all(net->v.grad(), earlier + (is_in_last ? 0.0 : (10 + 30) / 6.0)));
      }
    });
  }
}

TEST_CASE("FAULTS D7: a pass exchanges or not by what is said before backward(), not before the forward pass") {
  std::atomic<int> num_accumulated = 0;
  test::on_both_threads(2, [&](auto& worker) {
    num_accumulated = 0;
    auto net = prepared_pair(worker);
    worker.barrier();
    const double factor = worker.rank() == 0 ? 1.0 : 3.0;
    const auto first = net->w.sum() * factor;
    const auto last = net->w.sum() * factor * 10;
    worker.samples(1, false);
    // Rank 1 begins only when rank 0 is through: a pass that exchanged would wait for it.
    if (worker.rank() == 1) num_accumulated.wait(0);
    first.backward();
    EXPECT(is_all(net->w.grad(), factor));
    ++num_accumulated;
    num_accumulated.notify_all();
    worker.samples(1);
    last.backward();
    EXPECT(is_all(net->w.grad(), 11));
  });
}

TEST_CASE("FAULTS D12: half gradients at the end of their range are averaged without underflow") {
  test::on_both_threads(4, [](auto& worker) {
    const double smallest = std::ldexp(1.0, -24);
    auto net = prepared_pair(worker, 3, torch::kHalf);
    worker.samples(1);
    torch::autograd::backward({net->w}, {torch::full({3}, smallest).to(torch::kHalf)});
    EXPECT((net->w.grad().to(torch::kDouble) == smallest).all().template item<bool>());
  });
}

TEST_CASE("FAULTS D13: the norm of half gradients does not overflow") {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    test::on_both_threads(2, [dtype](auto& worker) {
      auto net = prepared_pair(worker, 4096, dtype);
      auto optimizer = ry::prepare_optimizer<optim::SGD>(worker, net, optim::SGDOptions(1.0));
      worker.samples(1);
      torch::autograd::backward({net->w}, {torch::full({4096}, 2048.0).to(dtype)});
      EXPECT(std::abs(ry::clip_grad_norm_(optimizer, 64.0) / (2048.0 * 64) - 1) < 1e-2);
      optimizer.step();
      EXPECT(torch::allclose(net->w.detach().to(torch::kDouble), torch::full({4096}, -1.0, torch::kDouble), 1e-2));
    });
  }
}

}  // namespace traps
