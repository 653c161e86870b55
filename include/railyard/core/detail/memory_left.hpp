// SPDX-License-Identifier: MIT
// How much memory this process and what it shares may have, and may still take. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
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

// Reads the number that a file begins with; nothing for "max", or where there is no such file.
[[nodiscard]] inline std::optional<std::size_t> number_in(const std::filesystem::path& file) {
  std::size_t number = 0;
  return std::ifstream{file} >> number ? std::optional{number} : std::nullopt;
}

// What a group's limit leaves; as much as can be where it has none, or is not to be seen.
[[nodiscard]] inline std::size_t memory_left_in(const std::filesystem::path& group, const MemoryFiles& files) {
  const auto limit = number_in(group / files.limit);
  auto used = number_in(group / files.used);
  if (!limit || !used) return ~std::size_t{0};
  std::ifstream statistics{group / "memory.stat"};
  std::string name;
  for (std::size_t value = 0; statistics >> name >> value;) {
    if (name == files.inactive || name == files.active) *used -= std::min(*used, value);
  }
  return *limit > *used ? *limit - *used : 0;
}

/// Is where the kernel tells of control groups.
struct ControlGroups {
  std::filesystem::path membership = "/proc/self/cgroup";
  std::filesystem::path mount = "/sys/fs/cgroup";  ///< of the hierarchies
};

// Returns the least that memory_of(group, files) says of the host's memory, and of the groups that this process is in,
// of both versions, and all above them, whose limits count as well. Inside of a container the path may be one of the
// host, of which only the mount itself is there.
template <class MemoryOf>
[[nodiscard]] std::size_t least_memory(const ControlGroups& groups, const MemoryOf& memory_of) {
  std::size_t least = physical_memory();
  const auto look_at = [&](std::filesystem::path group, const std::string& path, const MemoryFiles& files) {
    least = std::min(least, memory_of(group, files));
    for (const auto& part : std::filesystem::path{path}.relative_path()) {
      group /= part;
      least = std::min(least, memory_of(group, files));
    }
  };
  std::ifstream membership{groups.membership};
  for (std::string line; std::getline(membership, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") look_at(groups.mount, path, memory_files_v2);
    if (controllers.find(",memory,") != std::string::npos) look_at(groups.mount / "memory", path, memory_files_v1);
  }
  return least;
}

/// Returns the bytes of memory that this process may have: the memory of the host, or what the control group of a
/// container is given.
[[nodiscard]] inline std::size_t memory_limit(const ControlGroups& groups = {}) {
  return least_memory(groups, [](const std::filesystem::path& group, const MemoryFiles& files) {
    return number_in(group / files.limit).value_or(~std::size_t{0});
  });
}

/// Returns the bytes that this process and what it shares may still take: the memory of the host, or what the control
/// group of a container has left.
[[nodiscard]] inline std::size_t memory_left(const ControlGroups& groups = {}) {
  return least_memory(groups, memory_left_in);
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
