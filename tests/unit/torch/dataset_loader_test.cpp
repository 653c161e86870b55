// SPDX-License-Identifier: MIT
// Loaders of a railyard::Dataset.
#include "railyard/torch/prepare_loader.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"
#include "support/internals.hpp"
#include "unit/data/feed_host.hpp"
#include "unit/train/scratch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace ry = railyard;
using Catch::ContainsSubstring;
using test::batches_of;
using test::Numbers;
using test::numbers_of;

namespace {

Numbers flat_of(const std::vector<Numbers>& batches) {
  Numbers all;
  for (const Numbers& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

// As test::numbered(), each sample is its own number.
ry::Dataset numbered_columns(std::int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count));
  std::iota(data.begin(), data.end(), 0.0F);
  std::vector<std::int64_t> target(static_cast<std::size_t>(count));
  std::iota(target.begin(), target.end(), 0);
  return ry::Dataset::from_columns({{"x", data}, {"y", target}}).with_label("y");
}

// Every third sample of them; how many these are, nobody says before the end.
ry::Dataset every_third(std::int64_t count) {
  return numbered_columns(count).filter([](const ry::Sample& sample) { return sample.id() % 3 == 0; });
}

const ry::Dataset& mixed() {
  static const ry::Schema schema{{.name = "pair", .dtype = ry::Dtype::u8, .shape = {2}},
                                 ry::Field::text("word"),
                                 {.name = "half", .dtype = ry::Dtype::f16},
                                 {.name = "class", .dtype = ry::Dtype::i64},
                                 {.name = "tokens", .dtype = ry::Dtype::i32, .shape = {-1}},
                                 {.name = "id", .dtype = ry::Dtype::i64}};
  static const ry::Dataset dataset =
      ry::Dataset::from_function(schema, 3, [](std::uint64_t id, ry::SampleWriter& out) {
        const auto number = static_cast<std::int64_t>(id);
        out.set("pair", std::vector<std::uint8_t>{static_cast<std::uint8_t>(id), 200});
        out.set("word", std::string(static_cast<std::size_t>(id), 'w'));
        out.set("half", 0.5F);
        out.set("class", 2 - number);
        out.set("tokens", std::vector<std::int32_t>(static_cast<std::size_t>(id + 1), 7));
        out.set("id", -number);
      }).with_label("class");
  return dataset;
}

ry::Batch first_batch(ry::Worker& worker, const ry::Dataset& dataset, ry::LoaderOptions options = {}) {
  options.global_batch_size = 8;
  auto loader = ry::prepare_loader(worker, dataset, options);
  return *loader.begin();
}

}  // namespace

TEST_CASE(
    "Loader of a Dataset: any number of workers and threads sees the same batches, those of tensors too (E1, E3)") {
  for (const std::int64_t count : {1, 7, 31}) {
    for (const int workers : {1, 2, 3}) {
      test::on_threads(workers, [&, count](auto& worker) {
        ry::LoaderOptions options{.global_batch_size = 8, .shuffle = true};
        auto of_tensors = ry::prepare_loader(worker, test::numbered(count), options);
        options.threads = static_cast<std::size_t>(worker.world_size() - 1);
        auto of_columns = ry::prepare_loader(worker, numbered_columns(count), options);
        EXPECT(of_columns.num_batches() == of_tensors.num_batches());
        std::vector<std::vector<Numbers>> epochs;
        for (int epoch = 0; epoch < 2; ++epoch) {
          epochs.push_back(batches_of(worker, of_columns));
          EXPECT(epochs.back() == batches_of(worker, of_tensors));
          Numbers all = flat_of(epochs.back());
          std::sort(all.begin(), all.end());
          Numbers expected(static_cast<std::size_t>(count));
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT(all == expected);
        }
        EXPECT(count == 1 || epochs[0] != epochs[1]);
      });
    }
  }
}

TEST_CASE("Loader of a Dataset: a stream ends on all ranks at the same step, and does not tell its length before") {
  for (const int workers : {1, 2, 3}) {
    test::on_threads(workers, [](auto& worker) {
      auto loader = ry::prepare_loader(worker, every_third(40), {.global_batch_size = 4, .drives_step = true});
      const std::vector<Numbers> expected{{0, 3, 6, 9}, {12, 15, 18, 21}, {24, 27, 30, 33}, {36, 39}};
      EXPECT(batches_of(worker, loader) == expected);
      EXPECT(worker.steps() == 3);  // the last one is not over before what follows the epoch has been done
      EXPECT(loader.next_epoch() == 1);
      EXPECT(batches_of(worker, loader) == expected);
      EXPECT(worker.page().epoch_size.load() == 0);
      try {
        static_cast<void>(loader.num_samples());
        EXPECT(false);
      } catch (const ry::ConfigError&) {
      }
    });
  }
}

