// SPDX-License-Identifier: MIT
// The pictures in a folder of folders, each folder a class. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
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

/// Is what folders hold: classes and, class after class, the pictures in the folder of each and in those below, all in
/// the order of their names' bytes. Of several folders, those of the first come first in each class.
struct ImageFiles {
  std::vector<std::string> classes{};
  std::vector<ImageFile> files{};
};

[[nodiscard]] inline bool has_image_suffix(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  for (char& c : suffix) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return suffix == ".png" || suffix == ".jpg" || suffix == ".jpeg";
}

/// Returns the names of the folders in a folder.
[[nodiscard]] inline std::set<std::string> list_folders(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    if (entry.is_directory()) names.insert(entry.path().filename().string());
  }
  if (names.empty()) throw DataError{compose("{}: there are no folders in it, one for each class", folder)};
  return names;
}

/// Returns the pictures in the folder of a class, and in those below it.
[[nodiscard]] inline std::vector<std::string> list_class(const std::string& folder, const std::string& name) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator{fs::path{folder} / name}) {
    if (has_image_suffix(entry.path()) && entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  if (paths.empty()) {
    throw DataError{compose("{}: there is no .png, .jpg or .jpeg in the folder of the class \"{}\"", folder, name)};
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Looks at the folders; of a path that is a picture, the class is the name of the folder that it lies in. Links to
/// files are followed, links to folders are not: they could lead in circles.
/// Throws: DataError if one cannot be read, or there is a class without pictures.
[[nodiscard]] inline ImageFiles list_image_files(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::map<std::string, std::vector<std::string>> by_class;
  try {
    for (const std::string& path : paths) {
      if (fs::is_regular_file(path)) {
        by_class[fs::absolute(path).parent_path().filename().string()].push_back(path);
        continue;
      }
      for (const std::string& name : list_folders(path)) {
        for (std::string& picture : list_class(path, name)) by_class[name].push_back(std::move(picture));
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw DataError{compose("the folder of pictures cannot be read: {}", error.what())};
  }
  ImageFiles found;
  for (auto& [name, pictures] : by_class) {
    const auto label = static_cast<std::int64_t>(found.classes.size());
    for (std::string& picture : pictures) found.files.push_back({std::move(picture), label});
    found.classes.push_back(name);
  }
  return found;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
