// SPDX-License-Identifier: MIT
// How many cores this process may use: what affinity and control groups leave of the machine. Workers room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <sched.h>
#include <unistd.h>

namespace railyard::inline v0_1 {

namespace detail {

// The number of cores that the scheduler may put this thread on.
[[nodiscard]] inline int cores_of_affinity() {
  for (std::size_t cores = 1024; cores <= 65536; cores *= 2) {  // the kernel refuses a set smaller than its own
    std::vector<cpu_set_t> set(cores / (8 * sizeof(cpu_set_t)));
    const std::size_t size_bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size_bytes, set.data()) == 0) {
      return std::max(1, CPU_COUNT_S(size_bytes, set.data()));
    }
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// Reads one group's limit: "200000 100000" is two cores, "max 100000" none.
[[nodiscard]] inline std::optional<double> quota_of_group(const std::filesystem::path& group) {
  std::ifstream file{group / "cpu.max"};
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  try {
    return std::stod(quota) / period;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The smallest limit on the way from this process's group up to the root: each of them binds. Control groups v2.
// membership is /proc/self/cgroup, mount where the hierarchy is mounted.
[[nodiscard]] inline std::optional<double> cores_of_cgroup(const std::filesystem::path& membership,
                                                           const std::filesystem::path& mount) {
  std::ifstream file{membership};
  std::string line;
  std::optional<double> smallest;
  while (std::getline(file, line)) {
    if (!line.starts_with("0::/")) continue;
    std::filesystem::path group = std::filesystem::path{line.substr(4)}.lexically_normal();
    while (true) {
      if (const auto quota = quota_of_group(mount / group)) smallest = std::min(smallest.value_or(*quota), *quota);
      if (group.empty() || group == "." || group == group.parent_path()) break;
      group = group.parent_path();
    }
  }
  return smallest;
}

// The cores that this process may use, at least 1; a limit of 1.5 cores counts as 2, for one would leave half idle.
[[nodiscard]] inline int usable_cores(const std::filesystem::path& membership = "/proc/self/cgroup",
                                      const std::filesystem::path& mount = "/sys/fs/cgroup") {
  const int cores = cores_of_affinity();
  const auto quota = cores_of_cgroup(membership, mount);
  return quota ? std::clamp(static_cast<int>(std::ceil(*quota)), 1, cores) : cores;
}

}  // namespace detail

}  // namespace railyard::inline v0_1
