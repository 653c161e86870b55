// SPDX-License-Identifier: MIT
// What a checkpoint says about itself. Checkpoint room.
#pragma once

#include "railyard/core/value.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Is one file of a checkpoint, named relative to its directory.
struct ManifestFile {
  std::string name{};
  std::uint64_t size = 0;
  std::uint32_t crc32c = 0;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

/// Is what stands in manifest.json: where in the run the checkpoint was taken, and which files make it whole.
struct Manifest {
  int format = 1;
  /// Names this checkpoint among all others; made up by CheckpointFolder::commit if empty.
  std::string id{};
  int world_size = 1;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::int64_t epoch = 0;
  /// The number of the report that it belongs to.
  std::int64_t report = 0;
  int attempt = 0;
  /// Of the one who has written it; see CheckpointFolder.
  std::uint64_t generation = 0;
  Metrics metrics{};
  /// What equal bits depend on, such as releases and the kind of CPU.
  NamedValues environment{};
  /// By UTC, such as 2024-01-31T12:34:56Z; filled in by CheckpointFolder::commit if empty.
  std::string created_at{};
  /// Filled in by CheckpointFolder::commit.
  std::vector<ManifestFile> files{};

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

}  // namespace railyard::inline v0_1
