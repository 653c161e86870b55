// SPDX-License-Identifier: MIT
#include "railyard/core/accuracy.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ry = railyard;

namespace accuracy_test {

inline double accuracy(std::size_t top_k, const std::vector<float>& scores, const std::vector<std::int64_t>& labels) {
  ry::Accuracy accuracy{{.top_k = top_k}};
  accuracy.add(std::span{scores}, std::span{labels});
  return accuracy.value();
}

// The expected numbers are those of sklearn.metrics.top_k_accuracy_score, scikit-learn 1.2.1.
TEST_CASE("Accuracy: counts labels among the k best scores") {
  const std::vector<float> scores{.5F, .2F, .2F, .3F, .4F, .2F, .2F, .4F, .3F, .7F, .2F, .1F};
  CHECK(accuracy(1, scores, {0, 1, 2, 2}) == 0.5);
  CHECK(accuracy(2, scores, {0, 1, 2, 2}) == 0.75);
  CHECK(accuracy(3, scores, {0, 1, 2, 2}) == 1);
}

TEST_CASE("Accuracy: a model that scores all classes alike finds the first class alone") {
  CHECK(accuracy(1, {1, 1, 1, 1, 1, 1}, {0, 1}) == 0.5);
  CHECK(accuracy(2, {1, 1, 1, 1, 1, 1}, {1, 2}) == 0.5);
}

TEST_CASE("Accuracy: a model that gives NaN has found nothing") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(accuracy(1, {nan, nan, nan, 1}, {0, 1}) == 0);
}

TEST_CASE("Accuracy: leaves padding out and refuses labels that are no class") {
  CHECK(accuracy(1, {1, 0, 1, 0}, {0, ry::ignored_label}) == 1);
  CHECK_THROWS_WITH(accuracy(1, {1, 0}, {2}), ContainsSubstring("the label 2, but there are 2 classes"));
  CHECK_THROWS_AS(accuracy(1, {1, 0}, {-1}), ry::DataError);
}

// FAULTS E5 and D1: neither the division into batches nor that into workers may show in the result.
TEST_CASE("Accuracy: merging parts of different size gives that of the whole, and of nothing NaN") {
  ry::Accuracy whole;
  CHECK(std::isnan(whole.value()));
  CHECK_FALSE(std::signbit(whole.value()));
  ry::Accuracy part;
  whole.add_counts(3, 4);
  part.add_counts(0, 1);
  whole.merge(part);
  whole.merge(ry::Accuracy{});
  CHECK(whole.value() == 0.6);
  CHECK(whole.correct() == 3);
  CHECK(whole.samples() == 5);
  ry::Accuracy loaded;
  loaded.load_state(whole.state());
  CHECK(loaded.value() == 0.6);
  loaded.reset();
  CHECK(loaded.samples() == 0);
}
}  // namespace accuracy_test
