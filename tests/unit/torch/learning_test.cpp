// SPDX-License-Identifier: MIT
// A transformer that learns to spell and a residual network that learns to read digits, on every pair of policies. In
// both, each of two workers sees one half of what there is to learn: without the other's gradients it cannot know both.
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/sync_batch_norm.hpp"

#include "hooks.hpp"
#include "prose.hpp"
#include "run.hpp"
#include "support/catch.hpp"

#ifdef RAILYARD_WITH_LAUNCHED
#include "railyard/workers/launched.hpp"

#include "unit/train/launched_processes.hpp"
#include "unit/train/scratch.hpp"
#endif

#include <torch/torch.h>

#include <cctype>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace learning {  // suites are compiled as one source as well

namespace {

using Tensors = std::pair<torch::Tensor, torch::Tensor>;

constexpr std::int64_t width = 32;
constexpr std::int64_t window = 32;
constexpr std::int64_t num_letters = 128;  // ASCII

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    attention = register_module("attention", torch::nn::Linear(width, 3 * width));
    merge = register_module("merge", torch::nn::Linear(width, width));
    second_norm = register_module("second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    hidden = register_module("hidden", torch::nn::Linear(width, 2 * width));
    output = register_module("output", torch::nn::Linear(2 * width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) {  // (batch, letters, width)
    const auto parts = attention(norm(x)).chunk(3, -1);
    auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width));
    const auto later = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    scores = scores.masked_fill(later, -1e9);
    const auto mixed = x + merge(torch::matmul(scores.softmax(-1), parts[2]));
    return mixed + output(torch::gelu(hidden(second_norm(mixed))));
  }
  torch::nn::LayerNorm norm{nullptr}, second_norm{nullptr};
  torch::nn::Linear attention{nullptr}, merge{nullptr}, hidden{nullptr}, output{nullptr};
};
TORCH_MODULE(Block);

struct Transformer : torch::nn::Module {
  Transformer() {
    letters = register_module("letters", torch::nn::Embedding(num_letters, width));
    places = register_parameter("places", torch::randn({window, width}) * 0.1);
    first = register_module("first", Block());
    second = register_module("second", Block());
    guess = register_module("guess", torch::nn::Linear(width, num_letters));
  }
  torch::Tensor forward(const torch::Tensor& text) {  // (batch, letters)
    return guess(second(first(letters(text) + places)));
  }
  torch::nn::Embedding letters{nullptr};
  torch::Tensor places{};
  Block first{nullptr}, second{nullptr};
  torch::nn::Linear guess{nullptr};
};

torch::Tensor letters_of(std::string text, bool is_upper) {
  for (char& letter : text) {
    if (is_upper) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return torch::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, torch::kChar).to(torch::kLong);
}

// The text in windows, with the next letter to each as the target: 16 in small letters, 16 in capitals, and so on.
Tensors spelling(bool is_training) {
  const std::string text{test::prose};
  const std::size_t known = text.size() * 9 / 10;
  const std::string part = is_training ? text.substr(0, known) : text.substr(known);
  const auto small = letters_of(part, false).unfold(0, window + 1, 1);
  const auto capital = letters_of(part, true).unfold(0, window + 1, 1);
  std::vector<torch::Tensor> rows;
  const std::int64_t count = small.size(0) / 16 * 16;
  for (std::int64_t at = 0; at < count; at += 16) {
    const auto order = torch::arange(at, at + 16) * 641 % small.size(0);
    rows.push_back(small.index_select(0, order));
    rows.push_back(capital.index_select(0, order));
  }
  const auto all = torch::cat(rows);
  return {all.slice(1, 0, window).contiguous(), all.slice(1, 1).contiguous()};
}

torch::Tensor spelling_loss(Transformer& net, const torch::Tensor& text, const torch::Tensor& next) {
  return torch::cross_entropy_loss(net.forward(text).view({-1, num_letters}), next.reshape({-1}));
}

