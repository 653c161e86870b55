// SPDX-License-Identifier: MIT
// What the tests of this room share: a folder that goes away, what is in it, and faults of the disk.
#pragma once

#include "support/file_content.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using Scratch = TemporaryFolder;

inline std::string read_text(const std::filesystem::path& path) { return file_content(path); }

inline std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::ifstream file{path};
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}