TEST_CASE(
    "Loader of a Dataset: other workers and batch sizes go on with what is left of a stream or a table (E7, E9)") {
  for (const bool is_stream : {false, true}) {
    const auto dataset = is_stream ? every_third(60) : numbered_columns(20);
    const ry::LoaderOptions options{
        .global_batch_size = 4, .shuffle = !is_stream, .drives_step = true, .micro_batches = 2};
    Numbers whole;
    ry::State saved;
    test::on_threads(1, [&](auto& worker) {
      auto loader = ry::prepare_loader(worker, dataset, options);
      whole = flat_of(batches_of(worker, loader));
    });
    test::on_threads(2, [&](auto& worker) {
      auto loader = ry::prepare_loader(worker, dataset, options);
      int count = 0;
      for (auto& batch : loader) {
        static_cast<void>(batch);
        if (++count == 5) break;  // in the middle of the third batch
      }
      if (worker.rank() == 0) saved = loader.state();
      worker.barrier();
    });
    CHECK(saved.at("consumed").as<std::string>() == "0-8");
    for (const int workers : {1, 2, 3}) {
      test::on_threads(workers, [&](auto& worker) {
        ry::LoaderOptions others = options;
        others.global_batch_size = 5;
        auto loader = ry::prepare_loader(worker, dataset, others);
        loader.load_state(saved);
        EXPECT(flat_of(batches_of(worker, loader)) == Numbers(whole.begin() + 8, whole.end()));
        EXPECT(loader.epoch() == 0 && loader.next_epoch() == 1);
      });
    }
  }
}

TEST_CASE("Loader of a Dataset: numbers stand side by side as floats, the label is the target, all else has its name") {
  test::on_threads(1, [](auto& worker) {
    const ry::Batch batch = first_batch(worker, mixed());
    EXPECT(torch::equal(
        batch.data,
        torch::tensor({{0.0F, 200.0F, 0.5F, 0.0F}, {1.0F, 200.0F, 0.5F, -1.0F}, {2.0F, 200.0F, 0.5F, -2.0F}})));
    EXPECT(torch::equal(batch.target, torch::tensor({2, 1, 0}, torch::kLong)));
    EXPECT(batch.columns().column("word").text(2) == "ww");
    EXPECT(torch::equal(batch.tensor("pair").select(1, 1), torch::full({3}, 200, torch::kByte)));
    EXPECT(batch.tensor("half").scalar_type() == torch::kHalf);
    EXPECT(torch::equal(batch.lengths("word"), torch::tensor({0, 1, 2}, torch::kLong)));
    try {
      static_cast<void>(batch.tensor("words"));
      EXPECT(false);
    } catch (const ry::ConfigError& error) {
      EXPECT(std::string{error.what()}.find("\"tokens\"") != std::string::npos);
    }
  });
}

TEST_CASE("Loader of a Dataset: samples of different lengths end with the padding, up to the longest of the batch") {
  test::on_threads(1, [](auto& worker) {
    const auto tokens = mixed().select({"tokens", "class"}).with_label("class");
    const ry::Batch batch = first_batch(worker, tokens, {.padding = -1});
    const auto expected = torch::tensor({{7, -1, -1}, {7, 7, -1}, {7, 7, 7}}, torch::kInt);
    EXPECT(torch::equal(batch.data, expected));
    EXPECT(torch::equal(batch.lengths("tokens"), torch::tensor({1, 2, 3}, torch::kLong)));
    EXPECT(torch::equal(first_batch(worker, mixed(), {.padding = -1}).tensor("tokens"), expected));
  });
}

