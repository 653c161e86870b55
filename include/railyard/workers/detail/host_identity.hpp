// SPDX-License-Identifier: MIT
// What tells hosts apart: processes of one host see each other, and share its memory. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"

#include <string>

#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the same text for processes that run under one kernel and in the same namespaces: containers of one machine
/// are hosts of their own.
[[nodiscard]] inline std::string host_identity() {
  std::string identity = boot_id();
  if (identity.empty()) identity = host_name();
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat status {};
    if (::stat(space, &status) == 0) identity += compose("-{}", status.st_ino);
  }
  return identity;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
