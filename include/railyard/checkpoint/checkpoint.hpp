// SPDX-License-Identifier: MIT
// A checkpoint to read from. Checkpoint room.
#pragma once

#include "railyard/checkpoint/manifest.hpp"

#include "railyard/core/stateful.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {

/// Is a complete checkpoint. Copies are cheap; while one of them lives, retention leaves the checkpoint's files alone.
class Checkpoint {
 public:
  /// Reads the manifest and compares the sizes of all files.
  /// Throws: DataError that names the file, says what is wrong with it and what to do.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& directory);

  /// Reads all files and compares their checksums. Throws: DataError that names the file that is damaged.
  void verify() const;

  [[nodiscard]] const Manifest& manifest() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept;

  /// The names of all parts, those that each rank has for itself included.
  [[nodiscard]] std::vector<std::string> parts() const;
  [[nodiscard]] bool contains(std::string_view part) const;

  /// Returns the state of a part, or nothing if there is none. The pieces of all ranks are one tensor again. Of a part
  /// that each rank has for itself, that of this rank, or nothing. Tensors are read from the files when their read
  /// function is called, which may be after the last copy of the checkpoint is gone.
  /// Throws: DataError if a file is damaged, or elements of a tensor are in none of them.
  [[nodiscard]] std::optional<State> load(std::string_view part, int rank) const;

  /// Where the files are that the user has added.
  [[nodiscard]] std::vector<std::filesystem::path> files() const;
};

}  // namespace railyard::inline v0_1
