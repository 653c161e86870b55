// SPDX-License-Identifier: MIT
// Trains a small network on real handwritten digits with two worker processes.
// Look at train(): it is an ordinary LibTorch loop. prepare_model() and prepare_loader() are all that makes it
// distributed, and a TrainState all that makes it go on where it was when a worker, or all of it, is killed.
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

namespace ry = railyard;

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(64, 128));
    output = register_module("output", torch::nn::Linear(128, 10));
  }
  torch::Tensor forward(const torch::Tensor& pixels) {
    return output(torch::relu(hidden(pixels / 16.0)));  // a pixel is a number from 0 to 16
  }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};

double test_accuracy(ry::Worker& worker, Net& net, ry::Loader& loader) {
  const torch::NoGradGuard no_grad;
  ry::Accuracy accuracy;
  for (const auto& batch : loader) accuracy.add(net.forward(batch.data), batch);
  return worker.reduce(accuracy).value();  // of the samples of all workers: equal on every rank
}

void train(ry::Worker& worker) {
  auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });  // equal weights on every worker
  auto training = ry::prepare_loader(worker, worker.dataset("train"),
                                     {.global_batch_size = 64, .shuffle = true, .drives_step = true});
  auto test = ry::prepare_loader(worker, worker.dataset("test"), {.global_batch_size = 256});
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(2e-3));
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"training", training}}};

  for (const int epoch : state.epochs(20)) {
    ry::Mean loss;
    for (const auto& batch : training) {
      optimizer.zero_grad();
      auto value = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      value.backward();  // every .grad is now the mean over the global batch
      optimizer.step();
      loss.add(value, batch);
    }
    worker.report({{"epoch", epoch}, {"loss", worker.mean(loss)}, {"accuracy", test_accuracy(worker, *net, test)}},
                  state);  // a checkpoint, written while training goes on
  }
}

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "examples/data/digits.csv";
  const ry::Dataset digits = ry::read_csv(path, {.label = "digit"}).cache();  // read once, and kept in memory
  const auto [training_set, test_set] = ry::split(digits, {0.8, 0.2}, /*seed=*/1);

  ry::Trainer<ry::Gloo, ry::Processes> trainer{
      train,
      {.num_workers = 2},
      {.seed = 1, .checkpoint = {.keep = 1, .score = "accuracy"}, .failure = {.max_failures = 3}},
      {{"train", training_set}, {"test", test_set}}};
  const ry::Result result = trainer.fit();
  if (!result) return result.print_error().exit_status();
  fmt::print("trained {} workers in {:.1f} s; metrics and logs are in {}\n", result.world_size(), result.seconds(),
             result.path().string());
  fmt::print("test accuracy {:.2f}\n", result.metrics().at("accuracy").number());
} catch (const ry::Error& error) {  // a setting or a file that cannot be right, before anything was started
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
