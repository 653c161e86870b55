// SPDX-License-Identifier: MIT
// Gradients that lie in memory of the user's own, and weights whose memory the user replaces while they are trained.
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace user_memory {  // suites are compiled as one source as well

namespace {

// Two parameters of zeros; a loss is a sum of them with factors, which are then their gradients.
struct Pair : torch::nn::Module {
  torch::Tensor w = register_parameter("w", torch::zeros({2, 3}, torch::kDouble));
  torch::Tensor v = register_parameter("v", torch::zeros({4}, torch::kDouble));
};

std::shared_ptr<Pair> prepared_pair(ry::Worker& worker, ry::Overlap overlap = ry::Overlap::automatic,
                                    bool compare_weights = true) {
  return ry::prepare_model(
      worker, [] { return std::make_shared<Pair>(); },
      {.overlap = overlap, .bucket_bytes = 8, .first_bucket_bytes = 8, .compare_weights = compare_weights});
}

// Lets the gradients of a model be parts of one tensor.
torch::Tensor flatten_gradients(const Pair& net, double value) {
  const auto flat = torch::full({10}, value, torch::kDouble);
  net.w.mutable_grad() = flat.slice(0, 0, 6).view_as(net.w);
  net.v.mutable_grad() = flat.slice(0, 6, 10).view_as(net.v);
  return flat;
}

bool is_all(const torch::Tensor& tensor, double value) {
  return tensor.defined() && torch::allclose(tensor, torch::full_like(tensor, value), 0, 1e-12);
}

double factor_of(const ry::Worker& worker) { return worker.rank() == 0 ? 1.0 : 3.0; }

void step(ry::Worker& worker, const Pair& net) {
  worker.samples(1);
  ((net.w.sum() + net.v.sum()) * factor_of(worker)).backward();
}

}  // namespace

}  // namespace user_memory

TEST_CASE("prepare_model: gradients that are parts of a flat tensor of the user's are averaged there") {
  using namespace user_memory;
  for (const auto overlap : {ry::Overlap::off, ry::Overlap::on}) {
    test::on_both_threads(2, [overlap](auto& worker) {
      auto net = prepared_pair(worker, overlap);
      const auto flat = flatten_gradients(*net, 0);
      for (int pass = 0; pass < 4; ++pass) {
        flat.zero_();
        step(worker, *net);
        EXPECT(is_all(flat, 2));
        EXPECT(net->w.grad().storage().is_alias_of(flat.storage()));
        EXPECT(net->v.grad().storage().is_alias_of(flat.storage()));
      }
      // Without a sample on rank 1, and where rank 1 has not used a parameter.
      flat.fill_(5);
      worker.samples(worker.rank() == 0 ? 2 : 0);
      ((net->w.sum() + net->v.sum()) * factor_of(worker)).backward();
      EXPECT(is_all(flat, 6));
      flat.zero_();
      worker.samples(1);
      ((worker.rank() == 0 ? net->w.sum() + net->v.sum() : net->v.sum()) * factor_of(worker)).backward();
      EXPECT(is_all(flat.slice(0, 0, 6), 0.5) && is_all(flat.slice(0, 6, 10), 2));
    });
  }
}

TEST_CASE("Micro-batches: gradients that are parts of a flat tensor of the user's are averaged there") {
  using namespace user_memory;
  for (const auto overlap : {ry::Overlap::off, ry::Overlap::on}) {
    test::on_both_threads(2, [overlap](auto& worker) {
      auto net = prepared_pair(worker, overlap);
      const auto flat = flatten_gradients(*net, 0);
      for (int pass = 0; pass < 4; ++pass) {
        flat.fill_(1);
        for (const bool is_last : {false, true}) {
          worker.samples(is_last ? 1 : 2, is_last);
          ((net->w.sum() + net->v.sum()) * factor_of(worker)).backward();
        }
        EXPECT(is_all(flat, 3));
        EXPECT(net->w.grad().storage().is_alias_of(flat.storage()));
        // Rank 1 has no sample in any of them.
        flat.fill_(1);
        for (const bool is_last : {false, true}) {
          worker.samples(worker.rank() == 0 ? 1 : 0, is_last);
          ((net->w.sum() + net->v.sum()) * factor_of(worker)).backward();
        }
        EXPECT(is_all(flat, 2));
        EXPECT(net->w.grad().storage().is_alias_of(flat.storage()));
      }
    });
  }
}

