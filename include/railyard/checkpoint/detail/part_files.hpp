// SPDX-License-Identifier: MIT
// Writes the files of a checkpoint into a directory that nobody looks into yet. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/crc32c.hpp"
#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/checkpoint/manifest.hpp"
#include "railyard/checkpoint/part_bytes.hpp"

#include "railyard/core/detail/signals.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Makes files and no folders: several processes may write parts of one checkpoint, and one of them makes its folders.
class PartFiles {
 public:
  PartFiles(Files& files, std::filesystem::path directory) : files_(files), path_(std::move(directory)) {}

  /// Writes a file and returns what the manifest says of it. A file that could not be written is written anew, because
  /// after a failed fsync nobody knows which of its pages are on the disk; a second fsync would say that all are.
  /// Throws: Error; what reading the bytes throws.
  ManifestFile write(const std::string& name, const PartBytes& bytes) {
    const auto path = path_ / name;
    folders_.insert(path.parent_path());
    const WriteSignalGuard<SIGXFSZ> guard;
    std::optional<FailedCall> first;
    constexpr int max_attempts = 3;
    for (int attempt = 0; attempt < max_attempts; ++attempt) {
      Crc32c sum;
      const auto failed = try_write(path, bytes, attempt == 0, sum);
      if (!failed) return {.name = name, .size = bytes.size(), .crc32c = sum.value()};
      if (!first) first = failed;
      files_.unlink(path);
    }
    throw_storage(path, *first);
  }

  /// Removes a file that may be there.
  void remove(const std::string& name) { files_.unlink(path_ / name); }

  /// Makes durable which files have been written.
  void seal() {
    for (const auto& folder : folders_) sync_directory(files_, folder);
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{8} << 20U;
  static constexpr std::size_t max_dirty_bytes = 4 * piece_bytes;

  std::optional<FailedCall> try_write(const std::filesystem::path& path, const PartBytes& bytes, bool may_be_direct,
                                      Crc32c& sum) {
    const int fd = uninterrupted([&] { return files_.create(path); });
    if (fd < 0) return FailedCall{"making the file", errno};
    std::optional<FailedCall> failed;
    try {
      failed = try_fill(fd, bytes, may_be_direct, sum);
    } catch (...) {  // they cannot be read
      files_.close(fd);
      throw;
    }
    if (!failed && uninterrupted([&] { return files_.sync(fd); }) != 0) failed = FailedCall{"fsync", errno};
    // Never closed twice: the number may be another file's by then.
    if (files_.close(fd) != 0 && errno != EINTR && !failed) failed = FailedCall{"close", errno};
    return failed;
  }

  // Large files go past the system's cache where they can: a copy of all bytes less, and what others have cached stays.
  // But not once more: some file systems say that they can, and then fail.
  std::optional<FailedCall> try_fill(int fd, const PartBytes& bytes, bool may_be_direct, Crc32c& sum) {
    bool is_direct = may_be_direct && bytes.size() >= smallest_direct_bytes && files_.set_direct(fd, true) == 0;
    for (std::size_t begin = 0; begin < bytes.size(); begin += piece_bytes) {
      const auto piece = bytes.read(begin, std::min(piece_bytes, bytes.size() - begin));
      for (std::size_t done = 0; done < piece.size();) {
        auto left = piece.subspan(done);
        if (is_direct && !is_of_blocks(left)) {
          if (files_.set_direct(fd, false) != 0) return FailedCall{"fcntl", errno};
          is_direct = false;
        }
        if (is_direct) left = left.first(left.size() / direct_block_bytes * direct_block_bytes);
        const ssize_t written = uninterrupted([&] { return files_.write(fd, left.data(), left.size()); });
        if (written < 0 && errno == EINVAL && is_direct) {  // blocks are larger here
          if (files_.set_direct(fd, false) != 0) return FailedCall{"fcntl", errno};
          is_direct = false;
          continue;
        }
        if (written <= 0) return FailedCall{"write", written == 0 ? EIO : errno};
        done += static_cast<std::size_t>(written);
      }
      sum.add(piece);
      if (const int error = pace(fd, begin, piece.size()); error != 0) return FailedCall{"writing back", error};
    }
    return std::nullopt;
  }

  // Whether they begin with a block that can go past the cache.
  [[nodiscard]] static bool is_of_blocks(std::span<const std::byte> bytes) noexcept {
    return bytes.size() >= direct_block_bytes &&
           reinterpret_cast<std::uintptr_t>(bytes.data()) % direct_block_bytes == 0;
  }

  // Keeps the disk busy from the start and little unwritten: what gathers in memory until fsync would hold up everybody
  // who writes to this disk, training included.
  int pace(int fd, std::size_t begin, std::size_t size) {
    int result = files_.write_back(fd, begin, size, false);
    if (result == 0 && begin >= max_dirty_bytes) {
      result = files_.write_back(fd, begin - max_dirty_bytes, piece_bytes, true);
    }
    // An error of the disk that is told here is not told again by fsync.
    return result != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT) ? errno : 0;
  }

  Files& files_;
  std::filesystem::path path_;
  std::set<std::filesystem::path> folders_{};  // in which it has written
};

}  // namespace detail
}  // namespace railyard::inline v0_1