struct ResidualImpl : torch::nn::Module {
  ResidualImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    const auto kernel = [](std::int64_t from, std::int64_t to, std::int64_t size, std::int64_t step) {
      return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, size).stride(step).padding(size / 2).bias(false));
    };
    first = register_module("first", kernel(in, out, 3, stride));
    first_norm = register_module("first_norm", ry::nn::BatchNorm2d(out));
    second = register_module("second", kernel(out, out, 3, 1));
    second_norm = register_module("second_norm", ry::nn::BatchNorm2d(out));
    shortcut = register_module("shortcut", kernel(in, out, 1, stride));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = torch::relu(first_norm->forward(first(x)));
    return torch::relu(second_norm->forward(second(inner)) + shortcut(x));
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr}, shortcut{nullptr};
  ry::nn::BatchNorm2d first_norm{nullptr}, second_norm{nullptr};
};
TORCH_MODULE(Residual);

struct ResNet : torch::nn::Module {
  ResNet() {
    first = register_module("first", Residual(1, 8, 1));
    second = register_module("second", Residual(8, 16, 2));
    guess = register_module("guess", torch::nn::Linear(16, 10));
  }
  torch::Tensor forward(const torch::Tensor& images) { return guess(second(first(images)).mean({2, 3})); }
  Residual first{nullptr}, second{nullptr};
  torch::nn::Linear guess{nullptr};
};

// Every fifth digit is for validation. In training the digits below 5 and the others come by turns of 32.
Tensors reading(bool is_training) {
  const auto [images, labels] = test::digits();
  const auto pictures = images.view({-1, 1, 8, 8});
  const auto numbers = torch::arange(images.size(0));
  const auto is_known = numbers.remainder(5).ne(4);
  const auto select = [&, &all_labels = labels](const torch::Tensor& which) {
    const auto rows = numbers.masked_select(which);
    return Tensors{pictures.index_select(0, rows), all_labels.index_select(0, rows)};
  };
  if (!is_training) return select(is_known.logical_not());
  const auto [low, low_labels] = select(is_known.logical_and(labels.lt(5)));
  const auto [high, high_labels] = select(is_known.logical_and(labels.ge(5)));
  std::vector<torch::Tensor> rows;
  std::vector<torch::Tensor> row_labels;
  for (std::int64_t at = 0; at + 32 <= std::min(low.size(0), high.size(0)); at += 32) {
    rows.insert(rows.end(), {low.slice(0, at, at + 32), high.slice(0, at, at + 32)});
    row_labels.insert(row_labels.end(), {low_labels.slice(0, at, at + 32), high_labels.slice(0, at, at + 32)});
  }
  return {torch::cat(rows), torch::cat(row_labels)};
}

constexpr int num_steps = 100;

template <class Net, class Optimizer, class Loss>
void train(ry::Worker& worker, Net& net, Optimizer& optimizer, const Tensors& data, std::size_t batch_size,
           const Loss& loss) {
  auto loader = ry::prepare_loader(worker, data, {.global_batch_size = batch_size, .drives_step = true});
  for (int step = 0; step < num_steps;) {
    for (const auto& batch : loader) {
      optimizer.zero_grad();
      loss(net, batch.data, batch.target).backward();
      optimizer.step();
      if (++step == num_steps) break;
    }
  }
}

enum class Way : std::uint8_t { plain, prepared, apart };  // apart: nobody averages

template <class Net, class Loss>
void train_in_one_way(ry::Worker& worker, Net& net, Way way, const Tensors& data, std::size_t batch_size,
                      const Loss& loss) {
  const torch::optim::AdamOptions options(5e-3);
  if (way == Way::prepared) {
    auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, options);
    train(worker, *net, optimizer, data, batch_size, loss);
  } else {
    torch::optim::Adam optimizer(net->parameters(), options);
    train(worker, *net, optimizer, data, batch_size, loss);
  }
}

template <class Net>
std::shared_ptr<Net> make(ry::Worker& worker, Way way) {
  return way == Way::apart ? std::make_shared<Net>()
                           : ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
}

// Returns the mean loss per letter of text that was not trained on, half of it in capitals.
double learnt_to_spell(ry::Worker& worker, Way way) {
  auto net = make<Transformer>(worker, way);
  train_in_one_way(worker, net, way, spelling(true), 32, spelling_loss);
  const torch::NoGradGuard no_grad;
  const auto [text, next] = spelling(false);
  return spelling_loss(*net, text, next).item<double>();
}