TEST_CASE("Micro-batches: a gradient that is there before counts as it is where one rank does not reach it") {
  using namespace user_memory;
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_pair(worker);
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::full_like(parameter, 5);
    for (const bool is_last : {false, true}) {
      worker.samples(2, is_last);
      (worker.rank() == 0 ? net->w.sum() + net->v.sum() : net->w.sum()).backward();
    }
    EXPECT(is_all(net->w.grad(), 6));
    EXPECT(is_all(net->v.grad(), 5.5));
  });
}

TEST_CASE("Micro-batches: a gradient that is there before stays as it is where its new ones are undefined") {
  using namespace user_memory;
  struct Nothing : torch::autograd::Function<Nothing> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.sum(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
      return {torch::Tensor{}};
    }
  };
  test::on_both_threads(2, [](auto& worker) {
    auto net = prepared_pair(worker);
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::full_like(parameter, 5);
    for (const bool is_last : {false, true}) {
      worker.samples(2, is_last);
      (net->w.sum() + Nothing::apply(net->v)).backward();
    }
    EXPECT(is_all(net->w.grad(), 6));
    EXPECT(is_all(net->v.grad(), 5));
  });
}

TEST_CASE("prepare_model: weights whose memory was replaced on one rank while they are trained are named (TRAPS 5)") {
  using namespace user_memory;
  const auto error_of = [](int rank, auto replace) {
    return test::error_of(3, [=](auto& worker) {
      auto net = prepared_pair(worker);
      for (int pass = 0; pass < 4; ++pass) {
        step(worker, *net);
        worker.end_step();
        if (pass == 1 && worker.rank() == rank) replace(*net);
      }
    });
  };
  for (const int rank : {0, 2}) {
    INFO("replaced on rank " << rank);
    CHECK_THAT(error_of(rank,
                        [](Pair& net) {
                          auto other = net.v.detach().clone();
                          other[1] = 7;  // none of those that are looked at in the first step alone
                          net.v.set_data(other);
                        }),
               ContainsSubstring("\"v\"") && ContainsSubstring(rank == 0 ? "rank 1" : "rank 2") &&
                   ContainsSubstring("replaced") && ContainsSubstring("call prepare_model(worker, model) again"));
  }
  // Twice: the second time LibTorch may find the memory that the first time has freed.
  CHECK_THAT(error_of(1,
                      [](Pair& net) {
                        net.w.set_data(net.w.detach() + 1);
                        net.w.set_data(net.w.detach() + 1);
                      }),
             ContainsSubstring("\"w\""));
  // The same values are nobody's business.
  CHECK(error_of(1, [](Pair& net) { net.w.set_data(net.w.detach().clone()); }) == "");
}

TEST_CASE("prepare_model: of weights that nobody has replaced the ranks compare none where another was (TRAPS 5)") {
  using namespace user_memory;
  CHECK(test::error_of(3, [](auto& worker) {
          auto net = prepared_pair(worker, ry::Overlap::automatic, /*compare_weights=*/false);
          for (int pass = 0; pass < 3; ++pass) {
            step(worker, *net);
            worker.end_step();
            if (pass != 1 || worker.rank() != 1) continue;
            const torch::NoGradGuard no_grad;
            net->v[1] = 7;
            net->w.set_data(net->w.detach().clone());
          }
        }) == "");
}

TEST_CASE("prepare_optimizer: that weights go back to each rank at its end is no replacement") {
  using namespace user_memory;
  const auto train = [](auto& worker) {
    auto net = prepared_pair(worker, ry::Overlap::automatic, /*compare_weights=*/false);
    {
      auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(1.0));
      EXPECT(optimizer.is_sharded());
      step(worker, *net);
      optimizer.step();
      worker.end_step();
    }
    if (worker.rank() == 1) {
      const torch::NoGradGuard no_grad;
      net->v[1] = 7;  // would be named if all were compared
    }
    step(worker, *net);
    worker.end_step();
  };
  CHECK(test::try_run<ry::SharedMemory, ry::Threads>(2, train).error() == "");
}

