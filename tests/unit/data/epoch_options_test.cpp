// SPDX-License-Identifier: MIT
#include "railyard/data/epoch_options.hpp"

#include "support/catch.hpp"

#include <vector>

namespace ry = railyard;

TEST_CASE("EpochOptions: are refused when they cannot be met") {
  const auto dataset = ry::Dataset::from_columns({{"x", std::vector<float>(3)}});
  const auto check = [](const ry::Dataset& of, const ry::EpochOptions& options) {
    return ry::detail::check_epoch_options(of, options);
  };
  CHECK(check(dataset, {.global_batch_size = 1, .seed = 2, .epoch = 5}).epoch() == 5);
  CHECK_THROWS_WITH(check(dataset, {}), ContainsSubstring("global_batch_size must be given"));
  CHECK_THROWS_WITH(check(dataset, {.global_batch_size = 1, .rank = 2, .world_size = 2}),
                    ContainsSubstring("on rank 2/2"));
  CHECK_THROWS_WITH(check(dataset, {.global_batch_size = 1, .micro_batches = 0}), ContainsSubstring("micro_batches"));
  const auto stream = dataset.filter([](const ry::Sample&) { return true; });
  CHECK_THROWS_WITH(check(stream, {.global_batch_size = 1, .shuffle = true}),
                    ContainsSubstring("-> filter") && ContainsSubstring("shuffle_window()"));
}
