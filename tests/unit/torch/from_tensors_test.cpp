// SPDX-License-Identifier: MIT
#include "railyard/torch/from_tensors.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/split.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

// Each sample is its own number.
ry::Dataset tensors_to(std::int64_t count) {
  const auto [data, target] = test::numbered(count);
  return ry::from_tensors({{"x", data}, {"y", target}}, {.label = "y"});
}

}  // namespace

TEST_CASE("from_tensors: shares the memory of tensors, with their dtypes and shapes") {
  const auto images = torch::arange(24).view({4, 2, 3}).to(torch::kByte);
  const auto dataset = ry::from_tensors({{"image", images}, {"y", torch::arange(4)}});
  CHECK((dataset.count() == 4 && dataset.is_indexed() && dataset.label().empty()));
  CHECK(dataset.schema()[0] == ry::Field{.name = "image", .dtype = ry::Dtype::u8, .shape = {2, 3}});
  CHECK(dataset.schema()[1] == ry::Field{.name = "y", .dtype = ry::Dtype::i64});
  ry::EpochReader reader{dataset, {.global_batch_size = 4, .threads = 0}};
  const auto step = reader.next();
  REQUIRE(step);
  CHECK(static_cast<const void*>(step->block.column("image").bytes().data()) == images.data_ptr());

  const auto columns = torch::arange(6).view({2, 3}).t();  // not contiguous
  ry::EpochReader other{ry::from_tensors({{"c", columns}}), {.global_batch_size = 3, .threads = 0}};
  const auto rows = other.next()->block.column("c");
  CHECK((rows.values<std::int64_t>(1)[0] == 1 && rows.values<std::int64_t>(1)[1] == 4));
}

TEST_CASE("from_tensors: refuses what is no column of samples") {
  CHECK_THROWS_WITH(ry::from_tensors({{"a", torch::tensor(1)}}), ContainsSubstring("\"a\" of shape"));
  CHECK_THROWS_WITH(ry::from_tensors({{"a", torch::Tensor{}}}), ContainsSubstring("\"a\" of shape"));
  CHECK_THROWS_WITH(ry::from_tensors({{"a", torch::ones({2, 0})}}), ContainsSubstring("have no elements"));
  CHECK_THROWS_WITH(ry::from_tensors({{"a", torch::ones({2})}, {"b", torch::ones({3})}}),
                    ContainsSubstring("column \"b\" has 3 samples and column \"a\" has 2"));
  CHECK_THROWS_AS(ry::from_tensors({{"a", torch::ones({2})}}, {.label = "y"}), ry::ConfigError);
}

TEST_CASE("from_tensors: is a dataset of the Trainer, for workers of the program and forked ones") {
  const auto [training, validation] = ry::split(tensors_to(31), {0.7, 0.3}, 1);
  const auto doubled =
      validation.map([](const ry::Sample& in, ry::SampleWriter& out) { out.set("x", 2 * in.number("x")); });
  const auto go_over = [](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, worker.dataset("train"), {.global_batch_size = 4, .shuffle = true});
    auto zipped = ry::prepare_loader(
        worker, ry::zip({worker.dataset("validation"), worker.dataset("validation").rename({{"x", "u"}, {"y", "v"}})}),
        {.global_batch_size = 4});
    test::Numbers all;
    for (const auto& batch : test::batches_of(worker, loader)) all.insert(all.end(), batch.begin(), batch.end());
    EXPECT(!std::is_sorted(all.begin(), all.end()));
    for (const auto& batch : zipped) {
      EXPECT(torch::equal(batch.tensor("x"), 2 * batch.target.to(torch::kFloat).view({-1, 1})));
      EXPECT(torch::equal(batch.tensor("v"), batch.target));
      const test::Numbers whole = test::whole_of(worker, batch);
      all.insert(all.end(), whole.begin(), whole.end());
    }
    std::sort(all.begin(), all.end());
    test::Numbers expected(31);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT(all == expected);
  };
  const Scratch scratch;
  const auto run = [&](auto trainer) { CHECK(trainer.fit().error() == ""); };
  const ry::Datasets datasets{{"train", training}, {"validation", doubled}};
  const ry::RunConfig config{.storage_path = scratch.path(), .progress = ry::Progress::quiet};
  run(ry::Trainer<ry::SharedMemory, ry::Threads>{go_over, {.num_workers = 2}, config, datasets});
  run(ry::Trainer<ry::Gloo, ry::Processes>{go_over, {.num_workers = 2}, config, datasets});
}
