// SPDX-License-Identifier: MIT
// Data whose samples are their own numbers, and what all ranks together see of it.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/prepare_loader.hpp"

#include "run.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace test {

using Numbers = std::vector<std::int64_t>;

inline std::pair<torch::Tensor, torch::Tensor> numbered(std::int64_t count) {
  return {torch::arange(count).to(torch::kFloat).view({count, 1}), torch::arange(count)};
}

inline Numbers numbers_of(const ry::Batch& batch) {
  Numbers numbers;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(batch.size()); ++i)
    numbers.push_back(batch.target[i].item<std::int64_t>());
  return numbers;
}

// Returns the samples of a batch, rank after rank.
inline Numbers whole_of(ry::Worker& worker, const ry::Batch& batch) {
  Numbers padded(16, -1);
  const Numbers mine = numbers_of(batch);
  std::copy(mine.begin(), mine.end(), padded.begin());
  Numbers whole;
  for (const auto number : ry::detail::gather_values(worker, padded)) {
    if (number >= 0) whole.push_back(number);
  }
  return whole;
}

// Returns the samples of one epoch as all ranks together see them: batch after batch, rank after rank.
inline std::vector<Numbers> batches_of(ry::Worker& worker, ry::Loader& loader) {
  std::vector<Numbers> batches;
  for (const auto& batch : loader) {
    EXPECT(torch::equal(batch.data.view(-1).to(torch::kLong), batch.target));
    EXPECT(batch.size() == 0 ? batch.data.size(0) == 1 : batch.data.size(0) == static_cast<std::int64_t>(batch.size()));
    batches.push_back(whole_of(worker, batch));
  }
  return batches;
}

}  // namespace test
