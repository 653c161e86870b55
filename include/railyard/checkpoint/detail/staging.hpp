// SPDX-License-Identifier: MIT
// Writes a directory that nobody sees yet, so that it survives a power cut. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/part_files.hpp"
#include "railyard/checkpoint/detail/storage.hpp"

#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a new directory that is filled, made durable, and then renamed. Removed at the end if that did not happen.
class Staging {
 public:
  /// trash: the name that it has while it is removed.
  Staging(Files& files, std::filesystem::path path, std::filesystem::path trash)
      : files_(files), path_(std::move(path)), trash_(std::move(trash)), parts_(files, path_) {
    make_directory(path_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    if (is_published_) return;
    // Away from its name first: another process that was given up may still write by it, and would put something into a
    // directory that has just been emptied. What cannot be removed now is swept later.
    const bool is_away = files_.rename(path_, trash_) == 0;
    remove_all(files_, is_away ? trash_ : path_);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] PartFiles& parts() noexcept { return parts_; }

  /// Makes the folders for a file of that name.
  void make_folders(const std::string& name) {
    for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
      const auto folder = path_ / name.substr(0, slash);
      if (!folders_.contains(folder)) make_directory(folder);
    }
  }

  /// Makes durable which files there are.
  void seal() {
    for (const auto& folder : folders_) sync_directory(files_, folder);
  }

  /// Gives the directory its name. Returns 0 or the error, after which the name may have been given all the same.
  int publish(const std::filesystem::path& name) {
    is_published_ = uninterrupted([&] { return files_.rename(path_, name); }) == 0;
    return is_published_ ? 0 : errno;
  }
  /// Says that it is gone to where somebody has found it.
  void set_published() noexcept { is_published_ = true; }

 private:
  void make_directory(const std::filesystem::path& path) {
    check_call(uninterrupted([&] { return files_.make_directory(path); }), "making the directory", path);
    folders_.insert(path);
  }

  Files& files_;
  std::filesystem::path path_;
  std::filesystem::path trash_;
  PartFiles parts_;
  std::set<std::filesystem::path> folders_{};
  bool is_published_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
