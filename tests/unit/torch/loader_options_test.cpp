// SPDX-License-Identifier: MIT
// Of which batches the options make which part.
#include "railyard/torch/loader_options.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

ry::Dataset ten_samples() {
  return ry::Dataset::from_columns({{"n", std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}});
}

}  // namespace

TEST_CASE("LoaderOptions: of a dataset that is not divided each worker gets all, in its share of the batch's size") {
  for (const int workers : {1, 2, 3}) {
    test::on_threads(workers, [](auto& worker) {
      const auto size = static_cast<std::size_t>(12 / worker.world_size());
      const ry::Dataset whole = ten_samples().undivided();
      for (const ry::LoaderOptions& options : {ry::LoaderOptions{.global_batch_size = 12, .drives_step = true},
                                               ry::LoaderOptions{.batch_size_per_worker = size}}) {
        auto loader = ry::prepare_loader(worker, whole, options);
        ry::Mean mean;
        std::vector<std::size_t> sizes;
        for (const auto& batch : loader) {
          sizes.push_back(batch.size());
          mean.add_sum(batch.data.sum().template item<double>(), static_cast<double>(batch.size()));
        }
        EXPECT(sizes.front() == std::min<std::size_t>(size, 10) && mean.weight() == 10);
        EXPECT(worker.mean(mean) == 4.5);
      }
    });
  }
}

TEST_CASE("LoaderOptions: a loader that drives steps refuses parts that differ in size, on all ranks") {
  CHECK_THAT(test::error_of(2,
                            [](auto& worker) {
                              const auto part = ten_samples().take(worker.rank() == 0 ? 4 : 6).undivided();
                              const ry::LoaderOptions options{.global_batch_size = 4};
                              auto other = ry::prepare_loader(worker, part, options);
                              auto driving = options;
                              driving.drives_step = true;
                              auto loader = ry::prepare_loader(worker, part, driving);
                            }),
             ContainsSubstring("between 4 and 6 samples") && ContainsSubstring("splitter"));
}

TEST_CASE("LoaderOptions: no micro-batch is larger than the largest, in as few parts as that takes") {
  test::on_threads(2, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, ten_samples(), {.global_batch_size = 10, .largest_micro_batch = 2});
    std::vector<std::size_t> sizes;
    for (const auto& batch : loader) sizes.push_back(batch.size());
    EXPECT(sizes.size() == 3 && *std::max_element(sizes.begin(), sizes.end()) == 2);
  });
}

TEST_CASE("LoaderOptions: a dataset may say how large a batch is, unless they do") {
  test::on_threads(2, [](auto& worker) {
    EXPECT(ry::prepare_loader(worker, ten_samples().batch(4), {}).num_batches() == 3);
    EXPECT(ry::prepare_loader(worker, ten_samples().batch(4), {.global_batch_size = 5}).num_batches() == 2);
    EXPECT(ry::prepare_loader(worker, ten_samples().batch(4), {.batch_size_per_worker = 1}).num_batches() == 5);
  });
}

TEST_CASE("LoaderOptions: drop_last leaves out what fills no batch, and nothing else") {
  const auto stream = ten_samples().filter([](const ry::Sample&) { return true; });
  for (const int workers : {1, 2, 3}) {
    test::on_threads(workers, [&](auto& worker) {
      ry::LoaderOptions options{.global_batch_size = 4, .drives_step = true, .micro_batches = 2, .drop_last = true};
      const auto go_over = [&](auto& loader) {
        std::vector<std::size_t> sizes;
        for (const auto& batch : loader) sizes.push_back(test::whole_of(worker, batch).size());
        return sizes;
      };
      const auto labelled = [](const ry::Dataset& dataset) {
        return dataset
            .map(ry::Schema{{"x", ry::Dtype::f32}, {"y", ry::Dtype::i64}},
                 [](const ry::Sample& in, ry::SampleWriter& out) {
                   out.set("x", in.number("n"));
                   out.set("y", static_cast<std::int64_t>(in.number("n")));
                 })
            .with_label("y");
      };
      auto of_tensors = ry::prepare_loader(worker, test::numbered(10), options);
      auto of_dataset = ry::prepare_loader(worker, labelled(ten_samples()), options);
      auto of_stream = ry::prepare_loader(worker, labelled(stream), options);
      const std::vector<std::size_t> expected(4, 2);
      for (int epoch = 0; epoch < 2; ++epoch) {
        for (auto* loader : {&of_tensors, &of_dataset}) {
          const auto steps = worker.steps();
          EXPECT(go_over(*loader) == expected);
          EXPECT(loader->num_batches() == 4 && loader->num_samples() == 8);
          EXPECT(worker.steps() <= steps + 2);  // the last step is over when what follows the epoch has been done
          EXPECT(loader->next_epoch() == epoch + 1);
        }
        EXPECT(go_over(of_stream) == expected);
      }
      // Who goes on at a place that was saved with other batches is given the full batches from there on.
      options.global_batch_size = 3;
      options.micro_batches = 1;
      auto saved = ry::prepare_loader(worker, labelled(ten_samples()), options);
      static_cast<void>(saved.begin());
      worker.end_step();
      options.global_batch_size = 4;
      auto rest = ry::prepare_loader(worker, labelled(ten_samples()), options);
      rest.load_state(saved.state());
      EXPECT(go_over(rest) == std::vector<std::size_t>{4});
    });
  }
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader = ry::prepare_loader(worker, ten_samples(),
                                                               {.global_batch_size = 11, .drop_last = true});
                            }),
             ContainsSubstring("drop_last leaves none of 10 samples"));
}