TEST_CASE("Loader of a Dataset: the workers of a host read a stream once, and see what one worker sees") {
  constexpr std::int64_t count = 203;
  auto* made = ::new (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<std::int64_t>{0};
  const auto stream = ry::Dataset::from_generator({{"x", ry::Dtype::f32}, {"y", ry::Dtype::i64}},
                                                  [made] {
                                                    return [made, at = std::int64_t{0}](ry::SampleWriter& out) mutable {
                                                      if (at == count) return false;
                                                      ++*made;
                                                      out.set("x", static_cast<float>(at));
                                                      out.set("y", at++);
                                                      return true;
                                                    };
                                                  })
                          .shuffle_window(50)
                          .with_label("y");
  std::vector<Numbers> alone[2];
  test::on_threads(1, [&](auto& worker) {
    auto loader = ry::prepare_loader(worker, stream, {.global_batch_size = 8});
    for (auto& epoch : alone) epoch = batches_of(worker, loader);
  });
  const auto all_see_it = [&](auto& worker) {
    auto loader = ry::prepare_loader(worker, stream, {.global_batch_size = 8});
    for (const auto& epoch : alone) {
      worker.barrier();  // whoever comes much later reads by itself
      EXPECT(batches_of(worker, loader) == epoch);
    }
  };
  *made = 0;
  test::on_threads(3, all_see_it);
  CHECK(made->exchange(0) == 2 * count);
  test::on_processes(3, all_see_it);
  CHECK(made->load() == 2 * count);
  ::munmap(made, 4096);
}

TEST_CASE("Loader of a Dataset: a worker that reads a stream by itself, for it came late, says so once") {
  std::atomic<bool> is_over = false;
  const auto read = [&](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, every_third(600), {.global_batch_size = 4});
    for (int epoch = 0; epoch < 2; ++epoch) {
      worker.barrier();
      if (epoch == 0) {
        while (worker.rank() == 1 && !is_over) std::this_thread::yield();
      }
      std::size_t samples = 0;
      for (const auto& batch : loader) samples += batch.size();
      EXPECT(samples == 100);
      if (worker.rank() == 0) is_over = true;
    }
  };
  const ry::Result result = test::try_run<ry::SharedMemory, ry::Threads>(2, read);
  REQUIRE(result);
  REQUIRE(result.warnings().size() == 1);
  CHECK_THAT(result.warnings().front(), ContainsSubstring("filter on rank 1/2 reads epoch 0 by itself") &&
                                            ContainsSubstring("read more than once"));
}

TEST_CASE("Loader of a Dataset: bucket_by makes batches of samples of similar length, the same for any workers") {
  const ry::Schema schema{{.name = "tokens", .dtype = ry::Dtype::i32, .shape = {-1}},
                          {.name = "y", .dtype = ry::Dtype::i64}};
  const auto texts = ry::Dataset::from_function(schema, 100, [](std::uint64_t id, ry::SampleWriter& out) {
                       out.set("tokens", std::vector<std::int32_t>(static_cast<std::size_t>(1 + id * 7 % 50), 1));
                       out.set("y", static_cast<std::int64_t>(id));
                     }).with_label("y");
  Numbers alone;
  for (const int workers : {1, 3}) {
    test::on_threads(workers, [&, workers](auto& worker) {
      auto loader =
          ry::prepare_loader(worker, texts, {.global_batch_size = 10, .shuffle = true, .bucket_by = "tokens"});
      Numbers order;
      double padding = 0;
      for (const auto& batch : loader) {
        padding += static_cast<double>(batch.data.numel()) - batch.data.sum().template item<double>();
        const Numbers whole = test::whole_of(worker, batch);
        order.insert(order.end(), whole.begin(), whole.end());
      }
      worker.all_reduce(ry::buffer_of_value(padding), ry::ReduceOp::sum);
      EXPECT(padding < 1000);  // in any order it would be about 2000
      if (workers == 1) alone = order;
      EXPECT(order == alone);
    });
  }
  std::sort(alone.begin(), alone.end());
  CHECK(alone == numbers_of(ry::Batch{{}, torch::arange(100), 100}));
}

TEST_CASE("Loader of a Dataset: one column keeps its type and shape, and there may be no label or no numbers") {
  test::on_threads(1, [](auto& worker) {
    const ry::Batch one = first_batch(worker, mixed().select({"word", "pair"}));
    EXPECT(one.data.scalar_type() == torch::kByte && one.data.sizes() == at::IntArrayRef({3, 2}));
    EXPECT(!one.target.defined());
    const ry::Batch none = first_batch(worker, mixed().select({"word"}));
    EXPECT(!none.data.defined() && none.size() == 3 && none.columns().rows() == 3);
  });
}

