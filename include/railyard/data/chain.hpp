// SPDX-License-Identifier: MIT
// The preprocessor that is several, one after the other. Data room.
#pragma once

#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/preprocessor.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Applies preprocessors one after the other. Each learns from what those before it make of the samples, so that fit()
/// reads the samples once for each step that learns.
class Chain {
 public:
  Chain() = default;
  explicit Chain(std::vector<AnyPreprocessor> steps) : steps_(std::move(steps)) {}
  /// Example: Chain chain{SimpleImputer{{.columns = {"age"}}}, StandardScaler{{.columns = {"age"}}}};
  template <class First, class... Rest>
  requires(!std::same_as<std::remove_cvref_t<First>, Chain> && Preprocessor<std::remove_cvref_t<First>> &&
           (Preprocessor<std::remove_cvref_t<Rest>> && ...)) explicit Chain(First&& first, Rest&&... rest) {
    steps_.reserve(1 + sizeof...(rest));
    steps_.emplace_back(std::forward<First>(first));
    (steps_.emplace_back(std::forward<Rest>(rest)), ...);
  }

  [[nodiscard]] std::size_t size() const noexcept { return steps_.size(); }
  [[nodiscard]] const AnyPreprocessor& operator[](std::size_t step) const noexcept { return steps_[step]; }

  /// How often fit() reads the samples.
  [[nodiscard]] std::size_t passes() const {
    std::size_t sum = 0;
    for (const AnyPreprocessor& step : steps_) sum += step.passes();
    return sum;
  }
  void begin(const Schema& schema) {
    learning_ = 0;
    before_ = schema;
    begin_next();
  }
  void add(const Block& block) {
    Block changed = block;
    for (std::size_t step = 0; step < learning_; ++step) changed = steps_[step].transform(changed);
    steps_.at(learning_).add(changed);
  }
  [[nodiscard]] std::vector<std::byte> statistics() const { return steps_.at(learning_).statistics(); }
  void merge(std::span<const std::byte> bytes) { steps_.at(learning_).merge(bytes); }
  /// Ends a pass over the samples.
  void finish() {
    steps_.at(learning_).finish();
    if (--passes_left_ > 0) return;
    before_ = steps_[learning_++].schema(before_);
    begin_next();
  }

  [[nodiscard]] Schema schema(Schema before) const {
    for (const AnyPreprocessor& step : steps_) before = step.schema(before);
    return before;
  }
  [[nodiscard]] Block transform(Block block) const {
    for (const AnyPreprocessor& step : steps_) block = step.transform(block);
    return block;
  }

  /// The states of the steps: a tensor "learned" of step 2 is named "2/learned".
  [[nodiscard]] State state() const {
    State all{{"num_steps", steps_.size()}};
    for (std::size_t step = 0; step < steps_.size(); ++step) {
      const std::string prefix = detail::compose("{}/", step);
      State state = steps_[step].state();
      for (const auto& [name, value] : state.values) all.values.set(prefix + name, value);
      for (StateTensor& tensor : state.tensors) {
        tensor.name = prefix + tensor.name;
        all.tensors.push_back(std::move(tensor));
      }
    }
    return all;
  }
  /// Throws: ConfigError if the state is one of more or fewer steps.
  void load_state(const State& all) {
    if (all.at("num_steps").number() != static_cast<double>(steps_.size())) {
      throw ConfigError{
          detail::compose("a Chain of {} steps was given the state of one of {}: make it of the same steps",
                          steps_.size(), all.at("num_steps").number())};
    }
    for (std::size_t step = 0; step < steps_.size(); ++step) {
      const std::string prefix = detail::compose("{}/", step);
      State state;
      for (const auto& [name, value] : all.values) {
        if (name.starts_with(prefix)) state.values.set(name.substr(prefix.size()), value);
      }
      for (StateTensor tensor : all.tensors) {
        if (!tensor.name.starts_with(prefix)) continue;
        tensor.name.erase(0, prefix.size());
        state.tensors.push_back(std::move(tensor));
      }
      steps_[step].load_state(state);
    }
  }

 private:
  // Goes on to the next step that learns.
  void begin_next() {
    for (; learning_ < steps_.size(); ++learning_) {
      passes_left_ = steps_[learning_].passes();
      if (passes_left_ > 0) return steps_[learning_].begin(before_);
      before_ = steps_[learning_].schema(before_);
    }
  }

  std::vector<AnyPreprocessor> steps_{};
  std::size_t learning_ = 0;     // the step that learns, between begin() and the last finish()
  std::size_t passes_left_ = 0;  // of this step
  Schema before_{};              // of what this step gets
};
static_assert(LearningPreprocessor<Chain>);

}  // namespace railyard::inline v0_1
