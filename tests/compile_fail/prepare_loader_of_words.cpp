// SPDX-License-Identifier: MIT
// A LibTorch dataset whose samples are neither tensors nor pairs of them.
// needs: torch
// expect: static.assert.*the dataset must yield torch::data::Example<> or TensorExample
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <string>

namespace ry = railyard;

#ifdef FIXED
using Sample = torch::data::Example<>;
#else
using Sample = std::string;
#endif

struct Words : torch::data::datasets::Dataset<Words, Sample> {
  Sample get(std::size_t /*index*/) override { return {}; }
  torch::optional<std::size_t> size() const override { return 4; }
};

void train(ry::Worker& worker) {
  auto loader = ry::prepare_loader(worker, Words{}, {.global_batch_size = 2});
  static_cast<void>(loader.num_batches());
}
