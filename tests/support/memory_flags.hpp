// SPDX-License-Identifier: MIT
// What the kernel was told of this process's memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

/// Whether the memory at an address has a flag, by the two letters that proc(5) has for it.
inline bool has_memory_flag(const void* at, std::string_view letters) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  std::ifstream file{"/proc/self/smaps"};
  bool is_it = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_it = begin <= address && address < end;
    if (is_it && line.starts_with("VmFlags:")) return line.find(" " + std::string{letters}) != std::string::npos;
  }
  return false;
}

/// Whether the memory at an address is left out of core dumps.
inline bool is_left_out_of_core_dumps(const void* at) { return has_memory_flag(at, "dd"); }
/// Whether it is given huge pages where the kernel has some.
inline bool asks_for_huge_pages(const void* at) { return has_memory_flag(at, "hg"); }
