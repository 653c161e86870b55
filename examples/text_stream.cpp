// SPDX-License-Identifier: MIT
// Teaches a small causal transformer the characters of a text, from a stream of windows, and kills a worker in between:
// text_stream [FILE]; by default the licence that Debian and its kin have.
// Look at windows_of(): how many windows there are is known only at the end of the stream, and still each comes exactly
// once per epoch, for the loader's position, which the TrainState holds, is one in the stream as it is shuffled.
#include <railyard/data/text_lines_source.hpp>
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>

namespace ry = railyard;

constexpr std::size_t length = 32;  // characters of a window
constexpr std::int64_t features = 48;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    const auto layer = torch::nn::TransformerEncoderLayerOptions(features, 4).dim_feedforward(2 * features).dropout(0);
    embedding = register_module("embedding", torch::nn::Embedding(128, features));
    places = register_parameter("places", torch::randn({static_cast<std::int64_t>(length), 1, features}) * 0.1);
    layers = register_module("layers", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2)));
    output = register_module("output", torch::nn::Linear(features, 128));
  }
  // Of (windows, length) characters. A place sees nothing of what follows it.
  torch::Tensor forward(const torch::Tensor& characters) {
    const auto mask = torch::nn::TransformerImpl::generate_square_subsequent_mask(length);
    const auto text = embedding(characters).transpose(0, 1) + places;
    return output(layers(text, mask).transpose(0, 1)).flatten(0, 1);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::Tensor places{};
  torch::nn::TransformerEncoder layers{nullptr};
  torch::nn::Linear output{nullptr};
};
TORCH_MODULE(Net);

// Lines to train with, and to test with. Of the former now and then one is in capitals: in each epoch others, and the
// same ones whatever the number of workers and threads.
std::array<ry::Dataset, 2> lines_of(const std::string& path) {
  const auto [training, test] = ry::split(ry::Dataset{ry::TextLinesSource{path}}, {0.9, 0.1}, /*seed=*/1);
  return {training.map([](const ry::Sample& in, ry::SampleWriter& out, ry::SampleRandom& random) {
            std::string line{in.text("text")};
            if (random.chance(0.02)) std::transform(line.begin(), line.end(), line.begin(), ::toupper);
            out.set("text", line);
          }),
          test};
}

// Makes windows of each line. For each of its characters the network is to guess the next one.
ry::Dataset windows_of(const ry::Dataset& lines) {
  const std::int64_t width = length;
  const ry::Schema schema{{.name = "characters", .dtype = ry::Dtype::i64, .shape = {width}},
                          {.name = "next", .dtype = ry::Dtype::i64, .shape = {width}}};
  return lines
      .flat_map(schema,
                [](const ry::Sample& line, ry::SampleList& out) {
                  std::vector<std::int64_t> codes;
                  for (const char character : line.text("text")) codes.push_back(character & 0x7F);
                  const std::span<const std::int64_t> all{codes};
                  for (std::size_t at = 0; at + length < all.size(); at += length) {
                    ry::SampleWriter& window = out.add();
                    window.set("characters", all.subspan(at, length));
                    window.set("next", all.subspan(at + 1, length));
                  }
                })
      .with_label("next");
}

torch::Tensor loss_of(Net& net, const ry::Batch& batch) {
  return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target.flatten());
}

double evaluate(ry::Worker& worker, Net& net, ry::Loader& loader) {
  const torch::NoGradGuard no_grad;
  ry::Perplexity perplexity;
  for (const auto& batch : loader) perplexity.add(loss_of(net, batch), batch);
  return worker.reduce(perplexity).value();
}

void train(ry::Worker& worker) {
  auto net = ry::prepare_model(worker, [] { return Net(); });
  auto training = ry::prepare_loader(worker, worker.dataset("train"), {.global_batch_size = 32, .drives_step = true});
  auto test = ry::prepare_loader(worker, worker.dataset("test"), {.global_batch_size = 64});
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  ry::Perplexity seen;  // goes on in the middle of an epoch, as the loader does
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"training", training}, {"seen", seen}}};

  for (const int epoch : state.epochs(10)) {
    for (const auto& batch : training) {
      optimizer.zero_grad();
      auto loss = loss_of(net, batch);
      loss.backward();
      optimizer.step();
      seen.add(loss, batch);
      if (worker.attempt() == 0 && epoch == 2 && seen.tokens() > 200 * length && worker.rank() == 1)
        std::raise(SIGKILL);
    }
    const ry::Perplexity all = worker.reduce(seen);
    seen.reset();
    worker.report({{"epoch", epoch},
                   {"windows", all.tokens() / length},
                   {"perplexity", all.value()},
                   {"test_perplexity", evaluate(worker, net, test)}},
                  state);
  }
}

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "/usr/share/common-licenses/*GPL-3";
  const auto [training_lines, test_lines] = lines_of(path);
  const ry::Dataset training_set = windows_of(training_lines.shuffle()).shuffle_window(256);

  ry::Trainer<ry::Gloo, ry::Processes> trainer{train,
                                               {.num_workers = 2},
                                               {.seed = 1, .checkpoint = {.keep = 1}, .failure = {.max_failures = 1}},
                                               {{"train", training_set}, {"test", windows_of(test_lines)}}};
  const ry::Result result = trainer.fit();
  if (!result) return result.print_error().exit_status();

  const auto windows = static_cast<double>(ry::stats(training_set).samples);
  for (const ry::Metrics& epoch : result.history()) {
    if (epoch.at("windows").number() != windows) throw ry::Error{"an epoch had not each window once"};
  }
  fmt::print("{} starts, each of {} windows once per epoch; perplexity of a character {:.1f}\n",
             result.attempts().size(), windows, result.metrics().at("test_perplexity").number());
} catch (const ry::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
