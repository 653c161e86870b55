// SPDX-License-Identifier: MIT
// The datasets of a run, by name, and how they are divided among its workers. Train room.
#pragma once

#include "railyard/data/dataset.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is a dataset with the name that workers ask for it by.
struct NamedDataset {
  std::string name{};
  Dataset dataset;
};

/// Lists the datasets of a run. Example: ry::Datasets{{"train", training_set}, {"validation", validation_set}}
class Datasets {
 public:
  Datasets() = default;
  Datasets(std::initializer_list<NamedDataset> datasets) : datasets_(datasets) {}
  Datasets(std::vector<NamedDataset> datasets) : datasets_(std::move(datasets)) {}

  [[nodiscard]] auto begin() const noexcept { return datasets_.begin(); }
  [[nodiscard]] auto end() const noexcept { return datasets_.end(); }

  /// Returns the dataset of that name, or nullptr.
  [[nodiscard]] const Dataset* find(std::string_view name) const noexcept {
    const auto at = std::find_if(begin(), end(), [name](const NamedDataset& one) { return one.name == name; });
    return at == end() ? nullptr : &at->dataset;
  }
  /// The names, as messages show them.
  [[nodiscard]] std::string names() const {
    std::string all;
    for (const NamedDataset& one : datasets_) all += (all.empty() ? "\"" : ", \"") + one.name + "\"";
    return all.empty() ? "none" : all;
  }

 private:
  std::vector<NamedDataset> datasets_{};
};

/// Says which datasets of a run are divided among its workers, and how.
struct DataConfig {
  /// The names of those that are divided; "all" stands for all. Of the others, each worker gets all samples: sums over
  /// the workers then count each sample once per worker, which leaves means as they are. Workers of a host that go over
  /// one at the same time have its samples read and decoded by one of them.
  std::vector<std::string> split{"all"};
  /// Gives the part of a worker, instead of shares of every batch: all that its loaders give it; whole.name() says of
  /// which dataset. A loader with drives_step needs parts of equally many batches. With a loader of a part in its
  /// TrainState, a run does not go on with another number of workers: their parts are others.
  std::function<Dataset(const Dataset& whole, std::size_t rank, std::size_t world_size)> splitter{};
};

namespace detail {

// Throws: ConfigError if a name stands for two datasets, or for none.
inline void check_datasets(const Datasets& datasets, const DataConfig& config) {
  for (const NamedDataset& one : datasets) {
    if (datasets.find(one.name) != &one.dataset) {
      throw ConfigError{compose("two datasets of the Trainer are named \"{}\": rename one of them", one.name)};
    }
  }
  for (const std::string& name : config.split) {
    if (name == "all" || datasets.find(name) != nullptr) continue;
    throw ConfigError{
        compose("RunConfig::data.split names \"{}\", but the datasets of the Trainer are {}", name, datasets.names())};
  }
}

// Returns the dataset as a worker gets it. Throws: ConfigError if there is none of that name.
[[nodiscard]] inline Dataset dataset_of_worker(const Datasets& datasets, const DataConfig& config,
                                               std::string_view name, std::size_t rank, std::size_t world_size) {
  const Dataset* const whole = datasets.find(name);
  if (whole == nullptr) {
    const std::string all = datasets.begin() != datasets.end()
                                ? compose("the datasets of the Trainer are {}", datasets.names())
                                : compose(
                                      "the Trainer has no datasets: give it some behind its configuration, such as "
                                      "{{{{\"{}\", dataset}}}}",
                                      name);
    throw ConfigError{compose("worker.dataset(\"{}\") on rank {}/{}: {}", name, rank, world_size, all)};
  }
  const auto& split = config.split;
  const bool is_split =
      std::any_of(split.begin(), split.end(), [name](const std::string& one) { return one == "all" || one == name; });
  const Dataset named = whole->named(name);
  if (!is_split) return named.alike(name);
  return config.splitter ? config.splitter(named, rank, world_size).undivided().named(name) : named;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
