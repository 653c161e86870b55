// SPDX-License-Identifier: MIT
// Whether an MPI library is in this process. Workers room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <string>
#include <string_view>

#include <link.h>

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] inline bool is_mpi_library(std::string_view path) noexcept {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("libmpi.so") || name.starts_with("libmpi_") || name.starts_with("libmpich");
}

/// Returns the path of the MPI library that this process has loaded, in whatever way; empty if none. One that is linked
/// statically is not seen.
[[nodiscard]] inline std::string loaded_mpi_library() {
  std::string found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* result) {
        const std::string_view path = library->dlpi_name == nullptr ? "" : library->dlpi_name;
        if (!is_mpi_library(path)) return 0;
        *static_cast<std::string*>(result) = path;
        return 1;
      },
      &found);
  return found;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
