// SPDX-License-Identifier: MIT
// Starts the workers. Look at what is not here: LibTorch. This file compiles in seconds, and train.cpp stays as it is
// when the policies change.
#include "train.hpp"

#include <railyard/collectives/gloo.hpp>
#include <railyard/data/read_csv.hpp>
#include <railyard/data/split.hpp>
#include <railyard/train/trainer.hpp>
#include <railyard/workers/processes.hpp>

namespace ry = railyard;

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "examples/data/digits.csv";
  const auto [training_set, test_set] =
      ry::split(ry::read_csv(path, {.label = "digit"}).cache(), {0.8, 0.2}, /*seed=*/1);
  const Settings settings{.epochs = 20};

  ry::Trainer<ry::Gloo, ry::Processes> trainer{[&](auto& worker) { train(worker, settings); },
                                               {.num_workers = 2},
                                               {.seed = 1},
                                               {{"train", training_set}, {"test", test_set}}};
  const ry::Result result = trainer.fit();
  if (!result) {
    fmt::print(stderr, "{}\n", result.error());
    return result.exit_status();
  }
  fmt::print("accuracy {:.2f} after epoch {}\n", result.metrics().at("accuracy").number(),
             result.metrics().at("epoch").number());
}
