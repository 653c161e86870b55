// SPDX-License-Identifier: MIT
// The preprocessor that is several, one after the other. Data room.
#pragma once

#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/byte_archive.hpp"
#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Applies preprocessors one after the other. Each learns from what those before it make of the samples. Steps that
/// follow each other learn in one pass over the samples where they name their columns (not by .except) and no two touch
/// the same; the others take a pass each.
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
    for (std::size_t step = 0; step < steps_.size(); step = end_of_group(step)) sum += steps_[step].passes();
    return sum;
  }
  void begin(const Schema& schema) {
    first_ = last_ = 0;
    before_ = schema;
    begin_group();
  }
  void add(const Block& block) {
    Block changed = block;
    for (std::size_t step = 0; step < first_; ++step) changed = steps_[step].transform(changed);
    for (std::size_t step = first_; step < last_; ++step) steps_[step].add(changed);
  }
  [[nodiscard]] std::vector<std::byte> statistics() const {
    std::vector<std::vector<std::byte>> all;
    for (std::size_t step = first_; step < last_; ++step) all.push_back(steps_[step].statistics());
    return detail::to_bytes(all);
  }
  /// Throws: DataError if the bytes are not of the same steps.
  void merge(std::span<const std::byte> bytes) {
    const auto all = detail::from_bytes<std::vector<std::vector<std::byte>>>(bytes);
    if (all.size() != last_ - first_) {
      throw DataError{detail::compose("a Chain that learns in {} steps cannot merge what {} have learned",
                                      last_ - first_, all.size())};
    }
    for (std::size_t step = first_; step < last_; ++step) steps_[step].merge(all[step - first_]);
  }
  /// Ends a pass over the samples.
  void finish() {
    for (std::size_t step = first_; step < last_; ++step) steps_[step].finish();
    if (--passes_left_ == 0) begin_group();
  }

  /// Another when steps are of other types, or look at other columns.
  [[nodiscard]] std::uint64_t kind() const {
    detail::Fingerprint all;
    for (const AnyPreprocessor& step : steps_) all.add(step.kind());
    return all.value();
  }
  /// The types of the steps of which nothing but the type tells one from another.
  [[nodiscard]] std::vector<std::string> types_alike() const {
    std::vector<std::string> all;
    for (const AnyPreprocessor& step : steps_) {
      const auto of_step = step.types_alike();
      if (step.passes() > 0) all.insert(all.end(), of_step.begin(), of_step.end());
    }
    return all;
  }
  /// The columns that its steps look at or change.
  [[nodiscard]] TouchedColumns touches() const {
    std::vector<std::string> all;
    for (const AnyPreprocessor& step : steps_) {
      const TouchedColumns columns = step.touches();
      if (!columns) return std::nullopt;
      all.insert(all.end(), columns->begin(), columns->end());
    }
    return all;
  }
  [[nodiscard]] Schema schema(Schema before) const {
    for (const AnyPreprocessor& step : steps_) before = step.schema(before);
    return before;
  }
  [[nodiscard]] Block transform(Block block) const {
    for (const AnyPreprocessor& step : steps_) block = step.transform(block);
    return block;
  }

  /// Another when its steps are, or their options or what they have learned are.
  [[nodiscard]] std::uint64_t fingerprint() const {
    detail::Fingerprint fingerprint;
    for (const AnyPreprocessor& step : steps_) fingerprint.add(step.fingerprint());
    return fingerprint.value();
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
    for (std::size_t step = 0; step < steps_.size(); ++step) steps_[step].load_state(state_of_step(all, step));
  }
  /// Returns the state of a step out of that of a Chain.
  [[nodiscard]] static State state_of_step(const State& all, std::size_t step) {
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
    return state;
  }

 private:
  // The steps from `first` to the one before the result learn in one pass, or are one that takes several or none: the
  // first one tells how many.
  [[nodiscard]] std::size_t end_of_group(std::size_t first) const {
    if (steps_[first].passes() != 1) return first + 1;
    std::vector<std::string> changing;  // columns that are not what later steps get before the group has learned
    std::size_t step = first;
    for (; step < steps_.size(); ++step) {
      const TouchedColumns columns = steps_[step].touches();
      const bool learns = steps_[step].passes() > 0;
      const bool is_alone = !columns || steps_[step].passes() > 1;
      if (step > first && (is_alone || (learns && share_any(*columns, changing)))) return step;
      if (is_alone) return step + 1;
      changing.insert(changing.end(), columns->begin(), columns->end());
    }
    return step;
  }
  [[nodiscard]] static bool share_any(const std::vector<std::string>& left, const std::vector<std::string>& right) {
    return std::find_first_of(left.begin(), left.end(), right.begin(), right.end()) != left.end();
  }

  // Goes on to the next steps that learn, if there are any.
  void begin_group() {
    do {
      for (; first_ < last_; ++first_) before_ = steps_[first_].schema(before_);
      if (first_ == steps_.size()) return;
      last_ = end_of_group(first_);
      passes_left_ = steps_[first_].passes();
    } while (passes_left_ == 0);
    for (std::size_t step = first_; step < last_; ++step) steps_[step].begin(before_);
  }

  std::vector<AnyPreprocessor> steps_{};
  std::size_t first_ = 0;        // the steps that learn in this pass, between begin() and the last finish()
  std::size_t last_ = 0;         // the one behind them
  std::size_t passes_left_ = 0;  // of these steps
  Schema before_{};              // of what these steps get
};
static_assert(LearningPreprocessor<Chain>);

}  // namespace railyard::inline v0_1
