// SPDX-License-Identifier: MIT
#include "railyard/torch/detail/bucket_schedule.hpp"
#include "railyard/torch/detail/communication_thread.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/sync_batch_norm.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <limits>

using Catch::ContainsSubstring;

namespace overlap {

namespace ry = railyard;

constexpr std::size_t all = std::size_t{1} << 30U;

// The same weights every time, where models that are prepared one after another would have different ones.
void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters())
    parameter.copy_(torch::arange(parameter.numel()).sin().view_as(parameter));
}

// Several layers of odd sizes, of which some can be left out.
struct Net : torch::nn::Module {
  Net() {
    for (const std::int64_t width : {67, 31, 129, 5}) {
      layers.push_back(register_module("layer" + std::to_string(layers.size()), torch::nn::Linear(in, width)));
      in = width;
    }
    spare = register_module("spare", torch::nn::Linear(5, 5));
    fill(*this);
  }
  torch::Tensor forward(torch::Tensor x, bool uses_spare) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return uses_spare ? spare(x) : x;
  }
  std::int64_t in = 13;
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear spare{nullptr};
};

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().reshape({-1}));
  return torch::cat(parts);
}

// What was seen of a few steps in which ranks use different layers, and have different numbers of samples.
struct Seen {
  torch::Tensor weights{};
  std::vector<torch::Tensor> gradients{};  // of the last step
};

Seen train(ry::Worker& worker, const ry::ModelOptions& options) {
  auto net = ry::prepare_model(
      worker, [] { return std::make_shared<Net>(); }, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const int rank = worker.rank();
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    const int num_parts = step == 6 ? 3 : 1;
    for (int part = 0; part < num_parts; ++part) {
      const std::int64_t samples = step == 7 && rank == 0 ? 0 : 3 + rank + part;
      worker.samples(static_cast<std::uint64_t>(samples), part + 1 == num_parts);
      const auto x = torch::sin(torch::arange(samples * 13 + 13).to(torch::kFloat) * (0.1 * (rank + 1) + step))
                         .narrow(0, 0, std::max<std::int64_t>(samples, 1) * 13)
                         .view({-1, 13});
      auto loss = net->forward(x, step == 4 || (step == 5 && rank == 1)).square().mean();
      if (step == 3 && rank == 1) loss = loss * std::numeric_limits<float>::quiet_NaN();  // left out on all
      loss.backward();
    }
    optimizer.step();
  }
  Seen seen{.weights = flat(net->parameters())};
  for (const auto& parameter : net->parameters()) seen.gradients.push_back(parameter.grad());
  return seen;
}

bool is_equal(const Seen& one, const Seen& other) {
  if (!torch::equal(one.weights, other.weights)) return false;
  for (std::size_t i = 0; i < one.gradients.size(); ++i) {
    if (one.gradients[i].defined() != other.gradients[i].defined()) return false;
    if (one.gradients[i].defined() && !torch::equal(one.gradients[i], other.gradients[i])) return false;
  }
  return true;
}

void expect_equal_bits(ry::Worker& worker) {
  const Seen without = train(worker, {.overlap = ry::Overlap::off});
  EXPECT(torch::isfinite(without.weights).all().item<bool>());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 10U, all}) {
    ry::ModelOptions options{.overlap = ry::Overlap::on};
    options.bucket_bytes = bytes;
    options.first_bucket_bytes = bytes;
    EXPECT(is_equal(train(worker, options), without));
    options.memory_pool = false;
    EXPECT(is_equal(train(worker, options), without));
  }
}

ry::ModelOptions one_each() {
  ry::ModelOptions options{.overlap = ry::Overlap::on};
  options.bucket_bytes = options.first_bucket_bytes = 1;
  return options;
}

