// SPDX-License-Identifier: MIT
// What a core dump of this process would hold.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

/// Whether the memory at an address is left out of it.
inline bool is_left_out_of_core_dumps(const void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  std::ifstream file{"/proc/self/smaps"};
  bool is_it = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_it = begin <= address && address < end;
    if (is_it && line.starts_with("VmFlags:")) return line.find(" dd") != std::string::npos;
  }
  return false;
}
