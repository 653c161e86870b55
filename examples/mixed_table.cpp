// SPDX-License-Identifier: MIT
// Tells heart disease from a table of numbers and words, some of which are missing, with a logistic regression.
// Look at make_preprocessing(): empty cells are filled, numbers scaled, words encoded, and all of it put side by side.
// AUC and accuracy are sums over all workers: they are what one worker would find, to the last bit.
#include <railyard/data/chain.hpp>
#include <railyard/data/concatenator.hpp>
#include <railyard/data/encoders.hpp>
#include <railyard/data/fit.hpp>
#include <railyard/data/imputer.hpp>
#include <railyard/data/scalers.hpp>
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

namespace ry = railyard;

// Each step learns from what those before it make of the samples.
ry::Chain make_preprocessing() {
  const std::vector<std::string> numbers{"age",           "resting_pressure", "cholesterol", "max_heart_rate",
                                         "st_depression", "colored_vessels"};
  const std::vector<std::string> words{"sex", "chest_pain", "resting_ecg", "st_slope", "thal"};
  return ry::Chain{ry::SimpleImputer{{.columns = numbers, .with = ry::Impute::median}},
                   ry::SimpleImputer{{.columns = words, .with = ry::Impute::most_frequent}},
                   ry::StandardScaler{{.columns = numbers}}, ry::OneHotEncoder{{.columns = words}},
                   ry::Concatenator{{.except = {"disease"}}}};
}

struct Scores {
  ry::Auc auc{};
  ry::Accuracy accuracy{};
};

Scores evaluate(ry::Worker& worker, torch::nn::Linear& model, ry::Loader& loader) {
  const torch::NoGradGuard no_grad;
  Scores scores;
  for (const auto& batch : loader) {
    const auto chances = torch::sigmoid(model(batch.data));
    scores.auc.add(chances, batch);
    scores.accuracy.add(torch::cat({1 - chances, chances}, 1), batch);
  }
  return {worker.reduce(scores.auc), worker.reduce(scores.accuracy)};
}

void train(ry::Worker& worker, const ry::Chain& preprocessing) {
  const ry::Dataset training_set = worker.dataset("train").transform(preprocessing).cache();
  const ry::Dataset test_set = worker.dataset("test").transform(preprocessing).cache();

  const auto width = training_set.schema()[training_set.schema().index_of("data")].shape.front();
  auto model = ry::prepare_model(worker, [width] { return torch::nn::Linear(width, 1); });
  auto training =
      ry::prepare_loader(worker, training_set, {.global_batch_size = 32, .shuffle = true, .drives_step = true});
  auto test = ry::prepare_loader(worker, test_set, {.global_batch_size = 64});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(2e-2).weight_decay(0.1));
  ry::TrainState state{worker, {{"model", model}, {"optimizer", optimizer}, {"training", training}}};

  for (const int epoch : state.epochs(30)) {
    for (const auto& batch : training) {
      optimizer.zero_grad();
      const auto target = batch.target.to(torch::kFloat).unsqueeze(1);
      torch::binary_cross_entropy_with_logits(model(batch.data), target).backward();
      optimizer.step();
    }
    const Scores scores = evaluate(worker, model, test);
    worker.report({{"epoch", epoch}, {"auc", scores.auc.value()}, {"accuracy", scores.accuracy.value()}}, state);
  }
}

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "examples/data/heart.csv";
  const ry::Dataset table = ry::read_csv(path, {.label = "disease"}).cache();
  const auto [training_set, test_set] = ry::split_stratified(table, "disease", {0.7, 0.3}, /*seed=*/1);
  fmt::print("{}", ry::stats(training_set).text());
  ry::Chain preprocessing = make_preprocessing();
  ry::fit(preprocessing, training_set);  // before the workers start: what they go on with is what they began with

  ry::Trainer<ry::Gloo, ry::Processes> trainer{[&](ry::Worker& worker) { train(worker, preprocessing); },
                                               {.num_workers = 2},
                                               {.seed = 1, .checkpoint = {.keep = 1, .score = "auc"}},
                                               {{"train", training_set}, {"test", test_set}}};
  const ry::Result result = trainer.fit();
  if (!result) return result.print_error().exit_status();
  fmt::print("{} samples, accuracy {:.2f}, AUC {:.3f}\n", *test_set.count(), result.metrics().at("accuracy").number(),
             result.metrics().at("auc").number());
} catch (const ry::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
