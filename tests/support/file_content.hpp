// SPDX-License-Identifier: MIT
// What is in a file.
#pragma once

#include <filesystem>
#include <fstream>
#include <ios>
#include <sstream>
#include <string>
#include <utility>

/// Returns all bytes of a file; nothing if it cannot be read. In blocks: one character after another takes ten times as
/// long as all else that a test does with some MB where it is built with sanitizers and not optimised.
inline std::string file_content(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream{path, std::ios::binary}.rdbuf();
  return std::move(text).str();
}