// Returns the share of digits that are read right, of those that were not trained on.
double learnt_to_read(ry::Worker& worker, Way way) {
  auto net = make<ResNet>(worker, way);
  if (way != Way::apart) ry::sync_batch_norm(worker, net);
  train_in_one_way(worker, net, way, reading(true), 64,
                   [](ResNet& model, const torch::Tensor& images, const torch::Tensor& labels) {
                     return torch::cross_entropy_loss(model.forward(images), labels);
                   });
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto [images, labels] = reading(false);
  return net->forward(images).argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
}

// Untrained it is ln(128) = 4.9, and 2.8 for whoever knows no more than how frequent each letter is.
constexpr double good_loss = 2.4;
// Who has seen one half of the digits reads one half at best.
constexpr double good_accuracy = 0.8;

void learn(ry::Worker& worker, Way way) {
  const double loss = learnt_to_spell(worker, way);
  const double accuracy = learnt_to_read(worker, way);
  EXPECT(worker.mean(loss) == loss && worker.mean(accuracy) == accuracy);  // alike on all
  worker.report({{"loss", loss}, {"accuracy", accuracy}});
}

template <class Backend, class Scaling>
void check_pair() {
  for (const Way way : {Way::plain, Way::prepared}) {
    const auto metrics =
        test::try_run<Backend, Scaling>(2, [way](auto& worker) { learn(worker, way); }).value_or_throw().metrics();
    CHECK(metrics.at("loss").number() < good_loss);
    CHECK(metrics.at("accuracy").number() > good_accuracy);
  }
}

}  // namespace

TEST_CASE("Learning: a transformer spells and a residual network reads, with Local and Threads") {
  check_pair<ry::Local, ry::Threads>();
}

TEST_CASE("Learning: a transformer spells and a residual network reads, with SharedMemory and Threads") {
  check_pair<ry::SharedMemory, ry::Threads>();
}

TEST_CASE("Learning: a transformer spells and a residual network reads, with Gloo and Threads") {
  check_pair<ry::Gloo, ry::Threads>();
}

TEST_CASE("Learning: a transformer spells and a residual network reads, with SharedMemory and Processes") {
  check_pair<ry::SharedMemory, ry::Processes>();
}

TEST_CASE("Learning: a transformer spells and a residual network reads, with Gloo and Processes") {
  check_pair<ry::Gloo, ry::Processes>();
}

#ifdef RAILYARD_WITH_LAUNCHED
TEST_CASE("Learning: a transformer spells and a residual network reads, with Gloo and Launched") {
  for (const Way way : {Way::plain, Way::prepared}) {
    const Scratch scratch;
    launched_runs::LaunchedProcesses launched{
        scratch, 2, [&](int) {
          const ry::Result result =
              ry::Trainer<ry::Gloo, ry::Launched>{
                  [way](ry::Worker& worker) { learn(worker, way); },
                  {.num_workers = 1},
                  {.name = "learning", .storage_path = scratch.path(), .seed = 3, .progress = ry::Progress::quiet}}
                  .fit();
          if (!result) return result.error();
          const bool is_good = result.metrics().at("loss").number() < good_loss &&
                               result.metrics().at("accuracy").number() > good_accuracy;
          return fmt::format("{} workers, {}", result.world_size(), is_good ? "learnt" : "not learnt");
        }};
    CHECK(launched.words(0) == "2 workers, learnt");
    CHECK(launched.words(1) == "2 workers, learnt");
  }
}
#endif

TEST_CASE("Learning: workers that do not average miss the bounds by far") {
  test::on_processes(2, [](auto& worker) {
    torch::set_num_threads(1);  // as prepare_model() does where two workers share a host
    EXPECT(learnt_to_spell(worker, Way::apart) > good_loss + 0.5);
    EXPECT(learnt_to_read(worker, Way::apart) < good_accuracy - 0.2);
  });
}

}  // namespace learning
