// SPDX-License-Identifier: MIT
// The files that a rank contributes to a checkpoint, as memory to be filled. Checkpoint room.
#pragma once

#include "railyard/core/stateful.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Is one file that a rank contributes to a checkpoint.
struct FileImage {
  std::string name{};
  std::size_t size = 0;
  /// Writes the file's bytes to memory of `size` bytes. To be called only while what the states were taken from is as
  /// it was.
  std::function<void(std::byte* to)> fill{};
};

/// Is the state of a part of the training, by the name of the part.
struct NamedState {
  std::string name{};
  State state{};
};

/// Returns the files that this rank has to write: rank 0 what all ranks have, each rank its pieces of tensors and the
/// parts that are its own.
/// Throws: ConfigError that names the part if a name is taken twice or cannot be the name of a file.
[[nodiscard]] std::vector<FileImage> file_images(std::span<const NamedState> parts, int rank);

}  // namespace railyard::inline v0_1
