// SPDX-License-Identifier: MIT
#include "railyard/torch/sync_batch_norm.hpp"

#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_model.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>
#include <torch/version.h>

#include <memory>
#include <string>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

struct Typed : torch::nn::Module {
  Typed() {
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    block = register_module("block", torch::nn::Sequential(torch::nn::Conv2d(1, 4, 1), torch::nn::BatchNorm2d(4)));
  }
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential block{nullptr};
};

struct Block : torch::nn::Module {
  Block() : inner(register_module("inner", torch::nn::Sequential(torch::nn::BatchNorm1d(4)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return inner->forward(x); }
  torch::nn::Sequential inner;
};

struct Mixed : torch::nn::Module {
  Mixed() {
    block =
        register_module("block", torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), Block()));
    norm = register_module("norm", ry::nn::BatchNorm1d(4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(block->forward(x)); }
  torch::nn::Sequential block{nullptr};
  ry::nn::BatchNorm1d norm{nullptr};
};

struct Twice : torch::nn::Module {
  Twice() {
    torch::nn::BatchNorm1d norm(4);
    one = register_module("one", torch::nn::Sequential(norm));
    two = register_module("two", torch::nn::Sequential(torch::nn::Tanh(), norm));
  }
  torch::nn::Sequential one{nullptr}, two{nullptr};
};

#if TORCH_VERSION_MAJOR >= 2  // LibTorch 1.13 does not export what a derived class needs
struct Derived : torch::nn::BatchNorm1dImpl {
  using torch::nn::BatchNorm1dImpl::BatchNorm1dImpl;
  torch::Tensor forward(const torch::Tensor& x) { return torch::nn::BatchNorm1dImpl::forward(x) * 2; }
};
#endif

// Says whether a model that was joined normalises over the batches of both ranks.
template <class Model>
bool is_joined(ry::Worker& worker, Model& model) {
  model->train();
  const auto x = torch::sin(torch::arange(12).view({4, 3}) * 0.7 + 5.0 * worker.rank()).to(torch::kFloat);
  const auto sum = model->forward(x).detach().sum(0);
  const bool is_own_mean = sum.abs().max().template item<double>() < 1e-4;
  ry::all_reduce(worker, sum);
  return !is_own_mean && sum.abs().max().template item<double>() < 1e-4;
}

// What sync_batch_norm() says to a model that it cannot join, on one worker.
template <class Make>
std::string refusal(Make make) {
  return test::error_of(1, [make](ry::Worker& worker) {
    auto model = make();
    ry::sync_batch_norm(worker, model);
  });
}

}  // namespace

TEST_CASE("sync_batch_norm: joins members of our type and what lies in a Sequential, after prepare_model") {
  test::on_threads(2, [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [] { return std::make_shared<Mixed>(); });
    const auto weight = net->block->ptr(1)->named_parameters()["weight"];
    const auto names = net->named_buffers().keys();
    net->block->ptr(1)->eval();
    EXPECT(ry::sync_batch_norm(worker, net) == 3);
    EXPECT(weight.is_same(net->block->ptr(1)->named_parameters()["weight"]));  // what optimizers know stays
    EXPECT(names == net->named_buffers().keys());
    EXPECT(!net->block->ptr(1)->is_training());
    EXPECT(is_joined(worker, net));
    EXPECT(ry::sync_batch_norm(worker, net) == 3);  // once more does no harm
    worker.samples(4);
    net->forward(torch::ones({4, 3}) * (1 + worker.rank())).square().sum().backward();
    const auto gradients = ry::all_gather(worker, weight.grad());
    EXPECT(torch::equal(gradients[0], gradients[1]));
  });
}

TEST_CASE("sync_batch_norm: joins a model inside the factory") {
  test::on_processes(2, [](ry::Worker& worker) {
    auto net = ry::prepare_model(worker, [&worker] {
      auto made = std::make_shared<Mixed>();
      ry::sync_batch_norm(worker, *made);
      return made;
    });
    EXPECT(is_joined(worker, net));
  });
}

TEST_CASE("sync_batch_norm: keeps what a replaced BatchNorm has learnt, and its options") {
  test::on_threads(1, [](ry::Worker& worker) {
    torch::nn::Sequential net(torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(2).eps(0.5).momentum(0.3)));
    net->to(torch::kDouble);
    net->forward(torch::arange(16).view({2, 2, 2, 2}).to(torch::kDouble));
    const auto mean = net->named_buffers()["0.running_mean"].clone();
    ry::sync_batch_norm(worker, net);
    const auto& norm = net->at<ry::nn::BatchNorm2dImpl>(0);
    EXPECT(torch::equal(norm.running_mean, mean) && norm.num_batches_tracked.item<std::int64_t>() == 1);
    EXPECT(norm.options.eps() == 0.5 && norm.options.momentum().value() == 0.3);
    EXPECT(torch::equal(net->named_buffers()["0.running_mean"], norm.running_mean));
  });
}

TEST_CASE("sync_batch_norm: a BatchNorm that two Sequentials share stays one") {
  test::on_threads(1, [](ry::Worker& worker) {
    Twice net;
    EXPECT(ry::sync_batch_norm(worker, net) == 1);
    EXPECT(net.one->ptr(0) == net.two->ptr(1) && net.one->ptr(0)->as<ry::nn::BatchNorm1dImpl>() != nullptr);
  });
}

TEST_CASE("sync_batch_norm: refuses every BatchNorm that is called by its own type, and changes nothing") {
  test::on_threads(1, [](ry::Worker& worker) {
    Typed net;
    std::string error;
    try {
      ry::sync_batch_norm(worker, net);
    } catch (const ry::ConfigError& refused) {
      error = refused.what();
    }
    const std::string wanted =
        "norm is a torch::nn::BatchNorm2d that its parent calls by its own type: declare and build it "
        "as ry::nn::BatchNorm2d";
    EXPECT(error.find(wanted) != std::string::npos);
    EXPECT(error.find("block") == std::string::npos);
    EXPECT(net.block->ptr(1)->as<torch::nn::BatchNorm2d>() != nullptr);
  });
}

TEST_CASE("sync_batch_norm: refuses what it does not see through") {
  CHECK_THAT(refusal([] { return torch::nn::BatchNorm1d(4); }), ContainsSubstring("the model itself is a"));
  CHECK_THAT(refusal([] { return torch::nn::ModuleList(torch::nn::BatchNorm3d(4)); }),
             ContainsSubstring("0 is a torch::nn::BatchNorm3d that its parent calls by its own type"));
#if TORCH_VERSION_MAJOR >= 2
  CHECK_THAT(refusal([] { return torch::nn::Sequential(Derived(4)); }), ContainsSubstring("0 is of a class derived"));
#endif
  CHECK_THAT(refusal([] {
               struct Both : torch::nn::Module {
                 Both() { block = register_module("block", torch::nn::Sequential(kept)); }
                 torch::nn::BatchNorm1d kept{4};  // registered nowhere
                 torch::nn::Sequential block{nullptr};
               };
               return std::make_shared<Both>();
             }),
             ContainsSubstring("block.0 is in a Sequential and held by something else as well"));
  CHECK_THAT(refusal([] { return torch::nn::BatchNorm1d{nullptr}; }), ContainsSubstring("an empty model"));
  CHECK(refusal([] { return torch::nn::Sequential(torch::nn::Linear(3, 4)); }).empty());
}
