// SPDX-License-Identifier: MIT
// The pictures in a folder of folders, each folder a class. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
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
  std::map<std::string, std::size_t> others{};  ///< how many pictures there are of kinds that are not read, by suffix
};

/// Returns what follows the last dot, with it, in small letters.
[[nodiscard]] inline std::string suffix_of(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  for (char& c : suffix) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return suffix;
}
[[nodiscard]] inline bool is_image_suffix(std::string_view suffix) {
  return suffix == ".png" || suffix == ".jpg" || suffix == ".jpeg";
}
[[nodiscard]] inline bool is_other_image_suffix(std::string_view suffix) {
  constexpr std::array<std::string_view, 8> others{".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif", ".jfif"};
  return std::find(others.begin(), others.end(), suffix) != others.end();
}
/// Tools leave such files and folders behind, which nobody means to be data.
[[nodiscard]] inline bool is_hidden(const std::filesystem::path& path) {
  return path.filename().string().starts_with('.');
}

/// Says whether one of two paths without links lies in the other, or is it.
[[nodiscard]] inline bool is_one_in_other(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto [end_a, end_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return end_a == a.end() || end_b == b.end();
}

/// Returns the names of the folders in a folder, and of links to those elsewhere.
[[nodiscard]] inline std::set<std::string> list_folders(const std::string& folder) {
  namespace fs = std::filesystem;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator{folder}) {
    if (!entry.is_directory() || is_hidden(entry.path())) continue;
    if (entry.is_symlink() && is_one_in_other(fs::canonical(entry.path()), fs::canonical(folder))) continue;
    names.insert(entry.path().filename().string());
  }
  if (names.empty()) throw DataError{compose("{}: there are no folders in it, one for each class", folder)};
  return names;
}

/// Returns the pictures in the folder of a class, and in those below it; counts those of kinds that are not read.
[[nodiscard]] inline std::vector<std::string> list_class(const std::string& folder, const std::string& name,
                                                         std::map<std::string, std::size_t>& others) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  fs::recursive_directory_iterator entry{fs::path{folder} / name};
  for (; entry != fs::recursive_directory_iterator{}; ++entry) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
      continue;
    }
    const std::string suffix = suffix_of(entry->path());
    if (is_image_suffix(suffix) && entry->is_regular_file()) paths.push_back(entry->path().string());
    if (is_other_image_suffix(suffix) && entry->is_regular_file()) ++others[suffix];
  }
  if (paths.empty()) {
    throw DataError{compose("{}: there is no .png, .jpg or .jpeg in the folder of the class \"{}\"", folder, name)};
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Looks at the folders; of a path that is a picture, the class is the name of the folder that it lies in. Hidden
/// files and folders are left out. Links to files are followed, and a class may be a link to a folder elsewhere; other
/// links to folders are not followed: they could lead in circles, and to the same pictures again.
/// Throws: DataError if one cannot be read, or there is a class without pictures.
[[nodiscard]] inline ImageFiles list_image_files(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  ImageFiles found;
  std::map<std::string, std::vector<std::string>> by_class;
  try {
    for (const std::string& path : paths) {
      if (fs::is_regular_file(path)) {
        by_class[fs::absolute(path).parent_path().filename().string()].push_back(path);
        continue;
      }
      for (const std::string& name : list_folders(path)) {
        for (std::string& picture : list_class(path, name, found.others)) by_class[name].push_back(std::move(picture));
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw DataError{compose("the folder of pictures cannot be read: {}", error.what())};
  }
  for (auto& [name, pictures] : by_class) {
    const auto label = static_cast<std::int64_t>(found.classes.size());
    for (std::string& picture : pictures) found.files.push_back({std::move(picture), label});
    found.classes.push_back(name);
  }
  return found;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