template <class Backend, class Scaling>
ry::Result run(int num_workers, std::function<void(ry::Worker&)> function, typename Backend::Options options = {}) {
  std::string folder = (std::filesystem::temp_directory_path() / "railyard_overlap_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw ry::Error{"cannot make " + folder};
  ry::RunConfig config{.storage_path = folder, .progress = ry::Progress::quiet};
  config.collective_timeout = std::chrono::seconds{60};
  ry::Trainer<Backend, Scaling> trainer{
      [function](ry::Worker& worker) { function(worker); }, {.num_workers = num_workers}, config, options};
  ry::Result result = trainer.fit();
  std::filesystem::remove_all(folder);
  return result;
}

constexpr auto tcp = ry::GlooTransport::tcp;

// By every way in which gradients are exchanged beside a backward pass.
void on_all(const std::function<void(ry::Worker&)>& function) {
  static_cast<void>(run<ry::SharedMemory, ry::Threads>(2, function).value_or_throw());
  static_cast<void>(run<ry::SharedMemory, ry::Processes>(2, function).value_or_throw());
  static_cast<void>(run<ry::Gloo, ry::Threads>(2, function, {.transport = tcp}).value_or_throw());
  static_cast<void>(run<ry::Gloo, ry::Processes>(2, function, {.transport = tcp}).value_or_throw());
}

// What a run fails with, by shared memory and by TCP.
std::vector<std::string> errors_of(const std::function<void(ry::Worker&)>& function) {
  return {run<ry::SharedMemory, ry::Threads>(2, function).error(),
          run<ry::SharedMemory, ry::Processes>(2, function).error(),
          run<ry::Gloo, ry::Processes>(2, function, {.transport = tcp}).error()};
}

// Passes gradients on, and calls a function of the worker in the middle of a backward pass.
struct Interrupt : torch::autograd::Function<Interrupt> {
  using Call = std::function<void()>;
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, std::int64_t call) {
    context->saved_data["call"] = call;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    (*reinterpret_cast<Call*>(context->saved_data["call"].toInt()))();
    return {gradients[0], torch::Tensor{}};
  }
};

torch::Tensor interrupted(const torch::Tensor& x, Interrupt::Call& call) {
  return Interrupt::apply(x, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&call)));
}

// Waits until a gradient that has arrived is the mean over both ranks.
void await_mean(const torch::Tensor& gradient, float mean) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  const volatile float* value = gradient.data_ptr<float>();
  while (*value != mean && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT(*value == mean);
}

// Three parameters, one bucket each, whose gradients arrive from the third to the first.
struct Chain : torch::nn::Module {
  Chain() {
    for (const char* name : {"first", "second", "third"}) {
      weights.push_back(register_parameter(name, torch::ones({40})));
    }
  }
  torch::Tensor forward(const torch::Tensor& x, Interrupt::Call& call) {
    const auto hidden = interrupted(x * weights[0], call);
    return (interrupted(hidden * weights[1], call) * weights[2]).sum();
  }
  std::vector<torch::Tensor> weights;
};

}  // namespace overlap

TEST_CASE("Overlap: the same bits with it and without, whatever the buckets, by threads in shared memory") {
  static_cast<void>(
      overlap::run<railyard::SharedMemory, railyard::Threads>(3, overlap::expect_equal_bits).value_or_throw());
}
TEST_CASE("Overlap: the same bits with it and without, whatever the buckets, by processes in shared memory") {
  static_cast<void>(
      overlap::run<railyard::SharedMemory, railyard::Processes>(2, overlap::expect_equal_bits).value_or_throw());
}
TEST_CASE("Overlap: the same bits with it and without, whatever the buckets, by threads over TCP") {
  static_cast<void>(
      overlap::run<railyard::Gloo, railyard::Threads>(2, overlap::expect_equal_bits, {.transport = overlap::tcp})
          .value_or_throw());
}
TEST_CASE("Overlap: the same bits with it and without, whatever the buckets, by processes over TCP") {
  static_cast<void>(
      overlap::run<railyard::Gloo, railyard::Processes>(3, overlap::expect_equal_bits, {.transport = overlap::tcp})
          .value_or_throw());
}

TEST_CASE("Overlap: a bucket is exchanged while the backward pass still goes on") {
  overlap::on_all([](railyard::Worker& worker) {
    auto net = railyard::prepare_model(
        worker, [] { return std::make_shared<overlap::Chain>(); }, overlap::one_each());
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      worker.samples(1);
      int num_calls = 0;
      overlap::Interrupt::Call call = [&] {
        // In the pass's first call the third weight's bucket has been begun; here nobody goes on before it is there.
        if (step < 2 || ++num_calls != 2) return;
        overlap::await_mean(net->weights[2].grad(), 1.5F);
      };
      net->forward(torch::full({40}, worker.rank() + 1.0), call).backward();
      for (const auto& weight : net->weights) EXPECT(torch::equal(weight.grad(), torch::full({40}, 1.5)));
    }
  });
}

