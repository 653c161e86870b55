// SPDX-License-Identifier: MIT
#include "railyard/core/perplexity.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <limits>

namespace ry = railyard;

// FAULTS D5: one denominator, however many tokens the batches have.
TEST_CASE("Perplexity: is of the mean over all tokens, not of the mean over batches") {
  ry::Perplexity perplexity;
  perplexity.add(std::log(2.0), 30);
  ry::Perplexity other;
  other.add_sum(10 * std::log(32.0), 10);
  perplexity.merge(other);
  CHECK(perplexity.value() == Approx(4));  // 2^((30 * 1 + 10 * 5) / 40)
  CHECK(perplexity.mean_loss() == Approx(std::log(4.0)));
  CHECK(perplexity.tokens() == 40);
}

TEST_CASE("Perplexity: leaves batches without tokens out, whose mean loss is NaN") {
  ry::Perplexity perplexity;
  perplexity.add(std::numeric_limits<double>::quiet_NaN(), 0);
  CHECK(std::isnan(perplexity.value()));
  CHECK_FALSE(std::signbit(perplexity.value()));
  perplexity.add(0, 5);
  CHECK(perplexity.value() == 1);
}

TEST_CASE("Perplexity: goes on from a saved state") {
  ry::Perplexity saved;
  saved.add(1, 3);
  ry::Perplexity loaded;
  loaded.load_state(saved.state());
  CHECK(loaded.tokens() == 3);
  loaded.reset();
  CHECK(loaded.tokens() == 0);
}
