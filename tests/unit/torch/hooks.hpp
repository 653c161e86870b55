// SPDX-License-Identifier: MIT
// Buckets of gradients and a small training with a communication hook, for the tests of hooks.
#pragma once

#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/read_csv.hpp"
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/detail/block_tensors.hpp"

#include "run.hpp"
#include "support/places.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace test {

// A bucket of its own memory that holds the given tensors.
class Bucket {
 public:
  explicit Bucket(const std::vector<torch::Tensor>& tensors) : ids(tensors.size()) {
    std::vector<torch::Tensor> rows;
    for (const auto& tensor : tensors) rows.push_back(tensor.reshape({-1}));
    flat = torch::cat(rows).contiguous();
    std::int64_t begin = 0;
    for (const auto& tensor : tensors) {
      parts.push_back(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
    std::iota(ids.begin(), ids.end(), std::size_t{0});
  }
  [[nodiscard]] ry::GradientBucket view() const { return {.flat = flat, .parts = parts, .ids = ids}; }

  torch::Tensor flat{};
  std::vector<torch::Tensor> parts{};
  std::vector<std::size_t> ids{};
};

// A gradient with values between 1e-6 and 1, different on each rank and in each step.
inline torch::Tensor gradient_of(int rank, std::vector<std::int64_t> shape, int step = 0) {
  std::int64_t count = 1;
  for (const auto size : shape) count *= size;
  const auto places = torch::arange(count).to(torch::kDouble);
  const auto sizes = torch::pow(10.0, -3 + 3 * torch::sin(places * 0.7 + rank));
  return (sizes * torch::cos(places * 1.3 + rank * 0.5 + step)).view(shape).to(torch::kFloat);
}

inline void expect_equal_bits(ry::Worker& worker, const torch::Tensor& tensor) {
  const auto all = ry::all_gather(worker, tensor);
  for (std::int64_t rank = 1; rank < all.size(0); ++rank) {
    expect(torch::equal(all[0].view(torch::kInt), all[rank].view(torch::kInt)), "equal bits on all ranks");
  }
}

struct Trained {
  double accuracy = 0;
  double loss = 0;
};

// The digits of examples/data: pixels from 0 to 1, and labels.
inline std::pair<torch::Tensor, torch::Tensor> digits() {
  const ry::Dataset dataset = ry::read_csv(railyard_test::in_sources("examples/data/digits.csv"), {.label = "digit"});
  const auto all = static_cast<std::size_t>(*dataset.count());
  ry::EpochReader reader{dataset, {.global_batch_size = all}};
  const auto [images, labels] = ry::detail::BlockCollation{dataset.schema(), dataset.label(), 0}(reader.next()->block);
  return {images / 16, labels};
}

// Trains a small network on four of five digits, of which each rank sees every so many-th, with one bucket per step;
// returns what it knows of the fifth ones.
template <class Hook>
Trained train_digits(ry::Worker& worker, Hook hook, int epochs = 12) {
  const auto [images, labels] = digits();
  const auto numbers = torch::arange(images.size(0));
  const auto training = numbers.masked_select(numbers.remainder(5).ne(4));
  const auto validation = numbers.masked_select(numbers.remainder(5).eq(4));
  const std::int64_t known = training.numel();
  torch::nn::Sequential net(torch::nn::Linear(64, 48), torch::nn::Tanh(), torch::nn::Linear(48, 10));
  {
    const torch::NoGradGuard no_grad;
    double phase = 0.1;
    for (auto& parameter : net->parameters()) {  // equal on all ranks, also where they are threads
      parameter.copy_(
          (torch::arange(parameter.numel()) * 1.7 + (phase += 0.9)).sin().mul(0.15).view(parameter.sizes()));
    }
  }
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::int64_t step = 0; step < epochs * known / 64; ++step) {
    const auto places = torch::arange(step * 64 + worker.rank(), (step + 1) * 64, worker.world_size()) * 7 % known;
    const auto rows = training.index_select(0, places);
    optimizer.zero_grad();
    torch::cross_entropy_loss(net->forward(images.index_select(0, rows)), labels.index_select(0, rows)).backward();
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad() / worker.world_size());
    Bucket bucket{gradients};
    hook.all_reduce(worker, bucket.view());
    for (std::size_t i = 0; i < gradients.size(); ++i) net->parameters()[i].grad().copy_(bucket.parts[i]);
    optimizer.step();
  }
  for (const auto& parameter : net->parameters()) expect_equal_bits(worker, parameter.detach());
  const torch::NoGradGuard no_grad;
  const auto out = net->forward(images.index_select(0, validation));
  const auto target = labels.index_select(0, validation);
  return {.accuracy = out.argmax(1).eq(target).to(torch::kDouble).mean().item<double>(),
          .loss = torch::cross_entropy_loss(out, target).item<double>()};
}

}  // namespace test