TEST_CASE("Overlap: a gradient that another one shares its memory with is averaged elsewhere while that is needed") {
  overlap::on_all([](railyard::Worker& worker) {
    struct Sum : torch::nn::Module {
      torch::Tensor late = register_parameter("late", torch::ones({40}));
      torch::Tensor early = register_parameter("early", torch::ones({8, 5}));
    };
    auto net = railyard::prepare_model(
        worker, [] { return std::make_shared<Sum>(); }, overlap::one_each());
    const double factor = worker.rank() + 1;
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      net->early.mutable_grad().reset();  // so that LibTorch leaves the gradient where it was computed
      worker.samples(1);
      overlap::Interrupt::Call call = [&] {
        if (step > 1) overlap::await_mean(net->early.grad(), 1.5F);
      };
      const auto hidden = overlap::interrupted(net->late * factor, call);
      // The sum's gradient belongs to hidden as well as to the view of early.
      ((hidden + net->early.view({40})) * torch::full({40}, factor)).sum().backward();
      EXPECT(torch::equal(net->early.grad(), torch::full({8, 5}, 1.5)));
      EXPECT(torch::equal(net->late.grad(), torch::full({40}, 2.5)));
    }
  });
}

TEST_CASE("prepare_model: two parameters whose gradients LibTorch leaves in one place are averaged apart") {
  for (const auto overlapping : {railyard::Overlap::off, railyard::Overlap::on}) {
    overlap::on_all([overlapping](railyard::Worker& worker) {
      struct Sum : torch::nn::Module {
        torch::Tensor one = register_parameter("one", torch::ones({8, 5}));
        torch::Tensor other = register_parameter("other", torch::ones({5, 8}));
      };
      auto options = overlap::one_each();
      options.overlap = overlapping;
      auto net = railyard::prepare_model(
          worker, [] { return std::make_shared<Sum>(); }, options);
      for (int step = 0; step < 4; ++step) {
        for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
        worker.samples(1);
        ((net->one.view({40}) + net->other.view({40})) * torch::full({40}, worker.rank() + 1.0)).sum().backward();
        EXPECT(!net->one.grad().storage().is_alias_of(net->other.grad().storage()));
        EXPECT(torch::equal(net->one.grad(), torch::full({8, 5}, 1.5)));
        EXPECT(torch::equal(net->other.grad(), torch::full({5, 8}, 1.5)));
      }
    });
  }
}

TEST_CASE("Overlap: collectives inside a backward pass come in whatever order among the buckets") {
  overlap::on_all([](railyard::Worker& worker) {
    auto net = railyard::prepare_model(
        worker, [] { return std::make_shared<overlap::Chain>(); }, overlap::one_each());
    overlap::Interrupt::Call call = [&] {
      std::int64_t one = 1;
      worker.all_reduce(railyard::buffer_of_value(one), railyard::ReduceOp::sum);
      EXPECT(one == 2);
    };
    for (int step = 0; step < 20; ++step) {
      net->zero_grad();
      worker.samples(1);
      auto loss = net->forward(torch::full({40}, worker.rank() + 1.0), call);
      if (step % 3 == worker.rank()) loss = loss + net->weights[2].sum();  // one rank does more here
      loss.backward();
      EXPECT(net->weights[0].grad()[0].item<float>() == 1.5F);
    }
  });
}

TEST_CASE("Overlap: two models, trained in turn and together, and one that is prepared later") {
  overlap::on_all([](railyard::Worker& worker) {
    overlap::Interrupt::Call nothing = [] {};
    const auto make = [] { return std::make_shared<overlap::Chain>(); };
    auto one = railyard::prepare_model(worker, make, overlap::one_each());
    auto other = railyard::prepare_model(worker, make, overlap::one_each());
    std::shared_ptr<overlap::Chain> late;
    const auto x = torch::full({40}, worker.rank() + 1.0);
    const auto is_mean = [](const auto& net) { return torch::equal(net->weights[1].grad(), torch::full({40}, 1.5)); };
    for (int step = 0; step < 9; ++step) {
      if (step == 4) late = railyard::prepare_model(worker, make, overlap::one_each());
      for (const auto& net : {one, other, late}) {
        if (net) net->zero_grad();
      }
      worker.samples(1);
      if (step % 2 == 0) {
        one->forward(x, nothing).backward();
        other->forward(x, nothing).backward();
      } else {
        (one->forward(x, nothing) + other->forward(x, nothing)).backward();
      }
      EXPECT(is_mean(one) && is_mean(other));
      if (late) late->forward(x, nothing).backward();
      EXPECT(!late || is_mean(late));
    }
  });
}