TEST_CASE("Loader of a Dataset: a collate function of the user's own makes data and target of the samples") {
  test::on_threads(2, [](auto& worker) {
    auto loader = ry::prepare_loader(
        worker, mixed(), {.global_batch_size = 8, .collate = [](const ry::Block& block) {
                            const auto rows = static_cast<std::int64_t>(block.rows());
                            return std::pair{torch::full({rows, 2}, 5.0),
                                             torch::full({rows}, static_cast<double>(block.ids()[0]) + 0.5)};
                          }});
    const auto batch = *loader.begin();
    EXPECT(batch.data.sizes() == at::IntArrayRef({worker.rank() == 0 ? 2 : 1, 2}));
    EXPECT(batch.target[0].template item<double>() == (worker.rank() == 0 ? 0.5 : 2.5));
  });
}

TEST_CASE("Loader of a Dataset: a batch is the loop's own, also where the dataset's memory has it as it is") {
  test::on_threads(1, [](auto& worker) {
    auto loader = ry::prepare_loader(worker, numbered_columns(4).cache(), {.global_batch_size = 4});
    for (auto& batch : loader) batch.data.zero_();
    for (auto& batch : loader) EXPECT(batch.data.sum().template item<double>() == 6);
  });
}

TEST_CASE("Loader of a Dataset: writes batches to memory that nobody holds any more, and to no other") {
  test::on_threads(1, [](auto& worker) {
    const auto dataset = numbered_columns(64).cache();
    for (const std::size_t threads : {0U, 1U}) {
      auto few = ry::prepare_loader(worker, dataset, {.global_batch_size = 4, .threads = threads, .prefetch = 2});
      std::set<const void*> places;
      for (const auto& batch : few) places.insert(batch.data.data_ptr());
      EXPECT(places.size() <= (threads == 0 ? 2 : 5));  // those ahead, the one that is written, and the loop's
    }
    auto loader = ry::prepare_loader(worker, dataset, {.global_batch_size = 4});

    // What holds the memory of a batch: the tensor, a view, one without its history, or a graph.
    std::vector<torch::Tensor> kept;
    std::vector<torch::Tensor> weights;
    for (const auto& batch : loader) {
      weights.push_back(torch::ones({1}, torch::requires_grad()));
      const std::size_t kind = kept.size() % 4;
      kept.push_back(kind == 0   ? batch.data
                     : kind == 1 ? batch.data.view({2, 2})
                     : kind == 2 ? batch.data.detach()
                                 : (weights.back() * batch.data).sum());
    }
    for (const auto& batch : loader) EXPECT(batch.data.defined());
    for (std::size_t at = 0; at < kept.size(); ++at) {
      if (at % 4 == 3) kept[at].backward();
      const torch::Tensor sum = at % 4 == 3 ? weights[at].grad() : kept[at].sum();
      EXPECT(sum.item<double>() == static_cast<double>(16 * at + 6));  // of the samples 4 at to 4 at + 3
    }
  });
}

namespace {

// Goes over two epochs, keeps all batches, changes every other one, and looks at them when the loader is gone.
void check_kept_batches(ry::Worker& worker, const ry::Dataset& dataset, const ry::LoaderOptions& options) {
  struct Kept {
    ry::Batch batch{};
    torch::Tensor data{};
    torch::Tensor target{};
  };
  std::vector<Kept> kept;
  {
    auto loader = ry::prepare_loader(worker, dataset, options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      worker.barrier();
      for (auto& batch : loader) {
        kept.push_back({batch, batch.data.clone(), batch.target.clone()});
        if (kept.size() % 2 != 0) continue;
        batch.data.fill_(-7);
        batch.target.sub_(1000);
        kept.back().data.fill_(-7);
        kept.back().target.sub_(1000);
      }
    }
  }
  for (std::size_t at = 0; at < kept.size(); ++at) {
    const auto& [batch, data, target] = kept[at];
    EXPECT(batch.data.equal(data) && batch.target.equal(target));
    const bool is_changed = at % 2 != 0;
    EXPECT(batch.tensor("y").equal(is_changed ? target + 1000 : target));  // what was read stays what it was
    if (!is_changed) EXPECT(batch.tensor("x").equal(data));
    const auto ids = batch.columns().ids();
    const auto y = batch.tensor("y");
    for (std::size_t row = 0; row < ids.size(); ++row) {
      EXPECT(y[static_cast<std::int64_t>(row)].item<std::int64_t>() == static_cast<std::int64_t>(ids[row]));
      if (is_changed) EXPECT(batch.columns().column("x").values<float>(row).front() == static_cast<float>(ids[row]));
    }
  }
}

// Sample i is 1 + i % 5 times its number.
ry::Dataset of_unequal_lengths(std::uint64_t count) {
  return ry::Dataset::from_function({{.name = "x", .dtype = ry::Dtype::f32, .shape = {-1}}, {"y", ry::Dtype::i64}},
                                    count,
                                    [](std::uint64_t id, ry::SampleWriter& out) {
                                      out.set("x", std::vector<float>(1 + id % 5, static_cast<float>(id)));
                                      out.set("y", static_cast<std::int64_t>(id));
                                    })
      .with_label("y");
}

}  // namespace