TEST_CASE("prepare_model: weights that all ranks replace alike while they are trained are trained on (TRAPS 5)") {
  using namespace user_memory;
  for (const auto overlap : {ry::Overlap::off, ry::Overlap::on}) {
    test::on_both_threads(3, [overlap](auto& worker) {
      auto net = prepared_pair(worker, overlap);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1.0));
      for (int pass = 0; pass < 5; ++pass) {
        optimizer.zero_grad();
        if (pass > 0) net->w.set_data(torch::full_like(net->w, pass).detach());
        step(worker, *net);
        optimizer.step();
        EXPECT(is_all(net->w.detach(), pass - 7.0 / 3));
      }
    });
  }
}

TEST_CASE("prepare_model: a weight that gets another shape is refused by name, and is trained when prepared again") {
  using namespace user_memory;
  const auto train = [](bool has_begun, bool prepares_again) {
    return [=](auto& worker) {
      auto net = prepared_pair(worker);
      if (has_begun) step(worker, *net);
      net->v.set_data(torch::zeros({7}, torch::kDouble));
      if (prepares_again) net = ry::prepare_model(worker, net);
      for (int pass = 0; pass < 3; ++pass) {
        net->zero_grad();
        step(worker, *net);
        EXPECT(is_all(net->v.grad(), 2) && net->v.grad().size(0) == 7);
      }
    };
  };
  for (const bool has_begun : {false, true}) {
    CHECK_THAT(test::error_of(2, train(has_begun, false)),
               ContainsSubstring("\"v\"") && ContainsSubstring("Double[7]") && ContainsSubstring("[4]") &&
                   ContainsSubstring("keep the shape") && ContainsSubstring("call prepare_model(worker, model) again"));
    CHECK(test::error_of(2, train(has_begun, true)) == "");
  }
  // A graph of before keeps LibTorch from forgetting the shape.
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              auto net = prepared_pair(worker);
                              const auto loss = net->v.sum();
                              net->v.set_data(torch::zeros({7}, torch::kDouble));
                              net = ry::prepare_model(worker, net);
                            }),
             ContainsSubstring("\"v\" has got another shape") && ContainsSubstring("let that go out of scope first"));
}

TEST_CASE("prepare_model: a model that is converted and prepared again is trained on, with the pool and without") {
  using namespace user_memory;
  const auto train = [](bool memory_pool, ry::Overlap overlap, std::uint64_t parts) {
    return [=](auto& worker) {
      const ry::ModelOptions options{
          .memory_pool = memory_pool, .overlap = overlap, .bucket_bytes = 8, .first_bucket_bytes = 8};
      auto net = ry::prepare_model(
          worker, [] { return std::make_shared<Pair>(); }, options);
      for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16, torch::kDouble}) {
        if (type != net->w.scalar_type()) {
          net->to(type);  // what there is of gradients stays in the type that it had
          net = ry::prepare_model(worker, net, options);
        }
        for (int pass = 0; pass < 4; ++pass) {
          if (pass > 0) {
            for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
          } else {
            net->zero_grad();
          }
          for (std::uint64_t part = 1; part <= parts; ++part) {
            worker.samples(1, part == parts);
            ((net->w.sum() + net->v.sum()) * factor_of(worker)).backward();
          }
          EXPECT(is_all(net->w.grad().to(torch::kDouble), 2) && is_all(net->v.grad().to(torch::kDouble), 2));
        }
      }
    };
  };
  for (const auto overlap : {ry::Overlap::off, ry::Overlap::on}) {
    for (const std::uint64_t parts : {std::uint64_t{1}, std::uint64_t{2}}) {
      CHECK(test::error_of(2, train(false, overlap, parts)) == "");
      CHECK(test::error_on_processes(2, train(false, overlap, parts)) == "");
      CHECK(test::error_on_processes(2, train(true, overlap, parts)) == "");
    }
  }
}
