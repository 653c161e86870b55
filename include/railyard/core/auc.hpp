// SPDX-License-Identifier: MIT
// The area under the ROC curve, from counts in bins of scores, with a bound on its error. Core room.
#pragma once

#include "railyard/core/accuracy.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/detail/quotient.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/summed_metric.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace railyard::inline v0_1 {

/// Counts positive and negative samples by their score. The area is the chance that a positive sample has a higher
/// score than a negative one, where equal scores count half; samples in one bin count as equal, so that the area is off
/// by at most half of the pairs in one bin, which is error_bound().
class Auc {
 public:
  struct Options {
    std::size_t num_bins = 1U << 15U;
    /// Scores are in bins of equal width from low to high; what lies outside is in the first or the last.
    double low = 0;
    double high = 1;
  };

  Auc() : Auc(Options{}) {}
  /// Throws: ConfigError for no bins or more than 2^30, or if low is not below high.
  explicit Auc(Options options) : options_(checked(options)), counts_(2 * options.num_bins) {}

  /// Adds samples: 1 is a positive one, 0 a negative one, and ignored_label is left out.
  /// A batch whose size() is 0 has a sample all the same, another worker's, which must not be added here.
  /// Throws: ConfigError if there are not as many scores as labels; DataError for other labels, and for NaN.
  template <class Score>
  void add(std::span<const Score> scores, std::span<const std::int64_t> labels) {
    if (scores.size() != labels.size()) {
      throw ConfigError{
          detail::compose("Auc::add() was given {} scores and {} labels: give it one of each for every sample",
                          scores.size(), labels.size())};
    }
    const auto visit = [&](const auto& count) {
      for (std::size_t sample = 0; sample < labels.size(); ++sample) {
        if (labels[sample] != ignored_label) count(sample, static_cast<double>(scores[sample]));
      }
    };
    visit([&](std::size_t sample, double score) { check(sample, labels[sample], score); });  // all, or nothing is added
    visit([&](std::size_t sample, double score) {
      counts_[static_cast<std::size_t>(labels[sample]) * options_.num_bins + bin_of(score)] += 1;
    });
  }
  /// Adds the samples of a batch by their scores, and nothing of a batch whose size() is 0.
  /// Example: auc.add(torch::sigmoid(net(batch.data)), batch);  // see railyard/torch/metrics.hpp
  template <class Outputs, class Samples>
  requires detail::AddsBatches<Auc, Outputs, Samples>
  void add(const Outputs& outputs, const Samples& batch) {
    BatchAccess<Auc, Outputs, Samples>::add(*this, outputs, batch);
  }
  /// Throws: ConfigError if the other one has other bins.
  void merge(const Auc& other) {
    if (options_.low != other.options_.low || options_.high != other.options_.high) {
      throw ConfigError{detail::compose(
          "an Auc of scores from {} to {} cannot take in one of {} to {}: make both with the same limits", options_.low,
          options_.high, other.options_.low, other.options_.high)};
    }
    detail::add_sums(counts_, other.counts_, "Auc");
  }
  void reset() noexcept { std::fill(counts_.begin(), counts_.end(), 0.0); }

  /// The area; NaN while there are not both positive and negative samples.
  [[nodiscard]] double value() const noexcept {
    double pairs = 0;
    double below = 0;  // negative samples with lower scores
    double positives = 0;
    for (std::size_t bin = 0; bin < options_.num_bins; ++bin) {
      pairs += positive(bin) * (below + negative(bin) / 2);
      below += negative(bin);
      positives += positive(bin);
    }
    return detail::quotient(pairs, positives * below);
  }
  /// The area of the scores themselves differs from value() by at most this: 0 if no bin has samples of both classes.
  [[nodiscard]] double error_bound() const noexcept {
    double in_one_bin = 0;
    double negatives = 0;
    double positives = 0;
    for (std::size_t bin = 0; bin < options_.num_bins; ++bin) {
      in_one_bin += positive(bin) * negative(bin);
      negatives += negative(bin);
      positives += positive(bin);
    }
    return detail::quotient(in_one_bin, 2 * positives * negatives);
  }

  /// The counts of negative samples in all bins, then of positive ones.
  [[nodiscard]] std::span<double> sums() noexcept { return counts_; }
  [[nodiscard]] std::span<const double> sums() const noexcept { return counts_; }

  [[nodiscard]] State state() const {
    State state = detail::state_of_sums(counts_, "Auc");
    state.values.set("low", options_.low);
    state.values.set("high", options_.high);
    return state;
  }
  /// Throws: DataError for the state of another metric, or of one with other bins.
  void load_state(const State& state) {
    const Value* low = state.values.find("low");  // older checkpoints do not say them
    const Value* high = state.values.find("high");
    if (low != nullptr && high != nullptr && (low->number() != options_.low || high->number() != options_.high)) {
      throw DataError{
          detail::compose("an Auc of scores from {} to {} was given the state of one of {} to {}: make it "
                          "with the same limits",
                          options_.low, options_.high, low->number(), high->number())};
    }
    detail::load_sums(counts_, state, "Auc");
  }

 private:
  [[nodiscard]] double negative(std::size_t bin) const noexcept { return counts_[bin]; }
  [[nodiscard]] double positive(std::size_t bin) const noexcept { return counts_[options_.num_bins + bin]; }
  [[nodiscard]] static const Options& checked(const Options& options) {
    constexpr std::size_t most = std::size_t{1} << 30U;
    if (options.num_bins > 0 && options.num_bins <= most && options.low < options.high) return options;
    throw ConfigError{detail::compose(
        "an Auc was to have {} bins from {} to {}: give it at least one bin, at most 2^30, and low below high",
        options.num_bins, options.low, options.high)};
  }
  static void check(std::size_t sample, std::int64_t label, double score) {
    if (label != 0 && label != 1) {
      throw DataError{detail::compose("Auc: sample {} of a batch has the label {}: 0 and 1 are meant", sample, label)};
    }
    if (detail::has_nan_bits(score)) {
      throw DataError{detail::compose("Auc: sample {} of a batch has the score NaN", sample)};
    }
  }
  [[nodiscard]] std::size_t bin_of(double score) const noexcept {
    const double place =
        (score - options_.low) / (options_.high - options_.low) * static_cast<double>(options_.num_bins);
    return static_cast<std::size_t>(std::clamp(place, 0.0, static_cast<double>(options_.num_bins - 1)));
  }

  Options options_;
  std::vector<double> counts_;
};
static_assert(SummedMetric<Auc>);

}  // namespace railyard::inline v0_1
