// SPDX-License-Identifier: MIT
// How much memory this process and what it shares may still take. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {

namespace detail {

// The files of a control group that tell of its memory, in one of the two versions that the kernel has.
struct MemoryFiles {
  std::string_view limit{};
  std::string_view used{};
  // In memory.stat: files in the cache, which the kernel gives up before it runs out of memory.
  std::string_view inactive{};
  std::string_view active{};
};
inline constexpr MemoryFiles memory_files_v1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                                             "total_active_file"};
inline constexpr MemoryFiles memory_files_v2{"memory.max", "memory.current", "inactive_file", "active_file"};

// What a group's limit leaves; as much as can be where it has none, or is not to be seen.
[[nodiscard]] inline std::size_t memory_left_in(const std::filesystem::path& group, const MemoryFiles& files) {
  std::size_t limit = 0;
  std::size_t used = 0;
  if (!(std::ifstream{group / files.limit} >> limit) || !(std::ifstream{group / files.used} >> used)) {
    return ~std::size_t{0};
  }
  std::ifstream statistics{group / "memory.stat"};
  std::string name;
  for (std::size_t value = 0; statistics >> name >> value;) {
    if (name == files.inactive || name == files.active) used -= std::min(used, value);
  }
  return limit > used ? limit - used : 0;
}

// Of a group and all above it, whose limits count as well. Inside of a container the path may be one of the host, of
// which only the mount itself is there.
[[nodiscard]] inline std::size_t memory_left_on_path(const std::filesystem::path& mount, const std::string& path,
                                                     const MemoryFiles& files) {
  std::size_t left = memory_left_in(mount, files);
  std::filesystem::path group = mount;
  for (const auto& part : std::filesystem::path{path}.relative_path()) {
    group /= part;
    left = std::min(left, memory_left_in(group, files));
  }
  return left;
}

/// Returns the bytes that this process and what it shares may still take: the memory of the host, or what the control
/// group of a container has left. membership is /proc/self/cgroup, mount where the hierarchies are mounted.
[[nodiscard]] inline std::size_t memory_left(const std::filesystem::path& membership = "/proc/self/cgroup",
                                             const std::filesystem::path& mount = "/sys/fs/cgroup") {
  std::size_t left = physical_memory();
  std::ifstream groups{membership};
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") left = std::min(left, memory_left_on_path(mount, path, memory_files_v2));
    if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, memory_left_on_path(mount / "memory", path, memory_files_v1));
    }
  }
  return left;
}

/// Returns the same without what other programs of the host have taken: the bytes that can be had without any of them
/// having to go. host: /proc/meminfo.
[[nodiscard]] inline std::size_t memory_free(const std::filesystem::path& host = "/proc/meminfo",
                                             std::size_t left = memory_left()) {
  std::ifstream lines{host};
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view name = "MemAvailable:";  // in KiB
    if (!line.starts_with(name)) continue;
    return std::min(left, static_cast<std::size_t>(std::strtoull(line.c_str() + name.size(), nullptr, 10)) << 10U);
  }
  return left;
}

/// Throws: ConfigError if the ranks need more to begin with than is left.
inline void check_memory_left(int world_size, std::size_t needed_per_rank, std::size_t left) {
  const std::size_t needed = needed_per_rank * static_cast<std::size_t>(world_size);
  if (left >= needed) return;
  throw ConfigError{
      compose("{} ranks need {} KiB of shared memory to begin with, and {} KiB are left (see memory.max, or "
              "memory.limit_in_bytes, of this container's control group): raise the limit, or use fewer workers",
              world_size, needed >> 10U, left >> 10U)};
}

}  // namespace detail

}  // namespace railyard::inline v0_1
