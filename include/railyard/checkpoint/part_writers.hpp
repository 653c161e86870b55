// SPDX-License-Identifier: MIT
// Those who write parts of a checkpoint beside the one who commits it. Checkpoint room.
#pragma once

#include "railyard/checkpoint/manifest.hpp"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Writes into the directory of a checkpoint that is being made. What it does not write is written by the one who
/// commits, who alone writes the manifest and gives the directory its name.
class PartWriters {
 public:
  PartWriters() = default;
  PartWriters(const PartWriters&) = delete;
  PartWriters& operator=(const PartWriters&) = delete;
  virtual ~PartWriters() = default;

  /// Begins to write. The directory is new, as is its name, and has all folders that files need. Returns the names of
  /// the parts that may be written by finish().
  virtual std::set<std::string> begin(const std::filesystem::path& directory) = 0;
  /// Returns, when nobody writes any more, what the manifest says of the parts that have been written, and are durable.
  /// Throws: Error if somebody may write yet: then nothing there is to be used.
  virtual std::vector<ManifestFile> finish() = 0;
};

}  // namespace railyard::inline v0_1
