// SPDX-License-Identifier: MIT
#include "railyard/core/summed_metric.hpp"

#include "railyard/core/accuracy.hpp"
#include "railyard/core/auc.hpp"
#include "railyard/core/confusion_matrix.hpp"
#include "railyard/core/perplexity.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace ry = railyard;

namespace summed_metric_test {

struct Evaluation {
  std::vector<float> scores{};  // of class 1
  std::vector<std::int64_t> labels{};
};

inline Evaluation evaluation(std::size_t samples) {
  std::mt19937_64 generator{samples};
  Evaluation all;
  for (std::size_t sample = 0; sample < samples; ++sample) {
    all.labels.push_back(static_cast<std::int64_t>(generator() % 2));
    all.scores.push_back(static_cast<float>(generator() % 1000) / 1000);
  }
  return all;
}

/// What rank of size workers has of an evaluation that is divided as unevenly as can be.
template <class Metric>
Metric part_of(const Evaluation& all, std::size_t rank, std::size_t size, Metric metric) {
  const std::size_t count = all.labels.size();
  const std::size_t begin = count * rank * rank / (size * size);
  const std::size_t end = count * (rank + 1) * (rank + 1) / (size * size);
  const auto scores = std::span{all.scores}.subspan(begin, end - begin);
  const auto labels = std::span{all.labels}.subspan(begin, end - begin);
  if constexpr (std::is_same_v<Metric, ry::Auc>) {
    metric.add(scores, labels);
  } else {
    for (std::size_t sample = 0; sample < labels.size(); ++sample) {
      const std::int64_t prediction = scores[sample] > 0.5F ? 1 : 0;
      if constexpr (std::is_same_v<Metric, ry::ConfusionMatrix>) {
        metric.add(std::span{&prediction, 1}, labels.subspan(sample, 1));
      } else if constexpr (std::is_same_v<Metric, ry::Accuracy>) {
        metric.add_counts(prediction == labels[sample] ? 1 : 0, 1);
      } else {
        metric.add(static_cast<double>(scores[sample]), static_cast<std::uint64_t>(labels[sample]) + 1);
      }
    }
  }
  return metric;
}

/// What all workers have after a sum over them.
template <class Metric>
Metric evaluated_by(const Evaluation& all, std::size_t size, const Metric& empty) {
  Metric sum = empty;
  for (std::size_t rank = 0; rank < size; ++rank) {
    Metric part = part_of(all, rank, size, empty);
    for (std::size_t at = 0; at < sum.sums().size(); ++at) sum.sums()[at] += part.sums()[at];
  }
  return sum;
}

// FAULTS D1 and E5.
TEST_CASE("SummedMetric: counts over any number of workers give exactly what one worker gives") {
  const Evaluation all = evaluation(GENERATE(1U, 13U, 997U));
  const auto check = [&](const auto& metric) {
    const double alone = evaluated_by(all, 1, metric).value();
    for (std::size_t size = 2; size <= 9; ++size) {
      const double together = evaluated_by(all, size, metric).value();
      CHECK((together == alone || (std::isnan(together) && std::isnan(alone))));
    }
  };
  check(ry::Accuracy{});
  check(ry::ConfusionMatrix{2});
  check(ry::Auc{});
}

TEST_CASE("SummedMetric: a perplexity differs between numbers of workers by rounding alone") {
  const Evaluation all = evaluation(997);
  const double alone = evaluated_by(all, 1, ry::Perplexity{}).mean_loss();
  for (std::size_t size = 2; size <= 9; ++size) {
    CHECK(std::abs(evaluated_by(all, size, ry::Perplexity{}).mean_loss() - alone) <= alone * 997 * std::ldexp(1, -52));
  }
}

TEST_CASE("SummedMetric: merging does what the sum over workers does") {
  const Evaluation all = evaluation(100);
  ry::ConfusionMatrix merged{2};
  for (std::size_t rank = 0; rank < 3; ++rank) merged.merge(part_of(all, rank, 3, ry::ConfusionMatrix{2}));
  CHECK(merged.count(0, 1) == evaluated_by(all, 3, ry::ConfusionMatrix{2}).count(0, 1));
}
}  // namespace summed_metric_test
