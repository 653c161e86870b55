// SPDX-License-Identifier: MIT
// Has workers of one host that come from several processes share what one of them finds out about data. Train room.
#pragma once

#include "railyard/train/worker.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/core/store.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/sample_shelf.hpp"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the shelves of the Trainer's datasets, by what is on them: where two processes say the same, it is the same.
[[nodiscard]] inline std::vector<std::pair<std::uint64_t, SampleShelf*>> shelves_of(const Datasets& datasets) {
  std::vector<std::pair<std::uint64_t, SampleShelf*>> all;
  for (const NamedDataset& one : datasets) {
    one.dataset.node()->visit_shelves([&](const DataNode& node, SampleShelf& shelf) {
      std::string what = compose("{} {}", one.name, node.describe());
      for (const Field& field : *node.schema()) {
        what += compose(" {} {} {}", field.name, static_cast<int>(field.dtype), joined(field.shape, "x"));
      }
      all.emplace_back(digest_of(std::as_bytes(std::span{what})), &shelf);
    });
  }
  return all;
}

/// The first worker of the host leaves the places of its shelves, which those of other processes take instead of
/// theirs. Nobody depends on another: who does not find them keeps its own. Before the training function.
inline void share_shelves(Worker& worker, const WorkerLink& link, const Datasets& datasets) {
  Store& store = worker.store();
  if (worker.local_world_size() == 1 || store.joins_threads()) return;
  const bool is_first = worker.local_rank() == 0;
  if (!is_first && link.sees_snapshots_of(worker.rank() - worker.local_rank())) return;  // it has these already
  const auto own = shelves_of(datasets);
  if (own.empty()) return;
  const std::string key = compose("shelves/{}", worker.world().node);
  if (is_first) {
    std::string text;
    for (const auto& [what, shelf] : own) text += compose("{} {}\n", what, shelf->address());
    try {
      store.set(key, text);
    } catch (const Error&) {  // there is no room: each process finds out by itself
    }
    return;
  }
  std::istringstream lines{store.get(key, Deadline::after(std::chrono::seconds{2})).value_or("")};
  std::string line;
  for (auto shelf = own.begin(); shelf != own.end() && std::getline(lines, line); ++shelf) {
    const std::string what = compose("{} ", shelf->first);
    if (line.starts_with(what)) static_cast<void>(shelf->second->take_other(line.substr(what.size())));
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
