// SPDX-License-Identifier: MIT
// What a loader of a Dataset refuses to train with: epochs without a sample, and data of another number of samples.
#include "railyard/torch/prepare_loader.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

ry::Dataset refused_numbers() { return ry::Dataset::from_columns({{"x", std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}}}); }

// What a loop over a loader says.
template <class AnyWorker>
std::string told_of_loop(AnyWorker& worker, const ry::Dataset& dataset, const ry::LoaderOptions& options) {
  auto loader = ry::prepare_loader(worker, dataset, options);
  try {
    for (const auto& batch : loader) EXPECT(batch.columns().rows() > 0);
  } catch (const ry::Error& error) {
    return error.what();
  }
  return "done";
}

}  // namespace

TEST_CASE("Loader of a Dataset: an epoch in which no rank is given a sample is an error on each of them") {
  const auto few = refused_numbers().filter([](const ry::Sample& sample) { return sample.id() % 2 == 0; });
  const auto none = refused_numbers().filter([](const ry::Sample&) { return false; });
  for (const int ranks : {1, 2}) {
    for (const bool drives_step : {true, false}) {
      for (const std::size_t threads : {0U, 2U}) {
        test::on_threads(ranks, [&](auto& worker) {
          ry::LoaderOptions options{.global_batch_size = 5, .drives_step = drives_step, .threads = threads};
          EXPECT(told_of_loop(worker, few, options) == "done");
          const std::string rank = std::to_string(worker.rank()) + "/" + std::to_string(worker.world_size());
          EXPECT(told_of_loop(worker, none, options) ==
                 "a loader on rank " + rank +
                     " was given no sample in epoch 0: its dataset has none, as where filter() keeps none, or the "
                     "source is empty: look at it with ry::show()");
          options.drop_last = true;
          EXPECT(told_of_loop(worker, few, options).find("do not fill a batch of 5, and drop_last") !=
                 std::string::npos);
        });
      }
    }
  }
}

TEST_CASE("Loader of a Dataset: a collate function whose data is of another number of samples is refused") {
  test::on_threads(2, [](auto& worker) {
    for (const std::int64_t more : {-1, 0, 1}) {
      ry::LoaderOptions options{.global_batch_size = 8};
      options.collate = [more](const ry::Block& block) {
        const auto rows = static_cast<std::int64_t>(block.rows()) + more;
        return std::pair{torch::zeros({rows, 2}), torch::Tensor{}};
      };
      const std::string told = told_of_loop(worker, refused_numbers(), options);
      const std::string expected = "was given 4 samples and made data of " + std::to_string(4 + more) + ", of shape";
      EXPECT(more == 0 ? told == "done" : told.find(expected) != std::string::npos);
    }
  });
}