TEST_CASE("Overlap: with a divided optimizer the weights have the same bits with it and without") {
  const auto body = [](railyard::Worker& worker) {
    std::vector<torch::Tensor> ends;
    for (const bool has_overlap : {false, true}) {
      auto net = railyard::prepare_model(
          worker, [] { return std::make_shared<overlap::Net>(); },
          has_overlap ? overlap::one_each() : railyard::ModelOptions{.overlap = railyard::Overlap::off});
      auto optimizer = railyard::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(1e-2));
      EXPECT(optimizer.is_sharded());
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        worker.samples(2);
        net->forward(torch::full({2, 13}, 0.1 * (worker.rank() + 1 + step)), step > 1).square().sum().backward();
        optimizer.step();
      }
      ends.push_back(overlap::flat(net->parameters()));
    }
    EXPECT(torch::equal(ends[0], ends[1]));
  };
  static_cast<void>(overlap::run<railyard::SharedMemory, railyard::Threads>(2, body).value_or_throw());
  static_cast<void>(overlap::run<railyard::Gloo, railyard::Processes>(2, body).value_or_throw());
}

TEST_CASE("Overlap: an exception in the middle of one rank's backward pass ends the group, with its own message") {
  for (const auto& error : overlap::errors_of([](railyard::Worker& worker) {
         auto net = railyard::prepare_model(
             worker, [] { return std::make_shared<overlap::Chain>(); }, overlap::one_each());
         for (int step = 0; step < 5; ++step) {
           int num_calls = 0;
           overlap::Interrupt::Call call = [&] {
             if (step == 3 && worker.rank() == 1 && ++num_calls == 2) throw std::runtime_error{"the loss has run away"};
           };
           net->zero_grad();
           worker.samples(1);
           net->forward(torch::full({40}, worker.rank() + 1.0), call).backward();
         }
       })) {
    CHECK_THAT(error, ContainsSubstring("the loss has run away"));
  }
}

TEST_CASE("Overlap: a rank that dies in the middle of a backward pass ends the group") {
  const auto body = [](railyard::Worker& worker) {
    auto net = railyard::prepare_model(
        worker, [] { return std::make_shared<overlap::Chain>(); }, overlap::one_each());
    for (int step = 0; step < 5; ++step) {
      int num_calls = 0;
      overlap::Interrupt::Call call = [&] {
        if (step == 3 && worker.rank() == 1 && ++num_calls == 2) ::raise(SIGKILL);
      };
      worker.samples(1);
      net->forward(torch::full({40}, worker.rank() + 1.0), call).backward();
    }
  };
  CHECK_THAT((overlap::run<railyard::SharedMemory, railyard::Processes>(2, body).error()),
             ContainsSubstring("rank 1") && ContainsSubstring("SIGKILL"));
  CHECK_THAT((overlap::run<railyard::Gloo, railyard::Processes>(2, body, {.transport = overlap::tcp}).error()),
             ContainsSubstring("rank 1") && ContainsSubstring("SIGKILL"));
}

TEST_CASE("Overlap: a pass that was caught and left when buckets were under way ends the group") {
  for (const auto& error : overlap::errors_of([](railyard::Worker& worker) {
         auto net = railyard::prepare_model(
             worker, [] { return std::make_shared<overlap::Chain>(); }, overlap::one_each());
         for (int step = 0; step < 5; ++step) {
           int num_calls = 0;
           overlap::Interrupt::Call call = [&] {
             if (step == 2 && worker.rank() == 1 && ++num_calls == 2) throw std::runtime_error{"never mind"};
           };
           net->zero_grad();
           worker.samples(1);
           try {
             net->forward(torch::full({40}, worker.rank() + 1.0), call).backward();
           } catch (const std::runtime_error& error) {
             if (std::string{error.what()}.find("never mind") == std::string::npos) throw;
           }
         }
       })) {
    CHECK_THAT(error, ContainsSubstring("ModelOptions::overlap"));
  }
}