TEST_CASE("Loader of a Dataset: batches that are kept or written to are nobody else's, also when the loader is gone") {
  const std::vector<ry::Dataset> datasets{numbered_columns(61), numbered_columns(61).cache(), every_third(183),
                                          of_unequal_lengths(61), of_unequal_lengths(61).cache()};
  for (const ry::Dataset& dataset : datasets) {
    for (const bool shuffle : {false, true}) {
      if (shuffle && !dataset.is_indexed()) continue;
      for (const std::size_t threads : {0U, 2U}) {
        const ry::LoaderOptions options{.global_batch_size = 4,
                                        .shuffle = shuffle,
                                        .micro_batches = 2,
                                        .padding = -1,
                                        .threads = threads,
                                        .prefetch = 3};
        for (const int workers : {1, 3}) {
          test::on_threads(workers, [&](auto& worker) { check_kept_batches(worker, dataset, options); });
        }
      }
    }
  }
  const auto through_one_reader = [&](auto& worker) {
    check_kept_batches(worker, every_third(183), {.global_batch_size = 8, .prefetch = 3});
  };
  test::on_processes(2, through_one_reader);
}

TEST_CASE("Loader of a Dataset: an exception of a collate function says of which samples it is") {
  const auto error = test::error_of(2, [](auto& worker) {
    const auto collate = [](const ry::Block& block) -> std::pair<at::Tensor, at::Tensor> {
      for (const std::uint64_t id : block.ids()) {
        if (id == 13) throw std::runtime_error{"a bad sample"};
      }
      return {torch::ones({4}), torch::ones({4})};
    };
    auto loader = ry::prepare_loader(worker, numbered_columns(40).named("pictures"),
                                     {.global_batch_size = 8, .collate = collate});
    for (const auto& batch : loader) static_cast<void>(batch);
  });
  CHECK_THAT(error, ContainsSubstring("LoaderOptions::collate of ") && ContainsSubstring("(dataset \"pictures\")") &&
                        ContainsSubstring(": samples 12 to 15: a bad sample"));
}

TEST_CASE("Loader of a Dataset: makes its tensors on the thread that reads, a collate function runs on the loop's") {
  test::on_threads(1, [](auto& worker) {
    const auto loops = std::this_thread::get_id();
    std::set<std::thread::id> seen;
    torch::manual_seed(11);
    const auto first = torch::rand({1});
    const auto collate = [&](const ry::Block& block) {
      seen.insert(std::this_thread::get_id());
      return std::pair{torch::rand({static_cast<std::int64_t>(block.rows())}), torch::Tensor{}};
    };
    std::vector<torch::Tensor> runs[2];
    for (auto& run : runs) {
      auto loader = ry::prepare_loader(worker, numbered_columns(40), {.global_batch_size = 8, .collate = collate});
      torch::manual_seed(11);
      EXPECT(torch::rand({1}).equal(first));
      for (const auto& batch : loader) {
        run.push_back(batch.data);
        run.push_back(torch::rand({1}));  // in between, as a dropout would
      }
    }
    EXPECT(seen == std::set{loops});
    EXPECT(runs[0].size() == 10);
    for (std::size_t at = 0; at < runs[0].size(); ++at) EXPECT(runs[0][at].equal(runs[1][at]));
  });
}

TEST_CASE("Loader of a Dataset: a padding that the column's type cannot hold is refused where the batch would come") {
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader = ry::prepare_loader(worker, mixed().select({"tokens"}),
                                                               {.global_batch_size = 2, .padding = 1e20});
                              for (const auto& batch : loader) EXPECT(batch.size() == 0);
                            }),
             ContainsSubstring("overflow"));
}

