// SPDX-License-Identifier: MIT
// How much memory this process and what it shares may have, and may still take. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

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
  const std::string text = system_text(file.c_str());
  std::size_t number = 0;
  const bool is_number = std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc{};
  return is_number ? std::optional{number} : std::nullopt;
}

// What a group's limit leaves; as much as can be where it has none, or is not to be seen. enough: more than that need
// not be told from it. What is used takes the kernel longer to tell than the limit, and statistics several times as
// long; neither is asked for where nothing depends on it.
[[nodiscard]] inline std::size_t memory_left_in(const std::filesystem::path& group, const MemoryFiles& files,
                                                std::size_t enough) {
  constexpr std::size_t all = ~std::size_t{0};
  const auto limit = number_in(group / files.limit);
  if (!limit || *limit / 4 >= physical_memory()) return all;  // no more than the host has can be used
  auto used = number_in(group / files.used);
  if (!used) return all;
  const auto left = [&] { return *limit > *used ? *limit - *used : 0; };
  if (left() >= enough) return left();
  std::ifstream statistics{group / "memory.stat"};
  std::string name;
  for (std::size_t value = 0; statistics >> name >> value;) {
    if (name == files.inactive || name == files.active) *used -= std::min(*used, value);
  }
  return left();
}

/// Is where the kernel tells of control groups.
struct ControlGroups {
  std::filesystem::path membership = "/proc/self/cgroup";
  std::filesystem::path mount = "/sys/fs/cgroup";  ///< of the hierarchies
};

// Returns the least of the host's memory and of what memory_of(group, files, least so far) says of the groups that this
// process is in, of both versions, and all above them, whose limits count as well. Inside of a container the path may
// be one of the host, of which only the mount itself is there.
template <class MemoryOf>
[[nodiscard]] std::size_t least_memory(const ControlGroups& groups, const MemoryOf& memory_of) {
  std::size_t least = physical_memory();
  const auto look_at = [&](std::filesystem::path group, const std::string& path, const MemoryFiles& files) {
    least = std::min(least, memory_of(group, files, least));
    for (const auto& part : std::filesystem::path{path}.relative_path()) {
      group /= part;
      least = std::min(least, memory_of(group, files, least));
    }
  };
  std::istringstream membership{system_text(groups.membership.c_str())};
  bool is_v1 = false;  // memory is in one hierarchy only, and the kernel lists that of version 2 last
  for (std::string line; std::getline(membership, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",," && !is_v1) look_at(groups.mount, path, memory_files_v2);
    if (controllers.find(",memory,") == std::string::npos) continue;
    is_v1 = true;
    look_at(groups.mount / "memory", path, memory_files_v1);
  }
  return least;
}

/// Returns the bytes of memory that this process may have: the memory of the host, or what the control group of a
/// container is given.
[[nodiscard]] inline std::size_t memory_limit(const ControlGroups& groups = {}) {
  return least_memory(groups, [](const std::filesystem::path& group, const MemoryFiles& files, std::size_t) {
    return number_in(group / files.limit).value_or(~std::size_t{0});
  });
}

/// Returns the bytes that this process and what it shares may still take: the memory of the host, or what the control
/// group of a container has left.
[[nodiscard]] inline std::size_t memory_left(const ControlGroups& groups = {}) {
  return least_memory(groups, memory_left_in);
}

// Returns a number of /proc/meminfo, which tells of KiB, in bytes.
[[nodiscard]] inline std::optional<std::size_t> number_of_host(const std::filesystem::path& host,
                                                               std::string_view name) {
  std::ifstream lines{host};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    return static_cast<std::size_t>(std::strtoull(line.c_str() + name.size(), nullptr, 10)) << 10U;
  }
  return std::nullopt;
}

/// Returns the same without what other programs of the host have taken: the bytes that can be had without any of them
/// having to go. host: /proc/meminfo.
[[nodiscard]] inline std::size_t memory_free(const std::filesystem::path& host = "/proc/meminfo",
                                             std::size_t left = memory_left()) {
  return std::min(left, number_of_host(host, "MemAvailable:").value_or(left));
}
/// Returns the same with what the host can still move to the disk to make room.
[[nodiscard]] inline std::size_t memory_and_swap_free(const std::filesystem::path& host = "/proc/meminfo",
                                                      std::size_t left = memory_left()) {
  const auto available = number_of_host(host, "MemAvailable:");
  return available ? std::min(left, *available + number_of_host(host, "SwapFree:").value_or(0)) : left;
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