TEST_CASE("Overlap: a gradient that comes in a second part after its exchange has begun is refused by name") {
  for (const auto& error : overlap::errors_of([](railyard::Worker& worker) {
         auto net = railyard::prepare_model(
             worker, [] { return std::make_shared<overlap::Chain>(); }, overlap::one_each());
         for (int step = 0; step < 4; ++step) {
           int num_calls = 0;
           overlap::Interrupt::Call call = [&] {
             if (step < 2 || ++num_calls != 2) return;
             const torch::AutoGradMode with_gradients{true};
             net->weights[2].sum().backward();  // another pass inside this one
           };
           net->zero_grad();
           worker.samples(1);
           net->forward(torch::full({40}, worker.rank() + 1.0), call).backward();
         }
       })) {
    CHECK_THAT(error, ContainsSubstring("\"third\"") && ContainsSubstring("ModelOptions::overlap"));
  }
}

TEST_CASE("Overlap: it is not used where gradients have come in several parts from the first step on") {
  overlap::on_all([](railyard::Worker& worker) {
    auto net = railyard::prepare_model(
        worker, [] { return std::make_shared<overlap::Chain>(); }, overlap::one_each());
    for (int step = 0; step < 4; ++step) {
      int num_calls = 0;
      overlap::Interrupt::Call call = [&] {
        if (++num_calls != 2) return;
        const torch::AutoGradMode with_gradients{true};
        (net->weights[2].sum() * (worker.rank() + 1)).backward();
      };
      net->zero_grad();
      worker.samples(1);
      net->forward(torch::full({40}, worker.rank() + 1.0), call).backward();
      EXPECT(torch::equal(net->weights[2].grad(), torch::full({40}, 3.0)));
      EXPECT(torch::equal(net->weights[0].grad(), torch::full({40}, 1.5)));
    }
  });
}

TEST_CASE("Overlap: passes inside a backward pass belong to it, with micro-batches as well") {
  for (const auto overlapping : {railyard::Overlap::off, railyard::Overlap::on}) {
    overlap::on_all([overlapping](railyard::Worker& worker) {
      auto options = overlap::one_each();
      options.overlap = overlapping;
      auto net = railyard::prepare_model(
          worker, [] { return std::make_shared<overlap::Chain>(); }, options);
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        for (const bool is_last : {false, true}) {
          worker.samples(1, is_last);
          overlap::Interrupt::Call first = [&] {
            const torch::AutoGradMode with_gradients{true};
            (net->weights[0].sum() * (worker.rank() + 1)).backward();
          };
          overlap::Interrupt::Call second = [&] {
            const torch::AutoGradMode with_gradients{true};
            (overlap::interrupted(net->weights[1] * 1.0, first).sum() * (worker.rank() + 1)).backward();
          };
          auto x = torch::ones({40}, torch::requires_grad());  // no prepared parameter is outside the inner passes
          overlap::interrupted(overlap::interrupted(x, second), second).sum().backward();
        }
        EXPECT(torch::equal(net->weights[0].grad(), torch::full({40}, 3.0)));
        EXPECT(torch::equal(net->weights[1].grad(), torch::full({40}, 3.0)));
        EXPECT(!net->weights[2].grad().defined() || net->weights[2].grad().abs().max().item<float>() == 0);
      }
    });
  }
}

TEST_CASE("Overlap: synchronised BatchNorm talks inside the backward pass") {
  overlap::on_all([](railyard::Worker& worker) {
    std::vector<torch::Tensor> ends;
    for (const bool has_overlap : {false, true}) {
      auto net = railyard::prepare_model(
          worker,
          [] {
            torch::nn::Sequential made(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
            overlap::fill(*made);
            return made;
          },
          has_overlap ? overlap::one_each() : railyard::ModelOptions{.overlap = railyard::Overlap::off});
      railyard::sync_batch_norm(worker, net);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        worker.samples(4);
        const auto x = (torch::arange(12).to(torch::kFloat) * (0.3 + step + worker.rank())).sin().view({4, 3});
        net->forward(x).square().sum().backward();
        optimizer.step();
      }
      ends.push_back(overlap::flat(net->parameters()));
    }
    EXPECT(torch::equal(ends[0], ends[1]));
  });
}

