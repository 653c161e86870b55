// SPDX-License-Identifier: MIT
// The part of samples whose class was found, put together over workers exactly. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/detail/quotient.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/summed_metric.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace railyard::inline v0_1 {

/// Is the label of what is no sample, as LibTorch's cross_entropy has it: padding, say. Metrics leave it out.
inline constexpr std::int64_t ignored_label = -100;

/// Counts the samples whose label is among the classes with the k best scores.
class Accuracy {
 public:
  struct Options {
    std::size_t top_k = 1;
  };

  Accuracy() = default;
  explicit Accuracy(Options options) noexcept : options_(options) {}

  /// Adds samples by the scores of all classes. Of equal scores the first is the best. NaN is better than all others,
  /// and a label whose score is NaN was not found.
  /// A batch whose size() is 0 has a sample all the same, another worker's, which must not be added here.
  /// Shapes: scores (samples, classes), labels (samples). Throws: DataError for a label that is no class.
  template <class Score>
  void add(std::span<const Score> scores, std::span<const std::int64_t> labels) {
    if (labels.empty()) return;
    const std::size_t num_classes = scores.size() / labels.size();
    for (std::size_t sample = 0; sample < labels.size(); ++sample) {  // all are classes, or nothing is added
      if (labels[sample] == ignored_label) continue;
      if (labels[sample] < 0 || static_cast<std::size_t>(labels[sample]) >= num_classes) {
        throw DataError{detail::compose("Accuracy: sample {} of a batch has the label {}, but there are {} classes",
                                        sample, labels[sample], num_classes)};
      }
    }
    for (std::size_t sample = 0; sample < labels.size(); ++sample) {
      if (labels[sample] == ignored_label) continue;
      const auto row = scores.subspan(sample * num_classes, num_classes);
      add_counts(place_of(static_cast<std::size_t>(labels[sample]), row) < options_.top_k ? 1 : 0, 1);
    }
  }
  /// Adds the samples of a batch by the scores that a model gave them, and nothing of a batch whose size() is 0.
  /// Example: accuracy.add(net(batch.data), batch);  // see railyard/torch/metrics.hpp
  template <class Outputs, class Samples>
  requires detail::AddsBatches<Accuracy, Outputs, Samples>
  void add(const Outputs& outputs, const Samples& batch) {
    BatchAccess<Accuracy, Outputs, Samples>::add(*this, outputs, batch);
  }
  /// Adds samples by their number, and how many of them were right.
  void add_counts(std::uint64_t correct, std::uint64_t samples) noexcept {
    sums_[0] += static_cast<double>(correct);
    sums_[1] += static_cast<double>(samples);
  }
  void merge(const Accuracy& other) noexcept {
    for (std::size_t at = 0; at < sums_.size(); ++at) sums_[at] += other.sums_[at];
  }
  void reset() noexcept { sums_ = {}; }

  /// Right ones by all of them; NaN while nothing has been added.
  [[nodiscard]] double value() const noexcept { return detail::quotient(sums_[0], sums_[1]); }
  [[nodiscard]] std::uint64_t correct() const noexcept { return static_cast<std::uint64_t>(sums_[0]); }
  [[nodiscard]] std::uint64_t samples() const noexcept { return static_cast<std::uint64_t>(sums_[1]); }
  [[nodiscard]] std::span<double> sums() noexcept { return sums_; }
  [[nodiscard]] std::span<const double> sums() const noexcept { return sums_; }

  [[nodiscard]] State state() const { return detail::state_of_sums(sums_, "Accuracy"); }
  void load_state(const State& state) { detail::load_sums(sums_, state, "Accuracy"); }

 private:
  // How many classes are better.
  template <class Score>
  [[nodiscard]] static std::size_t place_of(std::size_t label, std::span<const Score> scores) noexcept {
    const auto is_nan = [](Score score) { return detail::has_nan_bits(static_cast<double>(score)); };
    if (is_nan(scores[label])) return scores.size();
    std::size_t better = 0;
    for (std::size_t other = 0; other < scores.size(); ++other) {
      const bool is_higher = other < label ? scores[other] >= scores[label] : scores[other] > scores[label];
      better += is_higher || is_nan(scores[other]) ? 1U : 0U;
    }
    return better;
  }

  Options options_{};
  std::array<double, 2> sums_{};  // right ones, all
};
static_assert(SummedMetric<Accuracy>);

}  // namespace railyard::inline v0_1
