// SPDX-License-Identifier: MIT
// How often each class was taken for each, and precision, recall and F1 of that. Core room.
#pragma once

#include "railyard/core/accuracy.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/quotient.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/summed_metric.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {

/// Counts samples by their class and the class they were taken for. A ratio of nothing is 0.
class ConfusionMatrix {
 public:
  /// Throws: ConfigError for no classes, and for more than 65,536, of which the counts would take 32 GiB.
  explicit ConfusionMatrix(std::size_t num_classes)
      : num_classes_(checked(num_classes)), counts_(num_classes * num_classes) {}

  /// Adds samples. Labels that are ignored_label are left out.
  /// A batch whose size() is 0 has a sample all the same, another worker's, which must not be added here.
  /// Throws: ConfigError if there are not as many predictions as labels; DataError for one that is no class.
  void add(std::span<const std::int64_t> predictions, std::span<const std::int64_t> labels) {
    if (predictions.size() != labels.size()) {
      throw ConfigError{detail::compose(
          "ConfusionMatrix::add() was given {} predictions and {} labels: give it one of each for every sample",
          predictions.size(), labels.size())};
    }
    const auto visit = [&](const auto& count) {
      for (std::size_t sample = 0; sample < labels.size(); ++sample) {
        if (labels[sample] == ignored_label) continue;
        const std::size_t label = index_of(labels[sample], "label");
        count(label * num_classes_ + index_of(predictions[sample], "prediction"));
      }
    };
    visit([](std::size_t /*place*/) {});  // all are classes, or nothing is added
    visit([this](std::size_t place) { counts_[place] += 1; });
  }
  /// Adds the samples of a batch by the scores of all classes, or by predictions, and nothing of a batch whose size()
  /// is 0. Example: matrix.add(net(batch.data), batch);  // see railyard/torch/metrics.hpp
  template <class Outputs, class Samples>
  requires detail::AddsBatches<ConfusionMatrix, Outputs, Samples>
  void add(const Outputs& outputs, const Samples& batch) {
    BatchAccess<ConfusionMatrix, Outputs, Samples>::add(*this, outputs, batch);
  }
  /// Throws: ConfigError if the other one has another number of classes.
  void merge(const ConfusionMatrix& other) { detail::add_sums(counts_, other.counts_, "ConfusionMatrix"); }
  void reset() noexcept { std::fill(counts_.begin(), counts_.end(), 0.0); }

  [[nodiscard]] std::size_t num_classes() const noexcept { return num_classes_; }
  /// How many samples of class `label` were taken for class `prediction`; both are below num_classes().
  [[nodiscard]] std::uint64_t count(std::size_t label, std::size_t prediction) const noexcept {
    return static_cast<std::uint64_t>(at(label, prediction));
  }
  /// How many samples of a class there are.
  [[nodiscard]] double support(std::size_t label) const noexcept {
    double sum = 0;
    for (std::size_t prediction = 0; prediction < num_classes_; ++prediction) sum += at(label, prediction);
    return sum;
  }
  /// Of the samples taken for a class, the part that is of it.
  [[nodiscard]] double precision(std::size_t label) const noexcept {
    return detail::ratio_of(at(label, label), taken_for(label));
  }
  /// Of the samples of a class, the part that was taken for it.
  [[nodiscard]] double recall(std::size_t label) const noexcept {
    return detail::ratio_of(at(label, label), support(label));
  }
  /// The harmonic mean of precision and recall.
  [[nodiscard]] double f1(std::size_t label) const noexcept {
    return detail::ratio_of(2 * at(label, label), support(label) + taken_for(label));
  }
  /// The mean of F1 over the classes that there are in labels or predictions: every class counts the same.
  [[nodiscard]] double macro_f1() const noexcept {
    double sum = 0;
    double classes = 0;
    for (std::size_t label = 0; label < num_classes_; ++label) {
      sum += f1(label);
      classes += support(label) + taken_for(label) > 0 ? 1 : 0;
    }
    return detail::ratio_of(sum, classes);
  }
  /// The mean of F1 over the samples: every class counts as often as it is.
  [[nodiscard]] double weighted_f1() const noexcept {
    double sum = 0;
    double samples = 0;
    for (std::size_t label = 0; label < num_classes_; ++label) {
      sum += f1(label) * support(label);
      samples += support(label);
    }
    return detail::ratio_of(sum, samples);
  }
  /// The part of samples that were taken for what they are; NaN while nothing has been added.
  [[nodiscard]] double accuracy() const noexcept {
    double correct = 0;
    double samples = 0;
    for (std::size_t label = 0; label < num_classes_; ++label) {
      correct += at(label, label);
      samples += support(label);
    }
    return detail::quotient(correct, samples);
  }
  /// The accuracy.
  [[nodiscard]] double value() const noexcept { return accuracy(); }

  /// Row after row: a row per label, a column per prediction.
  [[nodiscard]] std::span<double> sums() noexcept { return counts_; }
  [[nodiscard]] std::span<const double> sums() const noexcept { return counts_; }

  [[nodiscard]] State state() const { return detail::state_of_sums(counts_, "ConfusionMatrix"); }
  void load_state(const State& state) { detail::load_sums(counts_, state, "ConfusionMatrix"); }

 private:
  [[nodiscard]] static std::size_t checked(std::size_t num_classes) {
    constexpr std::size_t most = 65'536;
    if (num_classes > 0 && num_classes <= most) return num_classes;
    throw ConfigError{
        detail::compose("a ConfusionMatrix was to have {} classes: give it the number of classes that labels can have, "
                        "1 to {}",
                        num_classes, most)};
  }
  [[nodiscard]] double at(std::size_t label, std::size_t prediction) const noexcept {
    return counts_[label * num_classes_ + prediction];
  }
  [[nodiscard]] double taken_for(std::size_t prediction) const noexcept {
    double sum = 0;
    for (std::size_t label = 0; label < num_classes_; ++label) sum += at(label, prediction);
    return sum;
  }
  [[nodiscard]] std::size_t index_of(std::int64_t number, std::string_view what) const {
    if (number >= 0 && static_cast<std::size_t>(number) < num_classes_) return static_cast<std::size_t>(number);
    throw DataError{detail::compose("ConfusionMatrix of {} classes was given the {} {}", num_classes_, what, number)};
  }

  std::size_t num_classes_;
  std::vector<double> counts_;
};
static_assert(SummedMetric<ConfusionMatrix>);

}  // namespace railyard::inline v0_1
