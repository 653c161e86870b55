// SPDX-License-Identifier: MIT
// What the samples of a dataset are changed by, as something that is saved, put back, and used on other samples. Data
// room.
#pragma once

#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/chain.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/data_stock.hpp"

#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// The preprocessors of all transform() that a dataset was made by, in the order in which samples come by them.
class DatasetPreprocessors {
 public:
  DatasetPreprocessors() = default;
  explicit DatasetPreprocessors(const Dataset& dataset) {
    DataStock stock = DataStock::of_operations();
    dataset.node()->take_stock(stock);
    all_ = stock.preprocessors();
    for (const auto& one : all_) {
      if (!has_learned(*one)) continue;
      learned_.push_back(one->fingerprint());
      kinds_.push_back(one->kind());
    }
  }

  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }

  // Whether the other one begins with all that has been learned here.
  [[nodiscard]] bool begins(const DatasetPreprocessors& other) const noexcept {
    return learned_.size() <= other.learned_.size() &&
           std::equal(learned_.begin(), learned_.end(), other.learned_.begin());
  }

  // Whether the other one has learned with preprocessors of the same types of the same columns, if something else.
  [[nodiscard]] bool is_of_kind_of(const DatasetPreprocessors& other) const noexcept { return kinds_ == other.kinds_; }

  // Whether a state, which may be one of more that came behind them, says that they had learned something else.
  [[nodiscard]] bool had_learned_other(const State& state) const {
    if (learned_.empty()) return false;
    try {
      return all().fingerprint() != all(&state).fingerprint();
    } catch (const Error&) {  // it is of others
      return true;
    }
  }

  // Those that have learned something: one as it is, several as a Chain.
  [[nodiscard]] std::optional<AnyPreprocessor> learned() const {
    if (learned_.empty()) return std::nullopt;
    std::vector<AnyPreprocessor> steps;
    for (const auto& one : all_) {
      if (has_learned(*one)) steps.push_back(*one);
    }
    return joined(std::move(steps));
  }

  // All of them, with what the state of those that have learned says, if it is given; it may be one of more that came
  // behind them.
  [[nodiscard]] AnyPreprocessor all(const State* state = nullptr) const {
    std::vector<AnyPreprocessor> steps;
    std::size_t number = 0;
    for (const auto& one : all_) {
      steps.push_back(*one);
      if (state == nullptr || !has_learned(*one)) continue;
      const bool is_of_several = learned_.size() > 1 || depth_of(*state) > depth_of(one->state());
      steps.back().load_state(is_of_several ? Chain::state_of_step(*state, number++) : *state);
    }
    return joined(std::move(steps));
  }

 private:
  [[nodiscard]] static bool has_learned(const AnyPreprocessor& preprocessor) {
    const State state = preprocessor.state();
    return state.values.begin() != state.values.end() || !state.tensors.empty();
  }
  // How many Chains there are in each other.
  [[nodiscard]] static std::size_t depth_of(const State& state) {
    std::string name = "num_steps";
    while (state.values.find(name) != nullptr) name.insert(0, "0/");
    return name.size();
  }
  [[nodiscard]] static AnyPreprocessor joined(std::vector<AnyPreprocessor> steps) {
    if (steps.size() == 1) return std::move(steps.front());
    return Chain{std::move(steps)};
  }

  std::vector<std::shared_ptr<const AnyPreprocessor>> all_{};
  std::vector<std::uint64_t> learned_{};  // fingerprints of those that have learned something
  std::vector<std::uint64_t> kinds_{};    // of the same
};

}  // namespace detail
}  // namespace railyard::inline v0_1
