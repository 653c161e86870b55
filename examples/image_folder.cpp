// SPDX-License-Identifier: MIT
// Trains a convolutional network on a folder of pictures, PNG and JPEG, which has a folder for each class:
// image_folder FOLDER. `write_pictures examples/data/digits.csv pictures` makes one of small digits.
// Look at augment(): it is called on several threads for samples in any order, and yet each sample gets the same random
// numbers in an epoch, whichever worker reads it. A run that goes on after a failure sees the same pictures as well.
#include <railyard/data/image_folder.hpp>
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <algorithm>

namespace ry = railyard;

constexpr std::int64_t side = 16;  // pixels of a side, to which all pictures are brought

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t classes) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)));
    output = register_module("output", torch::nn::Linear(32 * (side / 4) * (side / 4), classes));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const auto halved = torch::max_pool2d(torch::relu(first(images.to(torch::kFloat) / 255)), 2);
    return output(torch::max_pool2d(torch::relu(second(halved)), 2).flatten(1));
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear output{nullptr};
};
TORCH_MODULE(Net);

// Moves a picture by a pixel at most each way, and makes it darker or brighter.
void augment(const ry::Sample& in, ry::SampleWriter& out, ry::SampleRandom& random) {
  const auto pixels = in.values<std::uint8_t>("image");
  const auto down = static_cast<std::int64_t>(random.below(3)) - 1;
  const auto right = static_cast<std::int64_t>(random.below(3)) - 1;
  const double brightness = random.uniform(0.8, 1.2);
  std::vector<std::uint8_t> moved(pixels.size());
  for (std::int64_t y = 0; y < side; ++y) {
    for (std::int64_t x = 0; x < side; ++x) {
      const std::int64_t from_y = std::clamp<std::int64_t>(y - down, 0, side - 1);
      const std::int64_t from_x = std::clamp<std::int64_t>(x - right, 0, side - 1);
      const double value = brightness * pixels[static_cast<std::size_t>(from_y * side + from_x)];
      moved[static_cast<std::size_t>(y * side + x)] = static_cast<std::uint8_t>(std::min(value, 255.0));
    }
  }
  out.set("image", moved);  // "label" stays as it is
}

ry::ConfusionMatrix evaluate(ry::Worker& worker, Net& net, ry::Loader& loader, std::size_t classes) {
  const torch::NoGradGuard no_grad;
  ry::ConfusionMatrix found{classes};
  for (const auto& batch : loader) found.add(net->forward(batch.data), batch);
  return worker.reduce(found);
}

void train(ry::Worker& worker, std::size_t classes) {
  auto net = ry::prepare_model(worker, [classes] { return Net{static_cast<std::int64_t>(classes)}; });
  auto training = ry::prepare_loader(worker, worker.dataset("train"),
                                     {.global_batch_size = 64, .shuffle = true, .drives_step = true});
  auto test = ry::prepare_loader(worker, worker.dataset("test"), {.global_batch_size = 256});
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(4e-3));
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"training", training}}};

  for (const int epoch : state.epochs(10)) {
    ry::Mean loss;
    for (const auto& batch : training) {
      optimizer.zero_grad();
      auto value = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      value.backward();
      optimizer.step();
      loss.add(value.item<double>(), static_cast<double>(batch.size()));
    }
    const ry::ConfusionMatrix found = evaluate(worker, net, test, classes);
    worker.report({{"epoch", epoch}, {"loss", worker.mean(loss)}, {"accuracy", found.accuracy()}}, state);
  }
}

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "pictures";
  const ry::ImageFolder folder{path,
                               {.height = side,
                                .width = side,
                                .layout = ry::ImageLayout::chw,
                                .colors = ry::ImageColors::grey,
                                .on_error = ry::OnError::at_most(10)}};  // damaged pictures are left out
  const ry::Dataset pictures = ry::Dataset{folder}.cache();              // decoded once
  const auto [training_set, test_set] = ry::split_stratified(pictures, "label", {0.8, 0.2}, /*seed=*/1);

  const std::size_t classes = folder.classes().size();
  ry::Trainer<ry::Gloo, ry::Processes> trainer{[classes](ry::Worker& worker) { train(worker, classes); },
                                               {.num_workers = 2},
                                               {.seed = 1, .checkpoint = {.keep = 1, .score = "accuracy"}},
                                               {{"train", training_set.map(augment)}, {"test", test_set}}};
  const ry::Result result = trainer.fit();
  if (!result) return result.print_error().exit_status();
  fmt::print("{} pictures of {} classes, test accuracy {:.3f}\n", *pictures.count(), classes,
             result.metrics().at("accuracy").number());
} catch (const ry::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
