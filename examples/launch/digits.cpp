// SPDX-License-Identifier: MIT
// Trains on handwritten digits with whatever processes Slurm, MPI, torchrun or Kubernetes has started; started by hand,
// on this host alone. Only the second policy differs from ../quickstart.cpp:
//   digits_launched DIGITS.CSV [WORKERS_PER_PROCESS [FOLDER_OF_RUNS [NAME]]]
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <cstdlib>

#include <fmt/format.h>

namespace ry = railyard;

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(64, 64));
    output = register_module("output", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& pixels) { return output(torch::relu(hidden(pixels / 16.0))); }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};

double accuracy(ry::Worker& worker, Net& net, ry::Loader& loader) {
  const torch::NoGradGuard no_grad;
  ry::Mean correct;
  for (const auto& batch : loader) {
    const auto hits = net.forward(batch.data).argmax(1).eq(batch.target).sum().item<double>();
    correct.add_sum(hits, static_cast<double>(batch.size()));
  }
  return worker.mean(correct);
}

// All bits of the weights in one number: equal wherever the same workers have trained.
double fingerprint(const Net& net) {
  double sum = 0;
  for (const auto& parameter : net.parameters())
    sum += parameter.detach().to(torch::kFloat64).abs().sum().item<double>();
  return sum;
}

void train(ry::Worker& worker) {
  auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
  auto training = ry::prepare_loader(worker, worker.dataset("train"),
                                     {.global_batch_size = 60, .shuffle = true, .drives_step = true});
  auto test = ry::prepare_loader(worker, worker.dataset("test"), {.global_batch_size = 240});
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(4e-3));
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"training", training}}};

  for (const int epoch : state.epochs(12)) {
    for (const auto& batch : training) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
    worker.report({{"epoch", epoch}, {"accuracy", accuracy(worker, *net, test)}, {"fingerprint", fingerprint(*net)}},
                  state);
  }
}

int main(int argc, char** argv) try {
  if (argc < 2) throw ry::ConfigError{"usage: digits_launched DIGITS.CSV [WORKERS [FOLDER [NAME]]]"};
  const ry::Dataset digits = ry::read_csv(argv[1], {.label = "digit"}).cache();
  const auto [training_set, test_set] = ry::split(digits, {0.8, 0.2}, /*seed=*/1);

  ry::Trainer<ry::Gloo, ry::Launched> trainer{
      train,
      {.num_workers = argc > 2 ? std::atoi(argv[2]) : 1},  // of each process that was started
      {.name = argc > 4 ? argv[4] : "",
       .storage_path = argc > 3 ? argv[3] : "runs",  // where every process sees it
       .seed = 1,
       .checkpoint = {.keep = 1, .score = "accuracy"},
       .failure = {.max_failures = 3}},
      {{"train", training_set}, {"test", test_set}}};
  const ry::Result result = trainer.fit();
  if (result.is_leader() && result) {  // code after fit() runs in every process
    fmt::print("{} workers, weights {:.12g}\ntest accuracy {:.2f}\n", result.world_size(),
               result.metrics().at("fingerprint").number(), result.metrics().at("accuracy").number());
  }
  if (!result) fmt::print(stderr, "{}\n", result.error());
  return result.exit_status();  // 75 asks the engine to start the job again
} catch (const ry::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
