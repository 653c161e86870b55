// SPDX-License-Identifier: MIT
// What the datasets of a worker are changed by, for its checkpoints. Train room.
#pragma once

#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/file_image.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/dataset_preprocessors.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

class KeptPreprocessors {
 public:
  // Takes what changes the samples of a dataset that has a name. Of what is made of one dataset in several ways, the
  // longest is kept under its name; of what was learned anew by preprocessors of the same kind, in each epoch perhaps,
  // the newest. What else does not begin alike gets a number behind the name.
  void note(const Dataset& dataset) {
    if (dataset.name().empty()) return;
    DatasetPreprocessors used{dataset};
    std::string name = dataset.name();
    for (int number = 2;; ++number) {
      Kept* const known = find(name);
      if (known == nullptr) return add(std::move(name), std::move(used));
      if (used.begins(known->used)) return;
      if (known->used.begins(used)) return set(*known, std::move(used));
      if (known->used.is_of_kind_of(used)) {
        check_kind(name, used);
        return set(*known, std::move(used));
      }
      name = compose("{}-{}", dataset.name(), number);
    }
  }

  // The parts of a checkpoint that hold what was learned. Valid until the next note().
  [[nodiscard]] std::vector<NamedState> states() const {
    std::vector<NamedState> all;
    for (const Kept& kept : kept_) all.push_back({.name = preprocessor_part(kept.dataset), .state = kept.state});
    return all;
  }

 private:
  struct Kept {
    std::string dataset{};
    DatasetPreprocessors used{};
    std::unique_ptr<const AnyPreprocessor> learned{};  // what the state reads
    State state{};
  };

  [[nodiscard]] Kept* find(std::string_view name) noexcept {
    for (Kept& kept : kept_) {
      if (kept.dataset == name) return &kept;
    }
    return nullptr;
  }
  void add(std::string name, DatasetPreprocessors used) {
    Kept kept{.dataset = std::move(name)};
    set(kept, std::move(used));
    if (kept.learned != nullptr) kept_.push_back(std::move(kept));
  }
  // Where nothing tells whether these have learned anew what the others had, or are others, neither may be lost.
  static void check_kind(const std::string& name, const DatasetPreprocessors& used) {
    const std::vector<std::string> types = used.types_alike();
    if (types.empty()) return;
    throw ConfigError{compose(
        "the dataset \"{}\" is changed in two ways, by preprocessors of the same types that have learned different "
        "things, and nothing tells whether the second is the first that has learned anew, or one to be kept beside it, "
        "in checkpoints: give {} a touches() that returns the columns it looks at or changes, or a fingerprint() of "
        "its "
        "options",
        name, joined(types, ", "))};
  }
  static void set(Kept& kept, DatasetPreprocessors used) {
    auto learned = used.learned();
    kept.used = std::move(used);
    if (!learned) return;
    kept.learned = std::make_unique<const AnyPreprocessor>(std::move(*learned));
    kept.state = kept.learned->state();
  }

  std::vector<Kept> kept_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
