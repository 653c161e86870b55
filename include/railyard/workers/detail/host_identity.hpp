// SPDX-License-Identifier: MIT
// What tells hosts apart: processes of one host see each other, and share its memory. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"

#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the same text for processes that run under one kernel and in the same namespaces: containers of one machine
/// are hosts of their own.
[[nodiscard]] inline std::string host_identity() {
  char boot[64] = {};
  const Descriptor file{::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)};
  const ssize_t got = file.is_open() ? ::read(file.get(), boot, sizeof boot - 1) : 0;
  std::string identity = got > 1 ? std::string(boot, static_cast<std::size_t>(got - 1)) : host_name();
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat status {};
    if (::stat(space, &status) == 0) identity += compose("-{}", status.st_ino);
  }
  return identity;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
