// SPDX-License-Identifier: MIT
// A dataset that cannot be asked for its samples by index.
// needs: torch
// expect: static.assert.*dataset must be a railyard::Dataset, a std::pair of tensors, or a LibTorch dataset
#include <railyard/railyard.hpp>

#include <torch/torch.h>

namespace ry = railyard;

struct Stream : torch::data::datasets::StreamDataset<Stream> {
  std::vector<torch::data::Example<>> get_batch(std::size_t /*size*/) override { return {}; }
  torch::optional<std::size_t> size() const override { return {}; }
};

void train(ry::Worker& worker) {
#ifdef FIXED
  auto loader = ry::prepare_loader(worker, {torch::ones({4}), torch::ones({4})}, {.global_batch_size = 2});
#else
  auto loader = ry::prepare_loader(worker, Stream{}, {.global_batch_size = 2});
#endif
  static_cast<void>(loader.num_batches());
}
