// SPDX-License-Identifier: MIT
// A mean that can be merged: a weighted sum and the weight behind it. Core room.
#pragma once

#include "railyard/core/detail/quotient.hpp"
#include "railyard/core/stateful.hpp"

namespace railyard::inline v0_1 {

/// Collects values with their weights. Sums and weights are merged, never means, so that the mean over workers is that
/// of all their samples: to the last bit where sums and weights are whole numbers up to 2^53, such as counts. Other
/// sums round, so that n added values, in whatever order and by whichever worker, give the same sum but for a part of n
/// 2^-52 of the sum of their sizes.
class Mean {
 public:
  /// Adds the mean `value` of `weight` samples; a weight of zero leaves the value out, NaN included.
  void add(double value, double weight) noexcept {
    if (weight == 0) return;
    sum_ += value * weight;
    weight_ += weight;
  }

  /// Adds a mean over the samples of a batch, and nothing of a batch whose size() is 0.
  /// Example: mean.add(loss, batch);  // see railyard/torch/metrics.hpp
  template <class Outputs, class Samples>
  requires detail::AddsBatches<Mean, Outputs, Samples>
  void add(const Outputs& outputs, const Samples& batch) {
    BatchAccess<Mean, Outputs, Samples>::add(*this, outputs, batch);
  }
  /// Adds a sum over `weight` samples, such as the number of correct answers among them; a sum over none is left out.
  void add_sum(double sum, double weight) noexcept {
    if (weight == 0) return;
    sum_ += sum;
    weight_ += weight;
  }

  void merge(const Mean& other) noexcept { add_sum(other.sum_, other.weight_); }
  void reset() noexcept { *this = Mean{}; }

  [[nodiscard]] double sum() const noexcept { return sum_; }
  [[nodiscard]] double weight() const noexcept { return weight_; }
  /// The mean; NaN while nothing has been added.
  [[nodiscard]] double value() const noexcept { return detail::quotient(sum_, weight_); }

  /// Each rank's own, for the mean over all of them is put together when it is asked for.
  [[nodiscard]] State state() const {
    State state{{"sum", sum_}, {"weight", weight_}};
    state.is_own = true;
    return state;
  }
  void load_state(const State& state) {
    sum_ = state.at("sum").number();
    weight_ = state.at("weight").number();
  }

 private:
  double sum_ = 0;
  double weight_ = 0;
};
static_assert(Stateful<Mean>);

}  // namespace railyard::inline v0_1