TEST_CASE("Loader of a Dataset: what goes wrong with a sample reaches the step that needs it, with its number (E10)") {
  const auto dataset = numbered_columns(20).map([](const ry::Sample& in, ry::SampleWriter& out) {
    if (in.id() == 13) throw std::runtime_error("no such picture");
    out.set("x", static_cast<float>(in.number("x")));
  });
  std::size_t num_before = 0;
  const auto error = [&] {
    return test::try_run<ry::SharedMemory, ry::Threads>(1,
                                                        [&](auto& worker) {
                                                          auto loader = ry::prepare_loader(worker, dataset,
                                                                                           {.global_batch_size = 4});
                                                          for (const auto& batch : loader) num_before += batch.size();
                                                        })
        .error();
  }();
  CHECK_THAT(error, ContainsSubstring("sample 13") && ContainsSubstring("no such picture"));
  CHECK(num_before == 12);
}

TEST_CASE("Loader of a Dataset: refuses to shuffle a stream, to go on elsewhere, and batches of nothing") {
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader =
                                  ry::prepare_loader(worker, every_third(9), {.global_batch_size = 4, .shuffle = true});
                              static_cast<void>(loader.begin());
                            }),
             ContainsSubstring("shuffle_window()"));
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader = ry::prepare_loader(worker, numbered_columns(9), {.global_batch_size = 4});
                              auto longer = ry::prepare_loader(worker, numbered_columns(10), {.global_batch_size = 4});
                              longer.load_state(loader.state());
                            }),
             ContainsSubstring("num_samples was 9 and is 10"));
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader = ry::prepare_loader(worker, numbered_columns(0), {.global_batch_size = 4});
                            }),
             ContainsSubstring("is empty"));
  CHECK_THAT(test::error_of(1,
                            [](auto& worker) {
                              auto loader = ry::prepare_loader(worker, test::numbered(4), {.global_batch_size = 4});
                              static_cast<void>(loader.begin()->columns());
                            }),
             ContainsSubstring("not made of a railyard::Dataset"));
}

TEST_CASE("Loader of a Dataset: a function that never returns ends the run with an error that says so (E10)") {
  const Scratch scratch;
  const auto hanging = numbered_columns(8).map([](const ry::Sample&, ry::SampleWriter&) {
    while (true) ::pause();
  });
  const auto train = [](ry::Worker& worker) {
    for ([[maybe_unused]] auto& batch : ry::prepare_loader(worker, worker.dataset("train"), {.global_batch_size = 4})) {
    }
  };
  const ry::Result result = ry::Trainer<ry::Gloo, ry::Processes>{
      train,
      {.num_workers = 1},
      {.storage_path = scratch.path(),
       .progress = ry::Progress::quiet,
       .collective_timeout = std::chrono::milliseconds{200}},
      {{"train", hanging}}}.fit();
  CHECK_THAT(result.error(), ContainsSubstring("-> map on rank 0/1 gave no batch in 200 ms"));
}

TEST_CASE("Loader of a Dataset: after one that was late, an epoch is read without the feed that it may still use") {
  test::MapStore store;
  std::promise<void> gate;
  std::atomic<bool> hangs = true;
  const auto stream = ry::Dataset::from_generator({{"n", ry::Dtype::i64}}, [&, opened = gate.get_future().share()] {
    return [&, opened, at = std::int64_t{0}](ry::SampleWriter& out) mutable {
      if (hangs.exchange(false)) opened.wait();
      if (at == 8) return false;
      out.set("n", at++);
      return true;
    };
  });
  const auto feed = std::make_shared<ry::detail::HostFeed>(
      ry::detail::HostFeed::Seat{&store, "feed", 0, 2, std::chrono::milliseconds{1}}, 4096);
  ry::detail::DatasetBatches batches{stream,      {},   {.global_batch_size = 4, .world_size = 2},
                                     torch::kCPU, feed, [](const std::string&) {}};
  batches.open({0, 0, false, std::nullopt});
  CHECK_THROWS_AS(batches.next(ry::Deadline::after(std::chrono::milliseconds{50})), ry::DataError);
  batches.close();
  batches.open({0, 1, false, std::nullopt});
  CHECK(feed.use_count() == 2);  // ours, and that of what still hangs
  std::size_t num_seen = 0;
  while (const auto part = batches.next(ry::Deadline::never())) num_seen += part->samples;
  CHECK(num_seen == 4);
  gate.set_value();
  const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
  while (feed.use_count() > 1 && !deadline.expired()) std::this_thread::yield();
  CHECK(feed.use_count() == 1);
}
