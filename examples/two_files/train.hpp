// SPDX-License-Identifier: MIT
// What main.cpp knows of the training: no LibTorch.
#pragma once

#include <railyard/train/worker.hpp>

struct Settings {
  int epochs = 20;
  double learning_rate = 2e-3;
};

void train(railyard::Worker& worker, const Settings& settings);
