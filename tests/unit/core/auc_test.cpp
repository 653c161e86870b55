// SPDX-License-Identifier: MIT
#include "railyard/core/auc.hpp"
#include "railyard/core/confusion_matrix.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace ry = railyard;

namespace auc_test {

inline ry::Auc auc_of(const std::vector<float>& scores, const std::vector<std::int64_t>& labels,
                      ry::Auc::Options options = {}) {
  ry::Auc auc{options};
  auc.add(std::span{scores}, std::span{labels});
  return auc;
}

// The expected number is that of sklearn.metrics.roc_auc_score, scikit-learn 1.2.1.
TEST_CASE("Auc: counts equal scores half") {
  const std::vector<float> scores{.1F, .4F, .35F, .8F, .4F, .9F, .05F, .4F};
  CHECK(auc_of(scores, {0, 0, 1, 1, 1, 1, 0, 0}).value() == 0.8125);
  CHECK(auc_of({0, 1, std::numeric_limits<float>::infinity(), -3}, {0, 1, 1, 0}).value() == 1);
}

TEST_CASE("Auc: is off by no more than its bound, which shrinks with the bins") {
  std::mt19937_64 generator{3};
  std::normal_distribution<float> noise{0, 1};
  std::vector<float> scores(2000);
  std::vector<std::int64_t> labels(scores.size());
  for (std::size_t sample = 0; sample < scores.size(); ++sample) {
    labels[sample] = static_cast<std::int64_t>(generator() % 2);
    scores[sample] = 1 / (1 + std::exp(-noise(generator) - static_cast<float>(labels[sample])));
  }
  double pairs = 0;
  double wins = 0;
  for (std::size_t a = 0; a < scores.size(); ++a) {
    for (std::size_t b = 0; b < scores.size(); ++b) {
      if (labels[a] == 0 || labels[b] == 1) continue;
      pairs += 1;
      wins += scores[a] > scores[b] ? 1 : scores[a] == scores[b] ? 0.5 : 0;
    }
  }
  double last_bound = 1;
  for (const std::size_t bins : {4U, 64U, 4096U, 1U << 15U}) {
    const ry::Auc auc = auc_of(scores, labels, {.num_bins = bins});
    CHECK(std::abs(auc.value() - wins / pairs) <= auc.error_bound());
    CHECK(auc.error_bound() < last_bound);
    last_bound = auc.error_bound();
  }
  CHECK(last_bound < 1e-4);
}

TEST_CASE("Auc: is NaN without samples of both classes") {
  CHECK(std::isnan(auc_of({0.5F}, {1}).value()));
  CHECK(std::isnan(ry::Auc{}.value()));
  CHECK_FALSE(std::signbit(ry::Auc{}.value()));
}

TEST_CASE("Auc: leaves padding out and refuses NaN, other labels and other sizes") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(auc_of({0.2F, 0.8F, nan}, {0, 1, ry::ignored_label}).value() == 1);
  CHECK_THROWS_WITH(auc_of({nan}, {1}), ContainsSubstring("the score NaN"));
  CHECK_THROWS_AS(auc_of({0.5F}, {2}), ry::DataError);
  CHECK_THROWS_AS(auc_of({0.5F}, {0, 1}), ry::ConfigError);
  CHECK_THROWS_AS((ry::Auc{{.low = 1, .high = 1}}), ry::ConfigError);
  ry::Auc auc;
  CHECK_THROWS_AS(auc.merge(ry::Auc{{.num_bins = 3}}), ry::ConfigError);
  CHECK_THROWS_AS((ry::Auc{{.num_bins = std::size_t{1} << 63U}}), ry::ConfigError);  // its double wraps
  const ry::Auc other{{.num_bins = auc.sums().size() / 2, .low = -5, .high = 5}};
  CHECK_THROWS_WITH(auc.merge(other), ContainsSubstring("scores from 0 to 1 cannot take in one of -5 to 5"));
  CHECK_THROWS_WITH(auc.load_state(other.state()), ContainsSubstring("was given the state of one of -5 to 5"));
  CHECK_THROWS_WITH(ry::Auc{{.num_bins = 2}}.load_state(ry::ConfusionMatrix{2}.state()),
                    ContainsSubstring("the state of ConfusionMatrix was given to Auc"));
  ry::Auc whole;
  const std::vector<float> scores{0.5F, 0.5F};
  const std::vector<std::int64_t> labels{1, 2};
  CHECK_THROWS_AS(whole.add(std::span{scores}, std::span{labels}), ry::DataError);
  CHECK(std::all_of(whole.sums().begin(), whole.sums().end(), [](double sum) { return sum == 0; }));
}

TEST_CASE("Auc: goes on from a saved state") {
  const ry::Auc saved = auc_of({0.2F, 0.8F, 0.9F}, {0, 1, 0});
  ry::Auc loaded;
  loaded.load_state(saved.state());
  CHECK(loaded.value() == 0.5);
  loaded.reset();
  CHECK(std::isnan(loaded.value()));
}
}  // namespace auc_test
