// SPDX-License-Identifier: MIT
// The checkpoints of a run: committed whole or not at all, listed, and thinned out. Checkpoint room.
#pragma once

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {
class Files;
}

enum class ScoreOrder { max, min };

/// Says which checkpoints are kept.
struct Retention {
  /// How many of the best are kept, and always the newest; 0 for all.
  int keep = 0;
  /// The metric that tells how good one is; empty: the later the better.
  std::string score{};
  ScoreOrder order = ScoreOrder::max;
};

/// Is the folder in which the checkpoints of a run lie, checkpoint-000001 and so on.
class CheckpointFolder {
 public:
  /// One file of a checkpoint: its name, relative to the checkpoint's directory, and its bytes.
  struct Part {
    std::string name{};
    std::span<const std::byte> bytes{};
  };

  /// folder: made by the first commit; the directory it lies in must exist.
  /// generation: grows with each program that takes the run over, so that what an earlier one has left can be told.
  explicit CheckpointFolder(std::filesystem::path folder, std::uint64_t generation = 0);
  CheckpointFolder(std::filesystem::path folder, std::uint64_t generation, detail::Files& files);

  /// Asked right before a checkpoint becomes visible: does the run still belong to this program?
  std::function<bool()> still_mine{};

  /// Makes a checkpoint of the parts and returns its directory once it is durable. Names of parts that begin with
  /// "files/" are the user's own files.
  /// Throws: Error that names the file, what went wrong and what to do; nothing is left then, and all other checkpoints
  /// are as they were. ConfigError for names that cannot be.
  std::filesystem::path commit(Manifest manifest, std::span<const Part> parts);

  /// The complete checkpoints, oldest first. Damaged ones are left out: see problems().
  [[nodiscard]] std::vector<Checkpoint> list() const;
  [[nodiscard]] std::optional<Checkpoint> newest() const;
  /// What is wrong with the checkpoints that list() leaves out.
  [[nodiscard]] std::vector<std::string> problems() const;

  /// Removes what unfinished commits and removals of this or an earlier generation have left. Not while one of this
  /// generation is under way.
  void sweep();

  /// Removes all checkpoints but the best and the newest; those that somebody reads stay.
  void retain(const Retention& retention);
  /// The checkpoints that retention would keep for their score, best first.
  [[nodiscard]] std::vector<Checkpoint> best(const Retention& retention) const;
};

/// Returns the newest complete checkpoint in the directory of a run, or nothing.
[[nodiscard]] std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& run);

}  // namespace railyard::inline v0_1
