// SPDX-License-Identifier: MIT
// One training twice: as a plain LibTorch program (port_before.cpp) and on several workers (port_after.cpp).
// Look at `diff examples/port_before.cpp examples/port_after.cpp`: ten lines are all that the port takes.
#include "digits.hpp"

#include <torch/torch.h>
#include <railyard/railyard.hpp>

#include <cstdio>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    features = register_module("features", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
    hidden = register_module("hidden", torch::nn::Linear(16 * 4 * 4, 64));
    output = register_module("output", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const auto pooled = torch::max_pool2d(torch::relu(features(images)), 2);
    return output(torch::relu(hidden(pooled.flatten(1))));
  }
  torch::nn::Conv2d features{nullptr};
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};
TORCH_MODULE(Net);

void train(railyard::Worker& worker, const std::string& path) {
  torch::manual_seed(0);
  auto net = railyard::prepare_model(worker, [] { return Net(); });
  const torch::data::transforms::Stack<> stack;
  auto training_set = Digits(path, Digits::Part::training).map(stack);
  auto validation_set = Digits(path, Digits::Part::validation).map(stack);
  auto training = railyard::prepare_loader(worker, training_set, {.global_batch_size = 32, .drives_step = true});
  auto validation = railyard::prepare_loader(worker, validation_set, {.global_batch_size = 256});
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(2e-3));
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/4, /*gamma=*/0.5);

  for (int epoch = 0; epoch < 10; ++epoch) {
    double loss_sum = 0;
    double samples = 0;
    net->train();
    for (auto& batch : training) {
      optimizer.zero_grad();
      const auto loss = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      loss_sum += loss.item<double>() * static_cast<double>(batch.data.size(0));
      samples += static_cast<double>(batch.data.size(0));
    }
    scheduler.step();

    const torch::NoGradGuard no_grad;
    double correct = 0;
    double seen = 0;
    net->eval();
    for (auto& batch : validation) {
      correct += net->forward(batch.data).argmax(1).eq(batch.target).sum().item<double>();
      seen += static_cast<double>(batch.data.size(0));
    }
    std::printf("epoch %d loss %.4f accuracy %.4f\n", epoch,  // means over all samples
                worker.mean(loss_sum) / worker.mean(samples), worker.mean(correct) / worker.mean(seen));
  }
  double checksum = 0;
  for (const auto& parameter : net->parameters())
    checksum += parameter.detach().to(torch::kDouble).abs().sum().item<double>();
  std::printf("weights %.17g\n", checksum);
}

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "examples/data/digits.csv";
  railyard::Trainer trainer{[&](auto& w) { train(w, path); }, {.num_workers = argc > 2 ? std::stoi(argv[2]) : 2}};
  return trainer.fit().print_error().exit_status();
}