TEST_CASE("Overlap: different options are named before training begins") {
  for (const auto& error : overlap::errors_of([](railyard::Worker& worker) {
         railyard::ModelOptions options{.overlap = railyard::Overlap::on};
         if (worker.rank() == 1) options.bucket_bytes = 77;
         static_cast<void>(railyard::prepare_model(
             worker, [] { return std::make_shared<overlap::Net>(); }, options));
       })) {
    CHECK_THAT(error, ContainsSubstring("different ModelOptions: rank 1 has") && ContainsSubstring("bucket_bytes 77"));
  }
}

TEST_CASE("BucketSchedule: cuts in the order observed, and a bucket is ready when all before it are") {
  std::vector<railyard::detail::GradientSlot> slots;
  for (const std::int64_t count : {10, 30, 10, 10, 10, 10}) slots.push_back({.parameter = torch::zeros({count})});
  railyard::detail::BucketSchedule schedule;
  schedule.reset(slots.size());
  CHECK(schedule.buckets().size() == 1);
  const std::vector<std::int64_t> order{5, 2, 1, 4, 3};
  for (const std::int64_t index : order) schedule.arrive(static_cast<std::size_t>(index), true);
  CHECK(schedule.num_ready() == 0);  // the first slot is missing
  CHECK_FALSE(schedule.has_repeats());
  CHECK(schedule.observed() == order);

  // One slot of 40 bytes, then two of them; the one of 120 bytes has a bucket to itself.
  schedule.cut(order, slots, {.first = 50, .others = 80});
  using Buckets = std::vector<railyard::detail::Bucket>;
  CHECK(schedule.buckets() == Buckets{{5}, {2}, {1}, {4, 3, 0}});
  schedule.arrive(2, true);
  CHECK(schedule.num_ready() == 0);
  schedule.arrive(5, true);
  CHECK(schedule.num_ready() == 2);
  schedule.arrive(5, false);
  CHECK(schedule.has_repeats());
  for (const std::size_t index : {0U, 1U, 3U, 4U}) schedule.arrive(index, true);
  CHECK(schedule.num_ready() == 4);
  schedule.begin_pass();
  CHECK(schedule.num_ready() == 0);
}

TEST_CASE("BucketSchedule: buckets are as large as the options say, between hosts an eighth of all gradients at most") {
  constexpr std::size_t mib = std::size_t{1} << 20U;
  const auto limits = [](std::int64_t count, bool spans_hosts, const railyard::ModelOptions& options) {
    const std::vector<railyard::detail::GradientSlot> slots(
        4, {.parameter = torch::zeros({count}, torch::TensorOptions{}.device(torch::kMeta))});
    const auto found = railyard::detail::limits_of(options, slots, spans_hosts);
    return std::vector<std::size_t>{found.first, found.others};
  };
  using Sizes = std::vector<std::size_t>;
  CHECK(limits(1 << 20, false, {}) == Sizes{mib, 25 * mib});
  CHECK(limits(1 << 20, true, {}) == Sizes{mib, 2 * mib});  // of 16 MiB
  CHECK(limits(1 << 18, true, {}) == Sizes{mib / 2, mib / 2});
  CHECK(limits(1, true, {}) == Sizes{mib / 4, mib / 4});
  CHECK(limits(1 << 28, true, {}) == Sizes{mib, 25 * mib});
  CHECK(limits(1 << 20, true, {.bucket_bytes = 77, .first_bucket_bytes = 7}) == Sizes{7, 77});
}

TEST_CASE("CommunicationThread: makes calls until one throws, and hands that over (FAULTS B18)") {
  std::atomic<int> num_calls{0};
  railyard::detail::CommunicationThread thread{[&] {
                                                 if (++num_calls == 3) throw std::runtime_error{"the third"};
                                               },
                                               nullptr};
  thread.ask(2);
  thread.settle();
  CHECK(num_calls == 2);
  thread.ask(5);
  CHECK_THROWS_WITH(thread.settle(), "the third");
  CHECK(num_calls == 3);
  thread.ask(1);
  thread.settle();
  CHECK(num_calls == 4);
}
