// SPDX-License-Identifier: MIT
// How many tokens a language model hesitates between. Core room.
#pragma once

#include "railyard/core/detail/quotient.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/summed_metric.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

namespace railyard::inline v0_1 {

/// Is e to the mean negative log-likelihood per token: the mean over all tokens, never of means over batches. Sums of
/// float numbers round, so that n added batches, in whatever order and by whichever worker, give the same mean but for
/// a part of n 2^-52 of it.
class Perplexity {
 public:
  /// Adds a mean loss (cross entropy, in nats) over so many tokens; of no tokens it is left out, NaN included. A batch
  /// whose size() is 0 has a sample all the same, another worker's, whose tokens must not be added here.
  void add(double mean_loss, std::uint64_t tokens) noexcept {
    add_sum(mean_loss * static_cast<double>(tokens), tokens);
  }
  /// Adds a mean loss over the labels of a batch that are not ignored_label, and nothing of a batch whose size() is 0.
  /// Example: perplexity.add(loss, batch);  // see railyard/torch/metrics.hpp
  template <class Outputs, class Samples>
  requires detail::AddsBatches<Perplexity, Outputs, Samples>
  void add(const Outputs& outputs, const Samples& batch) {
    BatchAccess<Perplexity, Outputs, Samples>::add(*this, outputs, batch);
  }
  /// Adds a sum of losses over so many tokens.
  void add_sum(double loss, std::uint64_t tokens) noexcept {
    if (tokens == 0) return;
    sums_[0] += loss;
    sums_[1] += static_cast<double>(tokens);
  }
  void merge(const Perplexity& other) noexcept {
    for (std::size_t at = 0; at < sums_.size(); ++at) sums_[at] += other.sums_[at];
  }
  void reset() noexcept { sums_ = {}; }

  /// NaN while nothing has been added.
  [[nodiscard]] double value() const noexcept { return std::exp(mean_loss()); }
  [[nodiscard]] double mean_loss() const noexcept { return detail::quotient(sums_[0], sums_[1]); }
  [[nodiscard]] std::uint64_t tokens() const noexcept { return static_cast<std::uint64_t>(sums_[1]); }
  [[nodiscard]] std::span<double> sums() noexcept { return sums_; }
  [[nodiscard]] std::span<const double> sums() const noexcept { return sums_; }

  [[nodiscard]] State state() const { return detail::state_of_sums(sums_, "Perplexity"); }
  void load_state(const State& state) { detail::load_sums(sums_, state, "Perplexity"); }

 private:
  std::array<double, 2> sums_{};  // losses, tokens
};
static_assert(SummedMetric<Perplexity>);

}  // namespace railyard::inline v0_1
