// SPDX-License-Identifier: MIT
// Learns handwritten digits from a CSV file, and predicts with nothing but the checkpoint that this has left.
// Look at fit() and transform() in main(): what a Chain has learned of the training part changes its samples. Each
// checkpoint has it by itself, as of all that datasets of the Trainer are changed by, and predict() needs no Trainer to
// get it back.
#include <railyard/data/chain.hpp>
#include <railyard/data/concatenator.hpp>
#include <railyard/data/fit.hpp>
#include <railyard/data/scalers.hpp>
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

namespace ry = railyard;

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(64, 128));
    output = register_module("output", torch::nn::Linear(128, 10));
  }
  torch::Tensor forward(const torch::Tensor& pixels) { return output(torch::relu(hidden(pixels))); }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};

// Each of the 64 columns of pixels gets mean 0 and variance 1, and together they become the one column "data".
ry::Chain make_preprocessing() {
  return ry::Chain{ry::StandardScaler{{.except = {"digit"}}}, ry::Concatenator{{.except = {"digit"}}}};
}

void train(ry::Worker& worker) {
  auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
  auto training = ry::prepare_loader(worker, worker.dataset("train"),
                                     {.global_batch_size = 64, .shuffle = true, .drives_step = true});
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(2e-3));
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"training", training}}};

  for (const int epoch : state.epochs(15)) {
    ry::Mean loss;
    for (const auto& batch : training) {
      optimizer.zero_grad();
      auto value = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      value.backward();
      optimizer.step();
      loss.add(value.item<double>(), static_cast<double>(batch.size()));
    }
    worker.report({{"epoch", epoch}, {"loss", worker.mean(loss)}}, state);
  }
}

// What a program does that only predicts. Its samples are as the file has them.
ry::Accuracy predict(const ry::Checkpoint& checkpoint, const ry::Dataset& samples) {
  ry::Chain preprocessing = make_preprocessing();
  Net net;
  checkpoint.load_preprocessor("train", preprocessing);
  checkpoint.load_into("net", net);

  const torch::NoGradGuard no_grad;
  ry::Accuracy accuracy;
  for (const auto& step : ry::EpochReader{samples.transform(preprocessing), {.global_batch_size = 256}}) {
    const ry::Batch batch{step.block, samples.label()};
    accuracy.add(net.forward(batch.data), batch);
  }
  return accuracy;
}

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "examples/data/digits.csv";
  const ry::Dataset digits = ry::read_csv(path, {.label = "digit"}).cache();
  const auto [training_set, test_set] = ry::split_stratified(digits, "digit", {0.8, 0.2}, /*seed=*/1);
  ry::Chain preprocessing = make_preprocessing();
  ry::fit(preprocessing, training_set);  // of the test part it learns nothing

  ry::Trainer<ry::Gloo, ry::Processes> trainer{train,
                                               {.num_workers = 2},
                                               {.seed = 1, .checkpoint = {.keep = 1}},
                                               {{"train", training_set.transform(preprocessing)}}};
  const ry::Result result = trainer.fit();
  if (!result) return result.print_error().exit_status();

  const ry::Accuracy accuracy = predict(*result.checkpoint(), test_set);
  fmt::print("the checkpoint knows {} of {} digits: test accuracy {:.3f}\n", accuracy.correct(), accuracy.samples(),
             accuracy.value());
} catch (const ry::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
