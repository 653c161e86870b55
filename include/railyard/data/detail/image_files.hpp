// SPDX-License-Identifier: MIT
// The pictures in a folder of folders, each folder a class. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the path of a picture, and which class it shows.
struct ImageFile {
  std::string path{};
  std::int64_t label = 0;
};

/// Is what a folder holds: classes and, class after class, the pictures in the folder of each and in those below, all
/// in the order of their names' bytes.
struct ImageFiles {
  std::vector<std::string> classes{};
  std::vector<ImageFile> files{};
};

[[nodiscard]] inline bool has_image_suffix(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  for (char& c : suffix) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return suffix == ".png" || suffix == ".jpg" || suffix == ".jpeg";
}

/// Looks at the folder. Links to files are followed, links to folders are not: they could lead in circles.
/// Throws: DataError if it cannot be read, or there is a class without pictures.
[[nodiscard]] inline ImageFiles list_image_files(const std::string& folder) {
  namespace fs = std::filesystem;
  ImageFiles found;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator{folder}) {
      if (entry.is_directory()) found.classes.push_back(entry.path().filename().string());
    }
    std::sort(found.classes.begin(), found.classes.end());
    for (const std::string& name : found.classes) {
      std::vector<std::string> paths;
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator{fs::path{folder} / name}) {
        if (has_image_suffix(entry.path()) && entry.is_regular_file()) paths.push_back(entry.path().string());
      }
      if (paths.empty()) {
        throw DataError{compose("{}: there is no .png, .jpg or .jpeg in the folder of the class \"{}\"", folder, name)};
      }
      std::sort(paths.begin(), paths.end());
      const auto label = static_cast<std::int64_t>(&name - found.classes.data());
      for (std::string& path : paths) found.files.push_back({std::move(path), label});
    }
  } catch (const fs::filesystem_error& error) {
    throw DataError{compose("the folder of pictures cannot be read: {}", error.what())};
  }
  if (found.files.empty()) throw DataError{compose("{}: there are no folders in it, one for each class", folder)};
  return found;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
