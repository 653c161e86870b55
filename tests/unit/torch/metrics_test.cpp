// SPDX-License-Identifier: MIT
#include "railyard/torch/metrics.hpp"

#include "railyard/torch/prepare_loader.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

constexpr std::int64_t num_rows = 401;

ry::Dataset rows() {
  std::vector<float> numbers(num_rows);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  std::vector<std::int64_t> labels;
  for (const float number : numbers) labels.push_back(static_cast<std::int64_t>(number) % 3 == 0 ? 1 : 0);
  return ry::Dataset::from_columns({{"x", numbers}, {"label", labels}}).with_label("label");
}

struct Metrics {
  ry::Accuracy accuracy{};
  ry::Auc auc{};
  ry::ConfusionMatrix matrix{2};
  ry::Perplexity perplexity{};
  ry::Mean mean{};
};

// Right where the number is even.
void add(Metrics& metrics, const ry::Batch& batch) {
  const auto is_even = batch.data.flatten().to(torch::kLong).remainder(2).eq(0);
  const auto guesses = torch::where(is_even, batch.target, 1 - batch.target);
  const auto scores = torch::one_hot(guesses, 2).to(torch::kFloat);
  metrics.accuracy.add(scores, batch);
  metrics.auc.add(scores.select(1, 1), batch);
  metrics.matrix.add(scores, batch);
  metrics.perplexity.add(batch.data.mean(), batch);
  metrics.mean.add(batch.data.mean(), batch);
}

ry::Batch batch_of(const torch::Tensor& target) { return {target, target, static_cast<std::size_t>(target.size(0))}; }

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ry::Error& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("Metrics: count each row once for any number of workers, without a word about stand-ins") {
  for (const int workers : {1, 2, 3}) {
    INFO(workers << " workers");
    const auto reported = test::on_threads(workers, [](auto& worker) {
      auto loader = ry::prepare_loader(worker, rows(), {.global_batch_size = 8});
      Metrics metrics;
      std::size_t stand_ins = 0;
      for (const auto& batch : loader) {
        stand_ins += batch.size() == 0 ? 1 : 0;
        add(metrics, batch);
      }
      EXPECT((stand_ins > 0) == (worker.rank() > 0));  // the last batch has one row
      const auto matrix = worker.reduce(metrics.matrix);
      worker.report({{"samples", static_cast<double>(worker.reduce(metrics.accuracy).samples())},
                     {"correct", static_cast<double>(worker.reduce(metrics.accuracy).correct())},
                     {"scored",
                      [&] {
                        const auto auc = worker.reduce(metrics.auc);
                        return std::accumulate(auc.sums().begin(), auc.sums().end(), 0.0);
                      }()},
                     {"in_matrix", matrix.support(0) + matrix.support(1)},
                     {"found", static_cast<double>(matrix.count(1, 1))},
                     {"tokens", static_cast<double>(worker.reduce(metrics.perplexity).tokens())},
                     {"mean", worker.mean(metrics.mean)}});
    });
    CHECK(reported.at("samples").number() == num_rows);
    CHECK(reported.at("correct").number() == 201);
    CHECK(reported.at("scored").number() == num_rows);
    CHECK(reported.at("in_matrix").number() == num_rows);
    CHECK(reported.at("found").number() == 67);  // multiples of six
    CHECK(reported.at("tokens").number() == num_rows);
    CHECK(reported.at("mean").number() == Approx(200));
  }
}

TEST_CASE("Metrics: take tensors as models give them") {
  const auto target = torch::tensor({1, 0, 1, -100}, torch::kLong);
  ry::ConfusionMatrix matrix{2};
  matrix.add(torch::tensor({1, 1, 0, 7}, torch::kInt), batch_of(target));
  CHECK(matrix.count(1, 1) == 1);
  CHECK(matrix.count(0, 1) == 1);
  CHECK(matrix.count(1, 0) == 1);
  ry::Auc auc;
  const auto chances = torch::tensor({0.9, 0.1, 0.8, 0.5}, torch::kDouble).unsqueeze(1).requires_grad_();
  auc.add(chances, batch_of(torch::tensor({1.0, 0.0, 1.0, 0.0})));  // as binary_cross_entropy has its target
  CHECK(auc.value() == 1);
  ry::Accuracy accuracy;
  const auto words = torch::tensor({0, 1, 2, -100, 0, 1}, torch::kLong).view({2, 3});
  const auto scores = torch::one_hot(words.clamp_min(0), 3).to(torch::kBFloat16).transpose(0, 1).contiguous();
  accuracy.add(scores.transpose(0, 1), batch_of(words));
  CHECK(accuracy.correct() == 5);
  CHECK(accuracy.samples() == 5);
  ry::Perplexity perplexity;
  perplexity.add(torch::tensor(2.0).requires_grad_(), batch_of(words));
  CHECK(perplexity.tokens() == 5);
  CHECK(perplexity.mean_loss() == 2);
}

TEST_CASE("Metrics: say what they were given that does not fit") {
  const auto batch = batch_of(torch::tensor({1, 0, 1}, torch::kLong));
  CHECK_THAT(error_of([&] { ry::Accuracy{}.add(torch::zeros({3}), batch); }),
             ContainsSubstring("Accuracy::add() was given Float[3] for a batch of 3 samples with the target Long[3]: "
                               "the scores of all classes are meant"));
  CHECK_THAT(error_of([&] { ry::Accuracy{}.add(torch::zeros({4, 2}), batch); }), ContainsSubstring("Float[4, 2]"));
  CHECK_THAT(error_of([&] {
               ry::Accuracy{}.add(torch::zeros({3, 2}, torch::kLong), batch);
             }),
             ContainsSubstring("the scores of all classes"));
  CHECK_THAT(error_of([&] {
               ry::Auc{}.add(torch::zeros({3, 2}), batch);
             }),
             ContainsSubstring("one score for each label"));
  CHECK_THAT(error_of([&] { ry::ConfusionMatrix{2}.add(torch::zeros({2}, torch::kLong), batch); }),
             ContainsSubstring("one predicted class for each label"));
  CHECK_THAT(error_of([&] { ry::Perplexity{}.add(torch::zeros({3}), batch); }), ContainsSubstring("a mean loss"));
  CHECK_THAT(error_of([&] { ry::Mean{}.add(torch::Tensor{}, batch); }), ContainsSubstring("was given undefined"));
  CHECK_THAT(error_of([&] {
               ry::Auc{}.add(torch::zeros({3}), ry::Batch{batch.data, {}, 3});
             }),
             ContainsSubstring("without a target"));
  CHECK_THAT(error_of([&] {
               ry::Auc{}.add(torch::zeros({3}), ry::Batch{batch.data, batch.target, 2});
             }),
             ContainsSubstring("one row per sample"));
  CHECK_THAT(error_of([&] { ry::Auc{}.add(torch::zeros({1}), batch_of(torch::tensor({0.5}))); }),
             ContainsSubstring("not whole"));
}
