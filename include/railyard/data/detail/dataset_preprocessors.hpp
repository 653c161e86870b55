// SPDX-License-Identifier: MIT
// What the samples of a dataset are changed by, as something that is saved, put back, and used on other samples. Data
// room.
#pragma once

#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/chain.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/data_stock.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/preprocessor.hpp"

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
    for (const auto& one : stock.preprocessors()) {
      const State state = one->state();
      const bool has_learned = state.values.begin() != state.values.end() || !state.tensors.empty();
      all_.push_back({one, has_learned, depth_of(state)});
      if (!has_learned) continue;
      kinds_.push_back(one->kind());
      Fingerprint learned;
      learned.add(kinds_.back());
      identify_state(state, learned);
      learned_.push_back(learned.value());
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

  // The types of which nothing but the type tells one that has learned anew from another one.
  [[nodiscard]] std::vector<std::string> types_alike() const {
    std::vector<std::string> all;
    for (const Step& step : all_) {
      if (!step.has_learned) continue;
      const auto of_step = step.preprocessor->types_alike();
      all.insert(all.end(), of_step.begin(), of_step.end());
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

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
    for (const Step& step : all_) {
      if (step.has_learned) steps.push_back(*step.preprocessor);
    }
    return joined(std::move(steps));
  }

  // All of them, with what the state of those that have learned says, if it is given; it may be one of more that came
  // behind them.
  [[nodiscard]] AnyPreprocessor all(const State* state = nullptr) const {
    std::vector<AnyPreprocessor> steps;
    std::size_t number = 0;
    for (const Step& step : all_) {
      steps.push_back(*step.preprocessor);
      if (state == nullptr || !step.has_learned) continue;
      const bool is_of_several = learned_.size() > 1 || depth_of(*state) > step.depth;
      steps.back().load_state(is_of_several ? Chain::state_of_step(*state, number++) : *state);
    }
    return joined(std::move(steps));
  }

 private:
  struct Step {
    std::shared_ptr<const AnyPreprocessor> preprocessor{};
    bool has_learned = false;
    std::size_t depth = 0;  // of its state
  };

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

  std::vector<Step> all_{};
  std::vector<std::uint64_t> learned_{};  // what tells those that have learned something, and what that is
  std::vector<std::uint64_t> kinds_{};    // of the same
};

}  // namespace detail
}  // namespace railyard::inline v0_1
